/* utf8.h - one well-formed UTF-8 character at a time.
 *
 * Well-formed is Table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing above
 * U+10FFFF. What is not well-formed is cut into maximal subparts (section 3.9), each of which
 * becomes one U+FFFD: the same cut as Python's errors="replace" and the WHATWG decoder make.
 */
#ifndef LLMD_CLIENT_TEXT_UTF8_H
#define LLMD_CLIENT_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UTF8_ILL = -1, /* no character begins like this */
    UTF8_CUT = -2  /* the bytes end before the character does */
};

#define UTF8_REPLACEMENT       "\xef\xbf\xbd" /* U+FFFD */
#define UTF8_REPLACEMENT_BYTES 3

static inline bool utf8_is_tail(unsigned char c)
{
    return (c & 0xc0) == 0x80;
}

/* How many bytes a character has that begins with c: 0 if none does. */
static inline unsigned utf8_length(unsigned char c)
{
    if (c < 0x80)
        return 1;
    if (c < 0xc2 || c > 0xf4)
        return 0;
    return c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Whether c may be the second byte after `lead`: excludes overlong forms (E0, F0), surrogates (ED)
 * and what lies above U+10FFFF (F4). */
static inline bool utf8_second_fits(unsigned char lead, unsigned char c)
{
    switch (lead) {
    case 0xe0:
        return c >= 0xa0 && c <= 0xbf;
    case 0xed:
        return c >= 0x80 && c <= 0x9f;
    case 0xf0:
        return c >= 0x90 && c <= 0xbf;
    case 0xf4:
        return c >= 0x80 && c <= 0x8f;
    default:
        return utf8_is_tail(c);
    }
}

/* Code point of the character at at[0..bytes), bytes > 0, or UTF8_ILL or UTF8_CUT; *used gets its
 * length, or that of the maximal subpart. */
static inline int32_t utf8_decode(const char *at, size_t bytes, unsigned *used)
{
    const unsigned char *p = (const unsigned char *)at;
    unsigned length = utf8_length(p[0]);
    *used = 1;
    if (length == 1)
        return p[0];
    if (length == 0)
        return UTF8_ILL;
    int32_t point = p[0] & (0x7f >> length);
    for (unsigned i = 1; i < length; i++) {
        if (i == bytes)
            return UTF8_CUT;
        if (i == 1 ? !utf8_second_fits(p[0], p[1]) : !utf8_is_tail(p[i]))
            return UTF8_ILL;
        point = point << 6 | (p[i] & 0x3f);
        *used = i + 1;
    }
    return point;
}

/* Writes a code point (valid, not a surrogate); at most 4 bytes. Returns how many. */
static inline unsigned utf8_encode(uint32_t point, char *out)
{
    if (point < 0x80)
        return out[0] = (char)point, 1;
    if (point < 0x800) {
        out[0] = (char)(0xc0 | point >> 6), out[1] = (char)(0x80 | (point & 0x3f));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xe0 | point >> 12), out[1] = (char)(0x80 | (point >> 6 & 0x3f));
        out[2] = (char)(0x80 | (point & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | point >> 18), out[1] = (char)(0x80 | (point >> 12 & 0x3f));
    out[2] = (char)(0x80 | (point >> 6 & 0x3f)), out[3] = (char)(0x80 | (point & 0x3f));
    return 4;
}

#endif
