/* gguf.c - the parser of GGUF files. Source of the format: the GGUF specification (ggml,
 * docs/gguf.md) and ggml's published table of tensor types.
 *
 *   0   "GGUF"   4 u32 version   8 u64 tensors   16 u64 keys
 *   24  keys:    u64 length, name, u32 type, value      string: u64 length, bytes
 *                                                       array:  u32 type, u64 n, n values
 *       tensors: u64 length, name, u32 dims, u64 ne[dims], u32 type, u64 offset
 *       padding to the alignment (general.alignment, default 32), then the tensors' bytes
 *
 * Invariants
 *   1. Nothing is read from meta but behind `need`, which has compared the length with the file's.
 *   2. Memory: at most twice the bytes of header and tables, capped by GGUF_META_MAX; one record
 * per key and tensor, whose counts were compared with the bytes that remain and with their caps.
 *   3. While the file is parsed, places are kept as offsets: meta moves as it grows.
 *
 * The file is read, not mapped: a mapped file that somebody truncates raises SIGBUS.
 */

#include "gguf.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 24,
    KEY_BYTES_MIN = 8 + 1 + 4 + 1,            /* one letter, one byte of value */
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8, /* one letter, one dimension */
    FIRST_READ = 64 << 10,
    KEY_NAME_MAX = 65535, /* the specification's */
    KEY_SHOWN = 80
};

struct parser {
    struct gguf *g;
    struct fail *f;
    uint64_t at;       /* next byte to parse */
    uint64_t have;     /* bytes of the file in g->meta */
    uint64_t capacity; /* of g->meta */
};

/* ---- messages ---- */

int gguf_refuse(const struct gguf *g, struct fail *f, int code, const char *format, ...)
{
    char reason[sizeof f->text];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return fail(f, code, "%s: %s", g->shown, reason);
}

const char *gguf_quote(char *out, size_t size, const void *bytes, size_t n)
{
    const unsigned char *from = bytes;
    size_t at = 0, i = 0;
    assert(size >= 16);
    out[at++] = '\'';
    for (; i < n && at + 4 + 5 < size; i++) {
        if (from[i] >= 0x20 && from[i] < 0x7f)
            out[at++] = (char)from[i];
        else
            at += (size_t)snprintf(out + at, size - at, "\\x%02x", from[i]);
    }
    snprintf(out + at, size - at, "%s", i < n ? "...'" : "'");
    return out;
}

