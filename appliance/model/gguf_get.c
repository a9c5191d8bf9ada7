/* gguf_get.c - looks keys and tensors up in an opened GGUF file, with their types and ranges
 * checked.
 *
 * The parser (gguf.c) has checked every length: a key's value lies inside meta. What is left to
 * check here is whether the value is what its reader takes it for.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gguf.h"

static const char *type_name(uint32_t type)
{
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return type < sizeof names / sizeof names[0] ? names[type] : "?";
}

/* ---- lookup ---- */

const struct gguf_key *gguf_find(const struct gguf *g, const char *name)
{
    size_t bytes = strlen(name);
    uint32_t low = 0, high = g->n_keys;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct gguf_key *k = &g->keys[mid];
        size_t common = k->name_bytes < bytes ? k->name_bytes : bytes;
        int order = memcmp(g->meta + k->name_at, name, common);
        if (order == 0)
            order = (k->name_bytes > bytes) - (k->name_bytes < bytes);
        if (order == 0)
            return k;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

const struct gpu_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    uint32_t low = 0, high = g->n_tensors;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        const struct gpu_tensor *t = &g->tensors[g->by_name[mid]];
        int order = strcmp(t->name, name);
        if (order == 0)
            return t;
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

/* 1 with *out, 0 if it may be missing, negative if it may not. */
static int find(const struct gguf *g, const char *name, enum gguf_need need,
                const struct gguf_key **out, struct fail *f)
{
    *out = gguf_find(g, name);
    if (*out)
        return 1;
    if (need == GGUF_OPTIONAL)
        return 0;
    return gguf_refuse(g, f, -EINVAL,
                       "key '%s' is missing and the model cannot be read without it; convert the "
                       "model again",
                       name);
}

static int wrong_type(const struct gguf *g, const char *name, const struct gguf_key *k,
                      const char *wanted, struct fail *f)
{
    bool array = k->type == GGUF_ARRAY;
    return gguf_refuse(g, f, -EINVAL, "key '%s' is %s%s where %s is needed: the file is damaged",
                       name, array ? "an array of " : "of type ",
                       type_name(array ? k->item : k->type), wanted);
}

/* ---- integers ---- */

/* Element i of an integer value of any width. u64 beyond i64 become INT64_MAX: out of every range.
 */
static bool integer_at(const struct gguf *g, const struct gguf_key *k, uint64_t i, int64_t *out)
{
    const uint8_t *at = g->meta + k->value_at;
    switch (k->item) {
#define CASE(id, type)                                                                             \
    case id: {                                                                                     \
        type v;                                                                                    \
        memcpy(&v, at + i * sizeof v, sizeof v);                                                   \
        *out = (int64_t)v;                                                                         \
        return true;                                                                               \
    }
        CASE(GGUF_U8, uint8_t)
        CASE(GGUF_I8, int8_t)
        CASE(GGUF_U16, uint16_t)
        CASE(GGUF_I16, int16_t)
        CASE(GGUF_U32, uint32_t)
        CASE(GGUF_I32, int32_t)
        CASE(GGUF_I64, int64_t)
#undef CASE
    case GGUF_U64: {
        uint64_t v;
        memcpy(&v, at + i * sizeof v, sizeof v);
        *out = v > INT64_MAX ? INT64_MAX : (int64_t)v;
        return true;
    }
    default:
        return false;
    }
}

static int in_range(const struct gguf *g, const char *name, int64_t v, uint32_t low, uint32_t high,
                    struct fail *f)
{
    if (v >= low && v <= high)
        return 1;
    return gguf_refuse(g, f, -EINVAL,
                       "key '%s' is %" PRId64 ", it must be %" PRIu32 " to %" PRIu32
                       ": the file is damaged or the model beyond this program",
                       name, v, low, high);
}

int gguf_u32(const struct gguf *g, const char *name, uint32_t low, uint32_t high,
             enum gguf_need need, uint32_t *out, struct fail *f)
{
    const struct gguf_key *k;
    int64_t v;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type == GGUF_ARRAY || !integer_at(g, k, 0, &v))
        return wrong_type(g, name, k, "an integer", f);
    if ((rc = in_range(g, name, v, low, high, f)) < 0)
        return rc;
    *out = (uint32_t)v;
    return 1;
}

