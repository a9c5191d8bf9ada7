/* template_unicode.c - properties and case mappings of characters, as Python's str methods use
 * them. The tables and their source are in template_unicode_tables.h.
 */
#include "template_internal.h"

struct case_run { /* one-to-one mappings: first, first + stride, ... (count) become cp + delta */
    uint32_t first;
    uint16_t count;
    uint16_t stride;
    int32_t delta;
};
struct case_special {
    uint32_t cp;
    uint32_t to[3]; /* 0: no more */
};

#include "template_unicode_tables.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Index of the last row whose first code point is at most cp. Row 0 begins at 0. */
static size_t run_of(uint32_t cp)
{
    size_t low = 0, high = COUNT(tpl_runs);
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (tpl_runs[middle] >> 11 <= cp)
            low = middle;
        else
            high = middle;
    }
    return low;
}

unsigned tpl_uni_flags(uint32_t cp)
{
    return cp < 0x80 ? tpl_ascii[cp] : tpl_runs[run_of(cp)] & 0x7ff;
}

bool tpl_uni_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 32);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* General category Lt. */
bool tpl_uni_is_title(uint32_t cp)
{
    return cp == 0x1c5 || cp == 0x1c8 || cp == 0x1cb || cp == 0x1f2 ||
           (cp >= 0x1f88 && cp <= 0x1f8f) || (cp >= 0x1f98 && cp <= 0x1f9f) ||
           (cp >= 0x1fa8 && cp <= 0x1faf) || cp == 0x1fbc || cp == 0x1fcc || cp == 0x1ffc;
}

/* Decimal digits come in whole tens, and a run of them begins with a zero. */
int tpl_uni_decimal(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9' ? (int)cp - '0' : -1;
    size_t run = run_of(cp);
    if (!(tpl_runs[run] & UNI_DECIMAL))
        return -1;
    return (int)((cp - (tpl_runs[run] >> 11)) % 10);
}

static uint32_t map(const struct case_run *runs, size_t n, uint32_t cp)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct case_run *r = &runs[middle];
        if (cp < r->first)
            high = middle;
        else if (cp > r->first + (r->count - 1u) * r->stride)
            low = middle + 1;
        else
            return (cp - r->first) % r->stride ? cp : cp + (uint32_t)r->delta;
    }
    return cp;
}

static unsigned convert(const struct case_run *runs, size_t n_runs,
                        const struct case_special *special, size_t n_special, uint32_t cp,
                        uint32_t out[3])
{
    for (size_t i = 0; cp >= 0x80 && i < n_special && special[i].cp <= cp; i++)
        if (special[i].cp == cp) {
            unsigned n = 0;
            while (n < 3 && special[i].to[n])
                out[n] = special[i].to[n], n++;
            return n;
        }
    out[0] = map(runs, n_runs, cp);
    return 1;
}

#define CONVERT(name)                                                                              \
    convert(tpl_##name##_runs, COUNT(tpl_##name##_runs), tpl_##name##_special,                     \
            COUNT(tpl_##name##_special), cp, out)

unsigned tpl_uni_upper(uint32_t cp, uint32_t out[3])
{
    return CONVERT(upper);
}
unsigned tpl_uni_lower(uint32_t cp, uint32_t out[3])
{
    return CONVERT(lower);
}
unsigned tpl_uni_title(uint32_t cp, uint32_t out[3])
{
    return CONVERT(title);
}

/* The table holds what differs from lower(); only Cherokee capitals, which fold to themselves, are
 * not in it. */
unsigned tpl_uni_fold(uint32_t cp, uint32_t out[3])
{
    if (cp >= 0x13a0 && cp <= 0x13f5)
        return out[0] = cp, 1;
    unsigned n = CONVERT(fold);
    return n == 1 && out[0] == cp ? tpl_uni_lower(cp, out) : n;
}

unsigned tpl_uni_put(char out[4], uint32_t cp)
{
    if (cp < 0x80)
        return out[0] = (char)cp, 1;
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}