static void show_path(struct gguf *g, const char *path)
{
    size_t n = strlen(path), keep = sizeof g->shown - 1;
    if (n > keep)
        snprintf(g->shown, sizeof g->shown, "...%s", path + n - (keep - 3));
    else
        memcpy(g->shown, path, n + 1);
    for (char *c = g->shown; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

/* Bytes of a key's name that a message shows: a long one must not push the reason out. */
static int key_shown(const struct gguf_key *k)
{
    return k->name_bytes < KEY_SHOWN ? (int)k->name_bytes : KEY_SHOWN;
}

/* ---- reading with bounds ---- */

static int grow(struct parser *p, uint64_t end)
{
    uint64_t capacity = p->capacity ? p->capacity : FIRST_READ;
    while (capacity < end)
        capacity *= 2;
    if (capacity > p->g->file_bytes)
        capacity = p->g->file_bytes;
    uint8_t *meta = realloc(p->g->meta, capacity ? capacity : 1);
    if (!meta)
        return gguf_refuse(p->g, p->f, -ENOMEM, "no memory for %" PRIu64 " bytes of its header",
                           capacity);
    p->g->meta = meta;
    p->capacity = capacity;
    return 0;
}

/* Brings the file's first `end` bytes into meta. */
static int load(struct parser *p, uint64_t end)
{
    if (end > p->capacity && grow(p, end) < 0)
        return -ENOMEM;
    while (p->have < end) {
        ssize_t n = pread(p->g->fd, p->g->meta + p->have, p->capacity - p->have, (off_t)p->have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return gguf_refuse(p->g, p->f, -errno, "cannot be read at byte %" PRIu64 ": %s",
                               p->have, strerror(errno));
        if (n == 0)
            return gguf_refuse(p->g, p->f, -EINVAL,
                               "became shorter while it was read, at byte %" PRIu64 "; try again "
                               "when its download has ended",
                               p->have);
        p->have += (uint64_t)n;
    }
    return 0;
}

/* Makes sure that n more bytes are there to be parsed. */
static int need(struct parser *p, uint64_t n, const char *what)
{
    uint64_t left = p->g->file_bytes - p->at;
    if (n > left)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": %s takes %" PRIu64 " bytes and only %" PRIu64
                           " are left in the file: it is damaged or cut off; fetch it again",
                           p->at, what, n, left);
    if (n > GGUF_META_MAX - p->at)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": %s takes %" PRIu64 " bytes, which makes the header "
                           "longer than %d: the file is damaged; fetch it again",
                           p->at, what, n, GGUF_META_MAX);
    return p->at + n > p->have ? load(p, p->at + n) : 0;
}

static int take_u32(struct parser *p, uint32_t *out, const char *what)
{
    int rc = need(p, 4, what);
    if (rc < 0)
        return rc;
    memcpy(out, p->g->meta + p->at, 4);
    p->at += 4;
    return 0;
}

static int take_u64(struct parser *p, uint64_t *out, const char *what)
{
    int rc = need(p, 8, what);
    if (rc < 0)
        return rc;
    memcpy(out, p->g->meta + p->at, 8);
    p->at += 8;
    return 0;
}

/* A length and its bytes; leaves `at` behind them. */
static int take_string(struct parser *p, uint64_t *at, uint64_t *bytes, const char *what)
{
    int rc = take_u64(p, bytes, what);
    if (rc == 0)
        rc = need(p, *bytes, what);
    if (rc < 0)
        return rc;
    *at = p->at;
    p->at += *bytes;
    return 0;
}

/* A name: printable, so that messages may show it, and never empty. */
static int take_name(struct parser *p, uint64_t *at, uint64_t *bytes, uint64_t max,
                     const char *what)
{
    uint64_t start = p->at;
    int rc = take_string(p, at, bytes, what);
    if (rc < 0)
        return rc;
    if (*bytes == 0)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": %s is empty: the file is damaged", start, what);
    if (*bytes > max)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": %s is %" PRIu64 " bytes long, at most %" PRIu64
                           " are allowed: the file is damaged",
                           start, what, *bytes, max);
    for (uint64_t i = 0; i < *bytes; i++) {
        uint8_t c = p->g->meta[*at + i];
        if (c <= 0x20 || c >= 0x7f)
            return gguf_refuse(p->g, p->f, -EINVAL,
                               "byte %" PRIu64
                               ": %s holds the byte 0x%02x, which no name may hold: "
                               "the file is damaged",
                               *at + i, what, c);
    }
    return 0;
}

/* ---- header ---- */

static int check_magic(struct parser *p)
{
    char shown[32];
    const uint8_t *m = p->g->meta;
    if (memcmp(m, "GGUF", 4) == 0)
        return 0;
    if (memcmp(m, "FUGG", 4) == 0)
        return gguf_refuse(p->g, p->f, -ENOTSUP,
                           "byte 0: a big-endian GGUF file; convert the model for little-endian "
                           "machines");
    return gguf_refuse(
        p->g, p->f, -EINVAL,
        "byte 0: starts with %s, not with 'GGUF': this is no GGUF file; give a model "
        "in GGUF format",
        gguf_quote(shown, sizeof shown, m, 4));
}

static int check_version(struct parser *p)
{
    uint32_t v = p->g->version;
    if (v == 2 || v == 3)
        return 0;
    if (v != 0 && (v & 0xffff) == 0)
        return gguf_refuse(p->g, p->f, -ENOTSUP,
                           "byte 4: the version reads 0x%08" PRIx32
                           ", so this is a big-endian GGUF "
                           "file; convert the model for little-endian machines",
                           v);
    if (v == 1)
        return gguf_refuse(p->g, p->f, -ENOTSUP,
                           "byte 4: GGUF version 1, which was given up in 2023; convert the model "
                           "again with a current converter");
    return gguf_refuse(p->g, p->f, -ENOTSUP,
                       "byte 4: GGUF version %" PRIu32 " is not known (2 and 3 are); the file is "
                       "damaged or newer than this program",
                       v);
}

