/* normal.h - brings a text into the form that a tokenizer works on.
 *
 * Both functions leave *out NULL where the text is in that form already, which is the common case
 * and costs one pass without memory; else *out is malloc'ed. 0, -ENOMEM or -E2BIG.
 */
#ifndef LLMD_CLIENT_TEXT_NORMAL_H
#define LLMD_CLIENT_TEXT_NORMAL_H

#include <stddef.h>

/* Every maximal ill-formed part of the text becomes U+FFFD. */
int normal_well_formed(const char *text, size_t bytes, char **out, size_t *out_bytes);

/* Unicode's normalization form C of well-formed UTF-8. */
int normal_compose(const char *text, size_t bytes, char **out, size_t *out_bytes);

#endif
