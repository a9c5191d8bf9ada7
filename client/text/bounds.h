/* bounds.h - where words and sentences end, for text that is spoken while it is still written.
 *
 * Both take well-formed UTF-8 that begins where the last piece ended, and say how many of its bytes
 * are certainly whole words or sentences, whatever comes next. White space goes with what is before
 * it.
 *
 * A word ends after white space; Chinese and Japanese characters, which are written without spaces,
 * are words by themselves.
 *
 * A sentence ends at a line's end, and behind . ! ? … (and their like in other scripts) with the
 * quotes and brackets that close there, if white space follows; behind the full-width 。！？｡ when
 * anything follows. No end is the point of an abbreviation ("Dr.", "e.g.", an initial) or of a list
 * number ("2." where a sentence begins); "3.14" has no white space anyway.
 */
#ifndef LLMD_CLIENT_TEXT_BOUNDS_H
#define LLMD_CLIENT_TEXT_BOUNDS_H

#include <stddef.h>

size_t bounds_words(const char *text, size_t bytes);
size_t bounds_sentences(const char *text, size_t bytes);

#endif