static int check_count(struct parser *p, uint64_t at, uint64_t n, uint64_t each, uint64_t max,
                       const char *what)
{
    uint64_t left = p->g->file_bytes - HEADER_BYTES;
    if (n > left / each)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": claims %" PRIu64 " %s, more than its %" PRIu64
                           " bytes can hold: it is damaged or cut off; fetch it again",
                           at, n, what, p->g->file_bytes);
    if (n > max)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": claims %" PRIu64 " %s, at most %" PRIu64
                           " are allowed: the file is damaged",
                           at, n, what, max);
    return 0;
}

static int read_header(struct parser *p)
{
    struct gguf *g = p->g;
    uint64_t n_tensors = 0, n_keys = 0;
    if (g->file_bytes == 0)
        return gguf_refuse(g, p->f, -EINVAL, "is empty; fetch the file again");
    int rc = need(p, 4, "the magic number");
    if (rc == 0)
        rc = check_magic(p);
    p->at = 4;
    if (rc == 0)
        rc = take_u32(p, &g->version, "the version");
    if (rc == 0)
        rc = check_version(p);
    if (rc == 0)
        rc = take_u64(p, &n_tensors, "the number of tensors");
    if (rc == 0)
        rc = take_u64(p, &n_keys, "the number of keys");
    if (rc == 0)
        rc = check_count(p, 8, n_tensors, TENSOR_BYTES_MIN, GGUF_TENSORS_MAX, "tensors");
    if (rc == 0)
        rc = check_count(p, 16, n_keys, KEY_BYTES_MIN, GGUF_KEYS_MAX, "keys");
    if (rc < 0)
        return rc;
    g->n_tensors = (uint32_t)n_tensors;
    g->n_keys = (uint32_t)n_keys;
    return 0;
}

/* ---- keys ---- */

