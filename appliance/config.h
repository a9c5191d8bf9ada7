/* config.h - the configuration file: lines of `name = value`, the names are those of the options
 * without their dashes.
 *
 *     # comment            ; comment
 *     model = /var/lib/llmd/model.gguf
 *     max-num-seqs = 16    # comment, after a blank
 *
 * A heading [llmd] may stand before them. An option stands in a file once. The first fault ends the
 * reading, and is told as FILE:LINE: sentence. The lines are taken apart by libinih.
 */
#ifndef LLMD_CONFIG_H
#define LLMD_CONFIG_H

#include <stdio.h>

#include "options.h"

/* -EINVAL, -errno with the sentence. */
int config_read(struct options *o, const char *path, struct fail *f);
/* The same of an open file, `name` for the messages. */
int config_read_file(struct options *o, FILE *file, const char *name, struct fail *f);

#endif