int gguf_u32_uniform(const struct gguf *g, const char *name, uint32_t n, uint32_t low,
                     uint32_t high, enum gguf_need need, uint32_t *out, struct fail *f)
{
    const struct gguf_key *k;
    int64_t first, v;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_ARRAY)
        return gguf_u32(g, name, low, high, need, out, f);
    if (k->n != n)
        return gguf_refuse(g, f, -EINVAL,
                           "key '%s' has %" PRIu64 " entries for %" PRIu32 " layers: the file is "
                           "damaged",
                           name, k->n, n);
    if (n == 0 || !integer_at(g, k, 0, &first))
        return wrong_type(g, name, k, "an integer or an array of them", f);
    for (uint32_t i = 1; i < n; i++) {
        integer_at(g, k, i, &v);
        if (v != first)
            return gguf_refuse(g, f, -ENOTSUP,
                               "key '%s' is %" PRId64 " in layer 0 and %" PRId64
                               " in layer %" PRIu32
                               ": models whose layers differ are not supported",
                               name, first, v, i);
    }
    if ((rc = in_range(g, name, first, low, high, f)) < 0)
        return rc;
    *out = (uint32_t)first;
    return 1;
}

int gguf_u8s(const struct gguf *g, const char *name, uint32_t n, uint8_t low, uint8_t high,
             enum gguf_need need, uint8_t *out, struct fail *f)
{
    const struct gguf_key *k;
    int64_t v;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_ARRAY || (k->n && !integer_at(g, k, 0, &v)))
        return wrong_type(g, name, k, "an array of integers", f);
    if (k->n != n)
        return gguf_refuse(g, f, -EINVAL,
                           "key '%s' has %" PRIu64 " entries, it must have %" PRIu32
                           ": the file is damaged",
                           name, k->n, n);
    for (uint32_t i = 0; i < n; i++) {
        integer_at(g, k, i, &v);
        if (v < low || v > high)
            return gguf_refuse(g, f, -EINVAL,
                               "key '%s': entry %" PRIu32 " is %" PRId64
                               ", it must be %u to %u: the "
                               "file is damaged",
                               name, i, v, low, high);
        out[i] = (uint8_t)v;
    }
    return 1;
}

/* ---- other scalars ---- */

int gguf_f32(const struct gguf *g, const char *name, enum gguf_need need, float *out,
             struct fail *f)
{
    const struct gguf_key *k;
    float v = 0;
    double wide;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type == GGUF_F32) {
        memcpy(&v, g->meta + k->value_at, sizeof v);
    } else if (k->type == GGUF_F64) {
        memcpy(&wide, g->meta + k->value_at, sizeof wide);
        v = fabs(wide) <= 3.402823466e38 ? (float)wide : (float)INFINITY;
    } else {
        return wrong_type(g, name, k, "a float", f);
    }
    if (!isfinite(v))
        return gguf_refuse(g, f, -EINVAL, "key '%s' is %g, no usable number: the file is damaged",
                           name, (double)v);
    *out = v;
    return 1;
}

int gguf_bool(const struct gguf *g, const char *name, enum gguf_need need, bool *out,
              struct fail *f)
{
    const struct gguf_key *k;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_BOOL)
        return wrong_type(g, name, k, "a bool", f);
    *out = g->meta[k->value_at] != 0;
    return 1;
}

int gguf_text(const struct gguf *g, const char *name, enum gguf_need need, struct model_text *out,
              struct fail *f)
{
    const struct gguf_key *k;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_STRING)
        return wrong_type(g, name, k, "a string", f);
    *out = (struct model_text){(const char *)g->meta + k->value_at, (uint32_t)k->n};
    return 1;
}

/* ---- arrays ---- */

int gguf_texts(const struct gguf *g, const char *name, enum gguf_need need, struct model_text **out,
               uint32_t *n, struct fail *f)
{
    const struct gguf_key *k;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_ARRAY || k->item != GGUF_STRING)
        return wrong_type(g, name, k, "an array of strings", f);
    struct model_text *texts = calloc(k->n ? k->n : 1, sizeof *texts);
    if (!texts)
        return gguf_refuse(g, f, -ENOMEM, "no memory for the %" PRIu64 " strings of key '%s'", k->n,
                           name);
    const uint8_t *at = g->meta + k->value_at;
    for (uint64_t i = 0; i < k->n; i++) {
        uint64_t bytes;
        memcpy(&bytes, at, 8);
        texts[i] = (struct model_text){(const char *)at + 8, (uint32_t)bytes};
        at += 8 + bytes;
    }
    *out = texts;
    *n = (uint32_t)k->n; /* each took 8 bytes of meta: fits */
    return 1;
}

int gguf_f32s(const struct gguf *g, const char *name, uint32_t n, enum gguf_need need, float *out,
              struct fail *f)
{
    const struct gguf_key *k;
    int rc = find(g, name, need, &k, f);
    if (rc <= 0)
        return rc;
    if (k->type != GGUF_ARRAY || k->item != GGUF_F32)
        return wrong_type(g, name, k, "an array of f32", f);
    if (k->n != n)
        return gguf_refuse(g, f, -EINVAL,
                           "key '%s' has %" PRIu64 " entries, it must have %" PRIu32
                           ": the file is damaged",
                           name, k->n, n);
    memcpy(out, g->meta + k->value_at, (size_t)n * sizeof *out);
    return 1;
}