/* Bytes of a scalar; 0 for strings, arrays and what is no type at all. */
static uint32_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {[GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
                                    [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
                                    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

static int check_bools(struct parser *p, const struct gguf_key *k, uint64_t at, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p->g->meta[at + i] > 1)
            return gguf_refuse(p->g, p->f, -EINVAL,
                               "byte %" PRIu64 ": key '%.*s' holds the bool %u, only 0 and 1 are "
                               "bools: the file is damaged",
                               at + i, key_shown(k), p->g->meta + k->name_at, p->g->meta[at + i]);
    return 0;
}

static int skip_strings(struct parser *p, uint64_t n)
{
    uint64_t at, bytes;
    for (uint64_t i = 0; i < n; i++) {
        int rc = take_string(p, &at, &bytes, "a string of an array");
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_array(struct parser *p, struct gguf_key *k)
{
    uint64_t bytes, start = p->at;
    uint32_t item = 0;
    int rc = take_u32(p, &item, "an array's type");
    if (rc == 0)
        rc = take_u64(p, &k->n, "an array's length");
    if (rc < 0)
        return rc;
    k->item = (uint8_t)item;
    k->value_at = p->at;
    if (item == GGUF_ARRAY)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64
                           ": key '%.*s' is an array of arrays, which no model uses: "
                           "the file is damaged",
                           start, key_shown(k), p->g->meta + k->name_at);
    uint32_t each = item == GGUF_STRING ? 8 : scalar_bytes(item);
    if (each == 0)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": key '%.*s' is an array of the unknown value type "
                           "%" PRIu32 ": the file is damaged",
                           start, key_shown(k), p->g->meta + k->name_at, item);
    if (__builtin_mul_overflow(k->n, (uint64_t)each, &bytes))
        bytes = UINT64_MAX;
    rc = need(p, bytes, "an array"); /* of strings: at least their lengths */
    if (rc < 0)
        return rc;
    if (item == GGUF_STRING)
        return skip_strings(p, k->n);
    p->at += bytes;
    return item == GGUF_BOOL ? check_bools(p, k, k->value_at, k->n) : 0;
}

static int read_value(struct parser *p, struct gguf_key *k, uint32_t type)
{
    k->type = k->item = (uint8_t)type;
    if (type == GGUF_STRING)
        return take_string(p, &k->value_at, &k->n, "a string");
    if (type == GGUF_ARRAY)
        return read_array(p, k);
    uint32_t bytes = scalar_bytes(type);
    if (bytes == 0)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "byte %" PRIu64 ": key '%.*s' has the unknown value type %" PRIu32
                           ": the file is damaged or newer than this program",
                           p->at - 4, key_shown(k), p->g->meta + k->name_at, type);
    int rc = need(p, bytes, "a value");
    if (rc < 0)
        return rc;
    k->value_at = p->at;
    k->n = 1;
    p->at += bytes;
    return type == GGUF_BOOL ? check_bools(p, k, k->value_at, 1) : 0;
}

static int read_key(struct parser *p, struct gguf_key *k)
{
    uint64_t bytes;
    uint32_t type = 0;
    int rc = take_name(p, &k->name_at, &bytes, KEY_NAME_MAX, "a key");
    if (rc == 0)
        rc = take_u32(p, &type, "a value's type");
    if (rc < 0)
        return rc;
    k->name_bytes = (uint32_t)bytes;
    return read_value(p, k, type);
}

static int compare_bytes(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_keys(const void *a, const void *b, void *meta)
{
    const struct gguf_key *x = a, *y = b;
    const uint8_t *m = meta;
    int order = compare_bytes(m + x->name_at, x->name_bytes, m + y->name_at, y->name_bytes);
    return order ? order : (x->name_at > y->name_at) - (x->name_at < y->name_at);
}

static int sort_keys(struct parser *p)
{
    struct gguf *g = p->g;
    qsort_r(g->keys, g->n_keys, sizeof g->keys[0], compare_keys, g->meta);
    for (uint32_t i = 1; i < g->n_keys; i++) {
        const struct gguf_key *a = &g->keys[i - 1], *b = &g->keys[i];
        if (a->name_bytes == b->name_bytes &&
            memcmp(g->meta + a->name_at, g->meta + b->name_at, a->name_bytes) == 0)
            return gguf_refuse(g, p->f, -EINVAL,
                               "byte %" PRIu64 ": key '%.*s' is there a second time (first at byte "
                               "%" PRIu64 "): the file is damaged",
                               b->name_at, key_shown(b), g->meta + b->name_at, a->name_at);
    }
    return 0;
}

static int read_keys(struct parser *p)
{
    struct gguf *g = p->g;
    g->keys = calloc(g->n_keys ? g->n_keys : 1, sizeof g->keys[0]);
    if (!g->keys)
        return gguf_refuse(g, p->f, -ENOMEM, "no memory for its %" PRIu32 " keys", g->n_keys);
    for (uint32_t i = 0; i < g->n_keys; i++) {
        int rc = read_key(p, &g->keys[i]);
        if (rc < 0)
            return rc;
    }
    return sort_keys(p);
}

static int read_alignment(struct parser *p)
{
    struct gguf *g = p->g;
    const struct gguf_key *k = gguf_find(g, "general.alignment");
    g->alignment = 32;
    if (!k)
        return 0;
    if (k->type != GGUF_U32)
        return gguf_refuse(g, p->f, -EINVAL,
                           "key 'general.alignment' has value type %u, it must be a u32 (4): the "
                           "file is damaged",
                           k->type);
    memcpy(&g->alignment, g->meta + k->value_at, 4);
    if (g->alignment == 0 || (g->alignment & (g->alignment - 1)))
        return gguf_refuse(g, p->f, -EINVAL,
                           "key 'general.alignment' is %" PRIu32 ", it must be a power of two: the "
                           "file is damaged",
                           g->alignment);
    return 0;
}

/* ---- tensors ---- */

/* Names of types that exist and that this build does not read; NULL for what never was a type. */
static const char *foreign_type(uint32_t type)
{
    static const char *const names[] = {
        [9] = "Q8_1",    [10] = "Q2_K",    [11] = "Q3_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
        [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
        [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",
        [39] = "MXFP4"};
    return type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

static bool removed_type(uint32_t type)
{
    return type == 4 || type == 5 || (type >= 31 && type <= 33) || (type >= 36 && type <= 38);
}

static int check_type(struct parser *p, const struct gpu_tensor *t, uint32_t type)
{
    if (gpu_type_info(type))
        return 0;
    if (removed_type(type))
        return gguf_refuse(p->g, p->f, -ENOTSUP,
                           "tensor '%s' has type %" PRIu32 ", which was removed from the format; "
                           "convert the model again with a current converter",
                           t->name, type);
    if (foreign_type(type))
        return gguf_refuse(
            p->g, p->f, -ENOTSUP,
            "tensor '%s' has type %s, which this program does not read (it reads F32, "
            "F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K); take another quantization "
            "of "
            "the model",
            t->name, foreign_type(type));
    return gguf_refuse(p->g, p->f, -EINVAL,
                       "tensor '%s' has the unknown type %" PRIu32 ": the file is damaged or newer "
                       "than this program",
                       t->name, type);
}

/* t->bytes from type and shape. */
static int measure(struct parser *p, struct gpu_tensor *t)
{
    const struct gpu_type_info *info = gpu_type_info(t->type);
    uint64_t bytes;
    if (t->ne[0] % info->block)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "tensor '%s' has rows of %" PRIu64 " elements, %s needs a multiple of "
                           "%" PRIu32 ": the file is damaged",
                           t->name, t->ne[0], info->name, info->block);
    bool over = __builtin_mul_overflow(t->ne[0] / info->block, (uint64_t)info->block_bytes, &bytes);
    for (int i = 1; i < GPU_TENSOR_DIMS; i++)
        over = over || __builtin_mul_overflow(bytes, t->ne[i], &bytes);
    if (over)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "tensor '%s' has the shape [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                           ", %" PRIu64 "], whose size overflows: the file is damaged",
                           t->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3]);
    t->bytes = bytes;
    return 0;
}

static int read_shape(struct parser *p, struct gpu_tensor *t)
{
    int rc = take_u32(p, &t->n_dims, "a tensor's number of dimensions");
    if (rc < 0)
        return rc;
    if (t->n_dims == 0 || t->n_dims > GPU_TENSOR_DIMS)
        return gguf_refuse(p->g, p->f, -EINVAL,
                           "tensor '%s' has %" PRIu32
                           " dimensions, 1 to 4 are allowed: the file is "
                           "damaged",
                           t->name, t->n_dims);
    for (uint32_t i = 0; i < GPU_TENSOR_DIMS; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && (rc = take_u64(p, &t->ne[i], "a tensor's dimension")) < 0)
            return rc;
        if (t->ne[i] == 0)
            return gguf_refuse(p->g, p->f, -EINVAL,
                               "tensor '%s': dimension %" PRIu32 " is zero: the file is damaged",
                               t->name, i);
    }
    return 0;
}

