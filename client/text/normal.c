/* normal.c - U+FFFD for what is no UTF-8, and NFC.
 *
 * NFC (Unicode Standard Annex 15) takes decomposition and composition from utf8proc; the order of
 * combining marks is made here, because utf8proc sorts a run of them by insertion: a megabyte of
 * marks would take minutes.
 */
#include "normal.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "utf8.h"

/* ---- U+FFFD ---- */

static bool all_ascii(const char *at)
{
    uint64_t block;
    memcpy(&block, at, sizeof block);
    return (block & 0x8080808080808080ULL) == 0;
}

/* Bytes of the text with its ill-formed parts replaced; *ill counts them. */
static size_t measure(const char *text, size_t bytes, size_t *ill)
{
    size_t total = 0;
    *ill = 0;
    for (size_t i = 0; i < bytes;) {
        if (bytes - i >= 8 && all_ascii(text + i)) {
            i += 8, total += 8;
            continue;
        }
        unsigned used;
        bool fits = utf8_decode(text + i, bytes - i, &used) >= 0;
        *ill += !fits;
        total += fits ? used : UTF8_REPLACEMENT_BYTES;
        i += used;
    }
    return total;
}

int normal_well_formed(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    size_t ill, total = measure(text, bytes, &ill);
    *out = NULL;
    if (ill == 0)
        return 0;
    char *to = *out = malloc(total);
    if (!to)
        return -ENOMEM;
    *out_bytes = total;
    for (size_t i = 0; i < bytes;) {
        unsigned used;
        bool fits = utf8_decode(text + i, bytes - i, &used) >= 0;
        size_t length = fits ? used : UTF8_REPLACEMENT_BYTES;
        memcpy(to, fits ? text + i : UTF8_REPLACEMENT, length);
        to += length;
        i += used;
    }
    return 0;
}

/* ---- NFC ---- */

struct points {
    utf8proc_int32_t *at;
    size_t n, capacity;
};

/* Ranges in which every character is its own NFC and no mark: a text of them is composed. They
 * spare most texts the work; leaving one out is not an error. */
static bool is_stable(int32_t c)
{
    return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x2027) ||
           (c >= 0x3001 && c <= 0x3029) || (c >= 0x3041 && c <= 0x3096) ||
           (c >= 0x30a1 && c <= 0x30fe) || (c >= 0x3400 && c <= 0x4dbf) ||
           (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xac00 && c <= 0xd7a3) ||
           (c >= 0xff01 && c <= 0xff5e);
}

static bool looks_composed(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        unsigned used;
        if (!is_stable(utf8_decode(text + i, bytes - i, &used)))
            return false;
        i += used;
    }
    return true;
}

/* Appends the canonical decomposition of one character. */
static int decompose(struct points *p, int32_t point)
{
    enum { MOST = 8 }; /* Unicode's longest canonical decomposition has 4 */
    if (p->capacity - p->n < MOST) {
        size_t capacity = p->capacity + p->capacity / 2 + 64;
        void *at = realloc(p->at, capacity * sizeof *p->at);
        if (!at)
            return -ENOMEM;
        p->at = at, p->capacity = capacity;
    }
    int last_class = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char(point, p->at + p->n, MOST, UTF8PROC_DECOMPOSE, &last_class);
    if (n < 0 || n > MOST) { /* not assigned: stands for itself */
        p->at[p->n] = point;
        n = 1;
    }
    p->n += (size_t)n;
    return 0;
}

static unsigned combining_class(utf8proc_int32_t point)
{
    return (unsigned)utf8proc_get_property(point)->combining_class & 0xff;
}

/* Sorts a run of marks by combining class, stable: counting, so that long runs are no trap. */
static int sort_run(utf8proc_int32_t *at, size_t n)
{
    size_t starts[257] = {0};
    utf8proc_int32_t *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        starts[combining_class(at[i]) + 1]++;
    for (unsigned c = 0; c < 256; c++)
        starts[c + 1] += starts[c];
    for (size_t i = 0; i < n; i++)
        sorted[starts[combining_class(at[i])]++] = at[i];
    memcpy(at, sorted, n * sizeof *sorted);
    free(sorted);
    return 0;
}

static int order_marks(struct points *p)
{
    for (size_t i = 0; i < p->n;) {
        unsigned class = combining_class(p->at[i]), previous = class;
        size_t end = i + 1;
        bool in_order = true;
        for (; class && end < p->n && (class = combining_class(p->at[end])) != 0; end++) {
            in_order &= previous <= class;
            previous = class;
        }
        if (!in_order && sort_run(p->at + i, end - i) < 0)
            return -ENOMEM;
        i = end;
    }
    return 0;
}

static int write_points(const struct points *p, char **out, size_t *out_bytes)
{
    size_t room;
    if (__builtin_mul_overflow(p->n, (size_t)4, &room))
        return -E2BIG;
    char *to = *out = malloc(room + 1);
    if (!to)
        return -ENOMEM;
    for (size_t i = 0; i < p->n; i++)
        to += utf8_encode((uint32_t)p->at[i], to);
    *out_bytes = (size_t)(to - *out);
    return 0;
}

int normal_compose(const char *text, size_t bytes, char **out, size_t *out_bytes)
{
    *out = NULL;
    if (looks_composed(text, bytes))
        return 0;
    struct points p = {0};
    int rc = 0;
    for (size_t i = 0; i < bytes && rc == 0;) {
        unsigned used;
        rc = decompose(&p, utf8_decode(text + i, bytes - i, &used));
        i += used;
    }
    if (rc == 0)
        rc = order_marks(&p);
    if (rc == 0) {
        utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_COMPOSE;
        utf8proc_ssize_t n = utf8proc_normalize_utf32(p.at, (utf8proc_ssize_t)p.n, options);
        p.n = n < 0 ? 0 : (size_t)n;
        rc = n < 0 ? -EINVAL : write_points(&p, out, out_bytes);
    }
    free(p.at);
    return rc;
}
