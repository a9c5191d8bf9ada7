/* signals.h - SIGTERM, SIGINT and SIGHUP, in a way that fits a loop which must not make system calls.
 *
 * The handler sets a word that the loop reads each round, and writes an eventfd that a sleeping
 * loop waits on. Until signals_serve is called nobody reads the word (a model is being loaded): the
 * handler then removes what was created so far and leaves at once.
 */
#ifndef LLMD_SIGNALS_H
#define LLMD_SIGNALS_H

#include <stdbool.h>

#include "../gpu/fail.h"

/* Before any thread is started. From here on a broken pipe and a file that may not grow (a
 * client asks for a large segment) are no more than errors of the call. */
int signals_install(struct fail *f);

/* While loading: this file is removed by a signal that ends the start. The string stays valid. */
void signals_remove_on_exit(const char *path);

/* From here on a signal only asks. Returns the eventfd, readable once a signal has come. */
int signals_serve(void);
bool signals_stop_asked(void);
bool signals_stop_now(void); /* it was asked for again */

#endif