/* Leaves t->offset relative to the data; place_tensors makes it absolute. */
static int read_tensor(struct parser *p, struct gpu_tensor *t)
{
    uint64_t at, bytes;
    uint32_t type = 0;
    int rc = take_name(p, &at, &bytes, sizeof t->name - 1, "a tensor's name");
    if (rc < 0)
        return rc;
    memcpy(t->name, p->g->meta + at, bytes); /* NUL-terminated: t was calloc'ed */
    if ((rc = read_shape(p, t)) < 0 || (rc = take_u32(p, &type, "a tensor's type")) < 0 ||
        (rc = check_type(p, t, type)) < 0)
        return rc;
    t->type = (enum gpu_type)type;
    if ((rc = measure(p, t)) < 0)
        return rc;
    return take_u64(p, &t->offset, "a tensor's offset");
}

static int compare_names(const void *a, const void *b, void *tensors)
{
    const struct gpu_tensor *t = tensors;
    return strcmp(t[*(const uint32_t *)a].name, t[*(const uint32_t *)b].name);
}

static int compare_offsets(const void *a, const void *b, void *tensors)
{
    const struct gpu_tensor *t = tensors;
    uint64_t x = t[*(const uint32_t *)a].offset, y = t[*(const uint32_t *)b].offset;
    return (x > y) - (x < y);
}

static int index_tensors(struct parser *p)
{
    struct gguf *g = p->g;
    g->by_name = calloc(g->n_tensors ? g->n_tensors : 1, sizeof(uint32_t));
    g->by_offset = calloc(g->n_tensors ? g->n_tensors : 1, sizeof(uint32_t));
    if (!g->by_name || !g->by_offset)
        return gguf_refuse(g, p->f, -ENOMEM, "no memory for its %" PRIu32 " tensors", g->n_tensors);
    for (uint32_t i = 0; i < g->n_tensors; i++)
        g->by_name[i] = g->by_offset[i] = i;
    qsort_r(g->by_name, g->n_tensors, sizeof(uint32_t), compare_names, g->tensors);
    qsort_r(g->by_offset, g->n_tensors, sizeof(uint32_t), compare_offsets, g->tensors);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (strcmp(g->tensors[g->by_name[i - 1]].name, g->tensors[g->by_name[i]].name) == 0)
            return gguf_refuse(g, p->f, -EINVAL, "tensor '%s' is there twice: the file is damaged",
                               g->tensors[g->by_name[i]].name);
    return 0;
}

/* Checks where each tensor lies and makes its offset absolute. */
static int place_tensors(struct parser *p)
{
    struct gguf *g = p->g;
    uint64_t mask = (uint64_t)g->alignment - 1;
    g->data_at = (p->at + mask) & ~mask;
    uint64_t room = g->data_at < g->file_bytes ? g->file_bytes - g->data_at : 0;
    const struct gpu_tensor *before = NULL;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gpu_tensor *t = &g->tensors[g->by_offset[i]];
        if (t->offset & mask)
            return gguf_refuse(g, p->f, -EINVAL,
                               "tensor '%s' has offset %" PRIu64 ", no multiple of the alignment "
                               "%" PRIu32 ": the file is damaged",
                               t->name, t->offset, g->alignment);
        if (t->offset > room || t->bytes > room - t->offset)
            return gguf_refuse(g, p->f, -EINVAL,
                               "tensor '%s' has %" PRIu64 " bytes at offset %" PRIu64
                               " of the data, which has only %" PRIu64
                               ": the file is damaged or cut "
                               "off; fetch it again",
                               t->name, t->bytes, t->offset, room);
        t->offset += g->data_at;
        if (before && t->offset < before->offset + before->bytes)
            return gguf_refuse(g, p->f, -EINVAL,
                               "tensor '%s' overlaps tensor '%s' at byte %" PRIu64
                               ": the file is damaged",
                               t->name, before->name, t->offset);
        before = t;
    }
    return 0;
}

static int read_tensors(struct parser *p)
{
    struct gguf *g = p->g;
    g->tensors = calloc(g->n_tensors ? g->n_tensors : 1, sizeof g->tensors[0]);
    if (!g->tensors)
        return gguf_refuse(g, p->f, -ENOMEM, "no memory for its %" PRIu32 " tensors", g->n_tensors);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        int rc = read_tensor(p, &g->tensors[i]);
        if (rc < 0)
            return rc;
    }
    int rc = index_tensors(p);
    return rc < 0 ? rc : place_tensors(p);
}

/* ---- opening ---- */

static int open_file(struct gguf *g, const char *path, struct fail *f)
{
    struct stat st;
    /* NONBLOCK: a FIFO in the file's place must not hang the start */
    g->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (g->fd < 0)
        return gguf_refuse(g, f, -errno, "cannot be opened: %s", strerror(errno));
    if (fstat(g->fd, &st) < 0)
        return gguf_refuse(g, f, -errno, "cannot be examined: %s", strerror(errno));
    if (S_ISDIR(st.st_mode))
        return gguf_refuse(g, f, -EISDIR, "is a folder; give the .gguf file in it");
    if (!S_ISREG(st.st_mode))
        return gguf_refuse(g, f, -EINVAL, "is not a regular file; give a .gguf file");
    g->file_bytes = (uint64_t)st.st_size;
    return 0;
}

static int parse(struct gguf *g, enum gguf_what what, struct fail *f)
{
    struct parser p = {.g = g, .f = f};
    int rc = read_header(&p);
    if (rc == 0)
        rc = read_keys(&p);
    if (rc == 0)
        rc = read_alignment(&p);
    if (rc == 0 && what == GGUF_KEYS_ONLY)
        g->n_tensors = 0;
    if (rc == 0)
        rc = read_tensors(&p);
    if (rc < 0)
        return rc;
    g->meta_bytes = p.at;
    uint8_t *fitted = realloc(g->meta, g->meta_bytes);
    if (fitted)
        g->meta = fitted;
    return 0;
}

int gguf_open(struct gguf **out, const char *path, enum gguf_what what, struct fail *f)
{
    *out = NULL;
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return fail(f, -ENOMEM, "no memory to open %.200s", path);
    g->fd = -1;
    show_path(g, path);
    int rc = open_file(g, path, f);
    if (rc == 0)
        rc = parse(g, what, f);
    if (rc < 0) {
        gguf_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->fd >= 0)
        close(g->fd);
    free(g->meta);
    free(g->keys);
    free(g->tensors);
    free(g->by_name);
    free(g->by_offset);
    free(g);
}
