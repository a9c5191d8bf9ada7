/* test_gguf.c - the GGUF parser and its getters: good files of both versions, and one file for each
 * way in which a file can be wrong, which must be refused with its place.
 */
#include "../../appliance/model/gguf.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_doc.h"

static const char *scratch_file(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/test.gguf", scratch_dir());
    return path;
}

/* Two tensors and a key of every kind. */
static void sample(struct doc *d)
{
    static const char *const texts[] = {"one", "", "three"};
    static const int32_t numbers[] = {1, 2, 3};
    static const float floats[] = {0.5f, -1.5f};
    static const uint8_t bools[] = {1, 0};
    doc_init(d);
    doc_text(d, "a.text", "hello");
    doc_u32(d, "a.u32", 7);
    doc_u32(d, "a.u3", 3); /* the start of a key before it */
    doc_i32(d, "a.i32", -7);
    doc_u64(d, "a.u64", 1ull << 40);
    doc_f32(d, "a.f32", 1.5f);
    doc_f64(d, "a.f64", 2.5);
    doc_bool(d, "a.bool", 1);
    doc_texts(d, "a.texts", texts, 3);
    doc_array(d, "a.numbers", 5, numbers, 3, 4);
    doc_array(d, "a.floats", 6, floats, 2, 4);
    doc_array(d, "a.bools", 7, bools, 2, 1);
    doc_u32(d, "general.alignment", 32);
    doc_tensor(d, "first", GPU_Q4_0, 64, 3);
    doc_tensor(d, "second", GPU_F32, 5, 1);
}

/* ---- good files ---- */

static void check_keys(const struct gguf *g)
{
    struct fail f = {0};
    uint32_t u = 0, n = 0;
    float x = 0, floats[2];
    bool b = false;
    uint8_t small[3];
    struct model_text t, *texts;
    assert_int_equal(gguf_text(g, "a.text", GGUF_NEEDED, &t, &f), 1);
    assert_int_equal(t.bytes, 5);
    assert_memory_equal(t.at, "hello", 5);
    assert_int_equal(gguf_u32(g, "a.u32", 0, 10, GGUF_NEEDED, &u, &f), 1);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_u32(g, "a.u3", 0, 10, GGUF_NEEDED, &u, &f), 1);
    assert_int_equal(u, 3);
    assert_int_equal(gguf_f32(g, "a.f32", GGUF_NEEDED, &x, &f), 1);
    assert_true(x == 1.5f);
    assert_int_equal(gguf_f32(g, "a.f64", GGUF_NEEDED, &x, &f), 1);
    assert_true(x == 2.5f);
    assert_int_equal(gguf_bool(g, "a.bool", GGUF_NEEDED, &b, &f), 1);
    assert_true(b);
    assert_int_equal(gguf_texts(g, "a.texts", GGUF_NEEDED, &texts, &n, &f), 1);
    assert_int_equal(n, 3);
    assert_int_equal(texts[1].bytes, 0);
    assert_memory_equal(texts[2].at, "three", 5);
    free(texts);
    assert_int_equal(gguf_u8s(g, "a.numbers", 3, 1, 3, GGUF_NEEDED, small, &f), 1);
    assert_int_equal(small[2], 3);
    assert_int_equal(gguf_f32s(g, "a.floats", 2, GGUF_NEEDED, floats, &f), 1);
    assert_true(floats[1] == -1.5f);
    assert_int_equal(gguf_u32(g, "a.absent", 0, 10, GGUF_OPTIONAL, &u, &f), 0);
    assert_int_equal(f.code, 0);
}

static void check_tensors(const struct gguf *g)
{
    uint64_t first_bytes = 2 * 18 * 3;
    const struct gpu_tensor *first = gguf_tensor(g, "first"), *second = gguf_tensor(g, "second");
    assert_non_null(first);
    assert_non_null(second);
    assert_null(gguf_tensor(g, "third"));
    assert_int_equal(first->bytes, first_bytes);
    assert_int_equal(first->ne[0], 64);
    assert_int_equal(first->ne[1], 3);
    assert_int_equal(first->ne[3], 1);
    assert_int_equal(first->offset, g->data_at);
    assert_int_equal(second->offset, g->data_at + ((first_bytes + 31) & ~31ull));
    assert_int_equal(second->offset + second->bytes, g->file_bytes);
}

static void check_good(uint32_t version, uint32_t alignment)
{
    struct doc d;
    struct fail f = {0};
    struct gguf *g;
    sample(&d);
    d.version = version;
    d.alignment = alignment;
    doc_u32(&d, "general.alignment", alignment);
    if (alignment == 32)
        doc_remove(&d, "general.alignment"); /* the default */
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, scratch_file());
    if (gguf_open(&g, scratch_file(), GGUF_ALL, &f) < 0)
        fail_msg("%s", f.text);
    assert_int_equal(g->version, version);
    assert_int_equal(g->alignment, alignment);
    assert_int_equal(g->meta_bytes, d.meta_bytes);
    assert_int_equal(g->data_at, d.data_at);
    check_keys(g);
    if (alignment == 32)
        check_tensors(g);
    gguf_close(g);
    bytes_free(&b);
    doc_free(&d);
}

static void good_files(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++)
        for (uint32_t alignment = 1; alignment <= 4096; alignment *= 2)
            check_good(version, alignment);
}

static void keys_only_does_not_look_at_tensors(void **state)
{
    (void)state;
    struct doc d;
    struct gguf *g;
    struct fail f = {0};
    sample(&d);
    struct bytes b = doc_bytes(&d);
    put_u32(&b, doc_tensor_type_at(&d, "first"), 999);
    bytes_save(&b, scratch_file());
    assert_int_equal(gguf_open(&g, scratch_file(), GGUF_KEYS_ONLY, &f), 0);
    assert_int_equal(g->n_tensors, 0);
    assert_non_null(gguf_find(g, "a.u32"));
    gguf_close(g);
    bytes_free(&b);
    doc_free(&d);
}

/* More than one read: the header moves while places are remembered. */
static void long_header(void **state)
{
    (void)state;
    struct doc d;
    struct gguf *g;
    struct fail f = {0};
    struct model_text t;
    char *text = malloc(300000);
    memset(text, 'x', 300000);
    text[299999] = 0;
    doc_init(&d);
    doc_text(&d, "b", "before");
    doc_text(&d, "long", text);
    doc_text(&d, "a", "after");
    doc_tensor(&d, "t", GPU_F16, 3, 1);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, scratch_file());
    if (gguf_open(&g, scratch_file(), GGUF_ALL, &f) < 0)
        fail_msg("%s", f.text);
    assert_int_equal(gguf_text(g, "long", GGUF_NEEDED, &t, &f), 1);
    assert_int_equal(t.bytes, 299999);
    assert_memory_equal(t.at, text, t.bytes);
    assert_int_equal(gguf_text(g, "b", GGUF_NEEDED, &t, &f), 1);
    assert_memory_equal(t.at, "before", 6);
    assert_int_equal(gguf_text(g, "a", GGUF_NEEDED, &t, &f), 1);
    assert_memory_equal(t.at, "after", 5);
    gguf_close(g);
    free(text);
    bytes_free(&b);
    doc_free(&d);
}

/* ---- faults of the file ---- */

struct spoilt {
    struct doc d;
    struct bytes b;
};

struct fault {
    const char *name;
    void (*before)(struct doc *d);   /* changes the document, or NULL */
    void (*after)(struct spoilt *s); /* changes the bytes, or NULL */
    int code;
    const char *place; /* must stand in the message */
};

#define AFTER(name, statement)                                                                     \
    static void name(struct spoilt *s)                                                             \
    {                                                                                              \
        struct bytes *b = &s->b;                                                                   \
        struct doc *d = &s->d;                                                                     \
        (void)b, (void)d;                                                                          \
        statement;                                                                                 \
    }
#define BEFORE(name, statement)                                                                    \
    static void name(struct doc *d)                                                                \
    {                                                                                              \
        statement;                                                                                 \
    }

AFTER(empty, b->n = 0)
AFTER(three_bytes, b->n = 3)
AFTER(header_cut, b->n = 20)
AFTER(other_magic, memcpy(b->at, "PK\3\4", 4))
AFTER(swapped_magic, memcpy(b->at, "FUGG", 4))
AFTER(version_1, put_u32(b, 4, 1))
AFTER(version_4, put_u32(b, 4, 4))
AFTER(version_0, put_u32(b, 4, 0))
AFTER(big_endian, put_u32(b, 4, 0x03000000))
AFTER(tensors_2_60, put_u64(b, 8, 1ull << 60))
AFTER(tensors_max, put_u64(b, 8, UINT64_MAX))
AFTER(keys_2_60, put_u64(b, 16, 1ull << 60))
AFTER(keys_max, put_u64(b, 16, UINT64_MAX))
AFTER(keys_5000, put_u64(b, 16, 5000))
AFTER(tensors_5000, put_u64(b, 8, 5000))
AFTER(key_too_many, put_u64(b, 16, d->n_keys + 1))
AFTER(key_length_2_60, put_u64(b, doc_key_at(d, "a.u32"), 1ull << 60))
AFTER(key_length_max, put_u64(b, doc_key_at(d, "a.u32"), UINT64_MAX))
AFTER(key_empty, put_u64(b, 24, 0))
AFTER(key_newline, b->at[24 + 8] = '\n')
AFTER(key_twice, memcpy(b->at + doc_key_at(d, "a.i32") + 8, "a.u32", 5))
AFTER(value_type_13, put_u32(b, doc_type_at(d, "a.u32"), 13))
AFTER(value_type_huge, put_u32(b, doc_type_at(d, "a.u32"), 0x104))
AFTER(bool_2, b->at[doc_value_at(d, "a.bool")] = 2)
AFTER(bool_in_array, b->at[doc_value_at(d, "a.bools") + 12 + 1] = 255)
AFTER(text_2_60, put_u64(b, doc_value_at(d, "a.text"), 1ull << 60))
AFTER(text_max, put_u64(b, doc_value_at(d, "a.text"), UINT64_MAX))
AFTER(array_nested, put_u32(b, doc_value_at(d, "a.numbers"), 9))
AFTER(array_type, put_u32(b, doc_value_at(d, "a.numbers"), 77))
AFTER(array_2_60, put_u64(b, doc_value_at(d, "a.numbers") + 4, 1ull << 60))
AFTER(array_overflow, put_u64(b, doc_value_at(d, "a.numbers") + 4, (1ull << 62) + 1))
AFTER(texts_2_60, put_u64(b, doc_value_at(d, "a.texts") + 4, 1ull << 60))
AFTER(texts_overflow, put_u64(b, doc_value_at(d, "a.texts") + 4, 1ull << 61))
AFTER(text_in_array, put_u64(b, doc_value_at(d, "a.texts") + 12, UINT64_MAX - 4))
BEFORE(alignment_0, doc_u32(d, "general.alignment", 0))
BEFORE(alignment_48, doc_u32(d, "general.alignment", 48))
BEFORE(alignment_u64, doc_u64(d, "general.alignment", 32))
BEFORE(alignment_text, doc_text(d, "general.alignment", "32"))
AFTER(dims_0, put_u32(b, doc_dims_at(d, "first"), 0))
AFTER(dims_5, put_u32(b, doc_dims_at(d, "first"), 5))
AFTER(dims_max, put_u32(b, doc_dims_at(d, "first"), UINT32_MAX))
AFTER(zero_dim, put_u64(b, doc_dims_at(d, "first") + 4 + 8, 0))
AFTER(zero_row, put_u64(b, doc_dims_at(d, "first") + 4, 0))
AFTER(row_of_33, put_u64(b, doc_dims_at(d, "first") + 4, 33))
AFTER(size_overflow, put_u64(b, doc_dims_at(d, "first") + 4, 1ull << 63))
AFTER(size_product, put_u64(b, doc_dims_at(d, "first") + 4 + 8, 1ull << 62))
AFTER(size_wraps_to_little, (put_u64(b, doc_dims_at(d, "first") + 4, 1ull << 32),
                             put_u64(b, doc_dims_at(d, "first") + 4 + 8, 1ull << 36)))
AFTER(type_4, put_u32(b, doc_tensor_type_at(d, "first"), 4))
AFTER(type_5, put_u32(b, doc_tensor_type_at(d, "first"), 5))
AFTER(type_31, put_u32(b, doc_tensor_type_at(d, "first"), 31))
AFTER(type_32, put_u32(b, doc_tensor_type_at(d, "first"), 32))
AFTER(type_33, put_u32(b, doc_tensor_type_at(d, "first"), 33))
AFTER(type_36, put_u32(b, doc_tensor_type_at(d, "first"), 36))
AFTER(type_37, put_u32(b, doc_tensor_type_at(d, "first"), 37))
AFTER(type_38, put_u32(b, doc_tensor_type_at(d, "first"), 38))
AFTER(type_q2_k, put_u32(b, doc_tensor_type_at(d, "first"), 10))
AFTER(type_mxfp4, put_u32(b, doc_tensor_type_at(d, "first"), 39))
AFTER(type_unknown, put_u32(b, doc_tensor_type_at(d, "first"), 4242))
AFTER(offset_unaligned, put_u64(b, doc_tensor_type_at(d, "second") + 4, 129))
AFTER(offset_beyond, put_u64(b, doc_tensor_type_at(d, "second") + 4, 1 << 20))
AFTER(offset_wraps, put_u64(b, doc_tensor_type_at(d, "second") + 4, UINT64_MAX - 31))
AFTER(end_wraps, put_u64(b, doc_tensor_type_at(d, "first") + 4, UINT64_MAX - 31))
AFTER(overlap, put_u64(b, doc_tensor_type_at(d, "second") + 4, 96))
AFTER(same_place, put_u64(b, doc_tensor_type_at(d, "second") + 4, 0))
AFTER(extent_beyond, put_u64(b, doc_dims_at(d, "second") + 4, 6))
AFTER(data_cut, b->n -= 1)
AFTER(no_data, b->n = d->meta_bytes)
AFTER(tensor_name_long, put_u64(b, d->tensors[0].at, 64))
AFTER(tensor_name_empty, put_u64(b, d->tensors[0].at, 0))
AFTER(tensor_name_control, b->at[d->tensors[0].at + 8] = 7)
BEFORE(tensor_twice, snprintf(d->tensors[1].name, 8, "first"))
BEFORE(last_tensor_gone, d->n_tensors = 1)
AFTER(tensor_too_many, put_u64(b, 8, 2))

static const struct fault faults[] = {
    {"empty file", NULL, empty, -EINVAL, "empty"},
    {"3 bytes", NULL, three_bytes, -EINVAL, "byte 0"},
    {"cut in the header", NULL, header_cut, -EINVAL, "byte 16"},
    {"another format", NULL, other_magic, -EINVAL, "'PK\\x03\\x04'"},
    {"big-endian magic", NULL, swapped_magic, -ENOTSUP, "big-endian"},
    {"version 1", NULL, version_1, -ENOTSUP, "version 1"},
    {"version 4", NULL, version_4, -ENOTSUP, "version 4"},
    {"version 0", NULL, version_0, -ENOTSUP, "version 0"},
    {"big-endian version", NULL, big_endian, -ENOTSUP, "big-endian"},
    {"2^60 tensors", NULL, tensors_2_60, -EINVAL, "byte 8: claims 1152921504606846976 tensors"},
    {"2^64 - 1 tensors", NULL, tensors_max, -EINVAL, "byte 8"},
    {"2^60 keys", NULL, keys_2_60, -EINVAL, "byte 16: claims 1152921504606846976 keys"},
    {"2^64 - 1 keys", NULL, keys_max, -EINVAL, "byte 16"},
    {"5000 keys", NULL, keys_5000, -EINVAL, "byte 16: claims 5000 keys, more than its"},
    {"5000 tensors", NULL, tensors_5000, -EINVAL, "byte 8: claims 5000 tensors, more than its"},
    {"a key too many", NULL, key_too_many, -EINVAL, "byte "},
    {"key length 2^60", NULL, key_length_2_60, -EINVAL, "a key takes 1152921504606846976"},
    {"key length 2^64 - 1", NULL, key_length_max, -EINVAL, "a key takes 18446744073709551615"},
    {"empty key", NULL, key_empty, -EINVAL, "byte 24: a key is empty"},
    {"newline in a key", NULL, key_newline, -EINVAL, "byte 32: a key holds the byte 0x0a"},
    {"key twice", NULL, key_twice, -EINVAL, "'a.u32' is there a second time"},
    {"value type 13", NULL, value_type_13, -EINVAL, "'a.u32' has the unknown value type 13"},
    {"value type 260", NULL, value_type_huge, -EINVAL, "'a.u32' has the unknown value type 260"},
    {"bool 2", NULL, bool_2, -EINVAL, "'a.bool' holds the bool 2"},
    {"bool 255 in an array", NULL, bool_in_array, -EINVAL, "'a.bools' holds the bool 255"},
    {"text of 2^60", NULL, text_2_60, -EINVAL, "a string takes 1152921504606846976"},
    {"text of 2^64 - 1", NULL, text_max, -EINVAL, "a string takes 18446744073709551615"},
    {"array of arrays", NULL, array_nested, -EINVAL, "'a.numbers' is an array of arrays"},
    {"array of type 77", NULL, array_type, -EINVAL, "unknown value type 77"},
    {"array of 2^60", NULL, array_2_60, -EINVAL, "an array takes"},
    {"array whose size wraps", NULL, array_overflow, -EINVAL, "an array takes"},
    {"2^60 texts", NULL, texts_2_60, -EINVAL, "an array takes"},
    {"texts whose size wraps", NULL, texts_overflow, -EINVAL, "an array takes"},
    {"text in an array", NULL, text_in_array, -EINVAL, "a string of an array takes"},
    {"alignment 0", alignment_0, NULL, -EINVAL, "'general.alignment' is 0"},
    {"alignment 48", alignment_48, NULL, -EINVAL, "'general.alignment' is 48"},
    {"alignment u64", alignment_u64, NULL, -EINVAL, "'general.alignment' has value type 10"},
    {"alignment text", alignment_text, NULL, -EINVAL, "'general.alignment' has value type 8"},
    {"no dimensions", NULL, dims_0, -EINVAL, "'first' has 0 dimensions"},
    {"5 dimensions", NULL, dims_5, -EINVAL, "'first' has 5 dimensions"},
    {"2^32 - 1 dimensions", NULL, dims_max, -EINVAL, "'first' has 4294967295 dimensions"},
    {"zero dimension", NULL, zero_dim, -EINVAL, "'first': dimension 1 is zero"},
    {"zero row", NULL, zero_row, -EINVAL, "'first': dimension 0 is zero"},
    {"row of 33", NULL, row_of_33, -EINVAL, "'first' has rows of 33 elements, Q4_0"},
    {"size overflows", NULL, size_overflow, -EINVAL, "'first' has "},
    {"size's product overflows", NULL, size_product, -EINVAL, "'first' has the shape"},
    {"size wraps to little", NULL, size_wraps_to_little, -EINVAL, "'first' has the shape"},
    {"type 4", NULL, type_4, -ENOTSUP, "'first' has type 4, which was removed"},
    {"type 5", NULL, type_5, -ENOTSUP, "type 5, which was removed"},
    {"type 31", NULL, type_31, -ENOTSUP, "type 31, which was removed"},
    {"type 32", NULL, type_32, -ENOTSUP, "type 32, which was removed"},
    {"type 33", NULL, type_33, -ENOTSUP, "type 33, which was removed"},
    {"type 36", NULL, type_36, -ENOTSUP, "type 36, which was removed"},
    {"type 37", NULL, type_37, -ENOTSUP, "type 37, which was removed"},
    {"type 38", NULL, type_38, -ENOTSUP, "type 38, which was removed"},
    {"type Q2_K", NULL, type_q2_k, -ENOTSUP, "'first' has type Q2_K"},
    {"type MXFP4", NULL, type_mxfp4, -ENOTSUP, "'first' has type MXFP4"},
    {"type 4242", NULL, type_unknown, -EINVAL, "'first' has the unknown type 4242"},
    {"offset unaligned", NULL, offset_unaligned, -EINVAL, "'second' has offset 129"},
    {"offset beyond", NULL, offset_beyond, -EINVAL, "'second' has 20 bytes at offset 1048576"},
    {"offset wraps", NULL, offset_wraps, -EINVAL, "'second' has 20 bytes at offset"},
    {"end wraps", NULL, end_wraps, -EINVAL, "'first' has 108 bytes at offset"},
    {"overlap", NULL, overlap, -EINVAL, "'second' overlaps tensor 'first'"},
    {"same place", NULL, same_place, -EINVAL, "overlaps tensor"},
    {"extent beyond", NULL, extent_beyond, -EINVAL, "'second' has 24 bytes at offset 128"},
    {"data cut by a byte", NULL, data_cut, -EINVAL, "'second' has 20 bytes at offset 128"},
    {"no data", NULL, no_data, -EINVAL, "of the data, which has only 0"},
    {"tensor name of 64", NULL, tensor_name_long, -EINVAL, "a tensor's name is 64 bytes long"},
    {"empty tensor name", NULL, tensor_name_empty, -EINVAL, "a tensor's name is empty"},
    {"bell in a tensor name", NULL, tensor_name_control, -EINVAL, "a tensor's name holds the byte"},
    {"tensor twice", tensor_twice, NULL, -EINVAL, "tensor 'first' is there twice"},
    {"a tensor too many", last_tensor_gone, tensor_too_many, -EINVAL, "a tensor's "},
};

static void expect_refusal(const struct fault *fault, enum gguf_what what)
{
    struct fail f = {0};
    struct gguf *g = NULL;
    int rc = gguf_open(&g, scratch_file(), what, &f);
    if (rc != fault->code || f.code != rc)
        fail_msg("%s: code %d where %d was due (%s)", fault->name, rc, fault->code, f.text);
    assert_null(g);
    if (!strstr(f.text, fault->place))
        fail_msg("%s: no '%s' in: %s", fault->name, fault->place, f.text);
    if (!strstr(f.text, "test.gguf: "))
        fail_msg("%s: no file in: %s", fault->name, f.text);
}

static void each_fault_is_refused_by_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct spoilt s;
        sample(&s.d);
        if (faults[i].before)
            faults[i].before(&s.d);
        s.b = doc_bytes(&s.d);
        if (faults[i].after)
            faults[i].after(&s);
        bytes_save(&s.b, scratch_file());
        expect_refusal(&faults[i], GGUF_ALL);
        bytes_free(&s.b);
        doc_free(&s.d);
    }
}

/* Wherever it is cut, the file is refused: nothing of it is optional. */
static void each_truncation_is_refused(void **state)
{
    (void)state;
    struct doc d;
    sample(&d);
    struct bytes b = doc_bytes(&d);
    for (size_t n = b.n; n-- > 0;) {
        struct fail f = {0};
        struct gguf *g;
        b.n = n;
        bytes_save(&b, scratch_file());
        assert_true(gguf_open(&g, scratch_file(), GGUF_ALL, &f) < 0);
        assert_true(f.text[0]);
    }
    bytes_free(&b);
    doc_free(&d);
}

/* Counts that the (sparse) file could hold, but that no model has. */
static void caps(void **state)
{
    (void)state;
    const struct fault too_many[] = {
        {"keys", NULL, NULL, -EINVAL, "at most 65536 are allowed"},
        {"tensors", NULL, NULL, -EINVAL, "at most 65536 are allowed"},
        {"header", NULL, NULL, -EINVAL, "makes the header longer than"},
    };
    for (int i = 0; i < 3; i++) {
        struct doc d;
        sample(&d);
        struct bytes b = doc_bytes(&d);
        if (i == 2)
            put_u64(&b, doc_value_at(&d, "a.text"), 1ull << 30);
        else
            put_u64(&b, i ? 8 : 16, 65537);
        bytes_save(&b, scratch_file());
        assert_int_equal(truncate(scratch_file(), 1ll << 32), 0);
        expect_refusal(&too_many[i], GGUF_ALL);
        assert_int_equal(unlink(scratch_file()), 0);
        bytes_free(&b);
        doc_free(&d);
    }
}

static void what_is_no_file(void **state)
{
    (void)state;
    struct fail f = {0}, f2 = {0}, f3 = {0};
    struct gguf *g;
    char fifo[600];
    assert_int_equal(gguf_open(&g, scratch_dir(), GGUF_ALL, &f), -EISDIR);
    assert_non_null(strstr(f.text, "folder"));
    assert_int_equal(gguf_open(&g, "/nonexistent/x.gguf", GGUF_ALL, &f2), -ENOENT);
    assert_non_null(strstr(f2.text, "/nonexistent/x.gguf"));
    snprintf(fifo, sizeof fifo, "%s/fifo", scratch_dir());
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gguf_open(&g, fifo, GGUF_ALL, &f3), -EINVAL); /* and does not hang */
    assert_non_null(strstr(f3.text, "not a regular file"));
}

/* A path longer than a message must leave room for the reason. */
static void long_paths_leave_room(void **state)
{
    (void)state;
    struct fail f = {0};
    struct gguf *g;
    char path[2000];
    memset(path, 'd', sizeof path);
    memcpy(path + sizeof path - 9, "/m\n.gguf", 9);
    assert_true(gguf_open(&g, path, GGUF_ALL, &f) < 0);
    assert_non_null(strstr(f.text, "/m?.gguf: cannot be opened: "));
}

/* ---- faults of values ---- */

#define REFUSED(call, part)                                                                        \
    do {                                                                                           \
        f = (struct fail){0};                                                                      \
        assert_true((call) < 0);                                                                   \
        if (!strstr(f.text, part))                                                                 \
            fail_msg("no '%s' in: %s", part, f.text);                                              \
    } while (0)

static void refuse_scalars(const struct gguf *g)
{
    struct fail f;
    uint32_t u = 99;
    float x = 99;
    bool flag;
    struct model_text t;
    REFUSED(gguf_u32(g, "a.absent", 0, 9, GGUF_NEEDED, &u, &f), "'a.absent' is missing");
    REFUSED(gguf_u32(g, "a.u32", 0, 6, GGUF_NEEDED, &u, &f), "'a.u32' is 7, it must be 0 to 6");
    REFUSED(gguf_u32(g, "a.u32", 8, 9, GGUF_NEEDED, &u, &f), "'a.u32' is 7, it must be 8 to 9");
    REFUSED(gguf_u32(g, "a.i32", 0, UINT32_MAX, GGUF_NEEDED, &u, &f), "'a.i32' is -7");
    REFUSED(gguf_u32(g, "a.u64", 0, UINT32_MAX, GGUF_NEEDED, &u, &f), "'a.u64' is 1099511627776");
    REFUSED(gguf_u32(g, "a.max", 0, UINT32_MAX, GGUF_NEEDED, &u, &f), "'a.max' is 922337");
    REFUSED(gguf_u32(g, "a.f32", 0, 9, GGUF_NEEDED, &u, &f), "'a.f32' is of type f32");
    REFUSED(gguf_u32(g, "a.bool", 0, 9, GGUF_NEEDED, &u, &f), "'a.bool' is of type bool");
    REFUSED(gguf_u32(g, "a.numbers", 0, 9, GGUF_NEEDED, &u, &f), "'a.numbers' is an array of i32");
    REFUSED(gguf_u32(g, "a.text", 0, 9, GGUF_OPTIONAL, &u, &f), "'a.text' is of type string");
    REFUSED(gguf_f32(g, "a.nan", GGUF_NEEDED, &x, &f), "'a.nan' is ");
    REFUSED(gguf_f32(g, "a.big", GGUF_NEEDED, &x, &f), "'a.big' is inf");
    REFUSED(gguf_f32(g, "a.u32", GGUF_NEEDED, &x, &f), "'a.u32' is of type u32");
    REFUSED(gguf_bool(g, "a.u32", GGUF_NEEDED, &flag, &f), "where a bool is needed");
    REFUSED(gguf_text(g, "a.u32", GGUF_NEEDED, &t, &f), "where a string is needed");
    assert_int_equal(u, 99); /* untouched by every refusal */
    assert_true(x == 99);
}

static void refuse_arrays(const struct gguf *g)
{
    struct fail f;
    uint32_t u = 99, n;
    float x[3];
    uint8_t small[3];
    struct model_text *texts;
    REFUSED(gguf_u32_uniform(g, "a.differ", 3, 0, 9, GGUF_NEEDED, &u, &f), "4 in layer 0 and 5 in");
    REFUSED(gguf_u32_uniform(g, "a.equal", 4, 0, 9, GGUF_NEEDED, &u, &f), "3 entries for 4 layers");
    REFUSED(gguf_u32_uniform(g, "a.equal", 3, 0, 3, GGUF_NEEDED, &u, &f), "it must be 0 to 3");
    REFUSED(gguf_u32_uniform(g, "a.floats", 2, 0, 9, GGUF_NEEDED, &u, &f), "an array of f32");
    REFUSED(gguf_u32_uniform(g, "a.none", 0, 0, 9, GGUF_NEEDED, &u, &f), "'a.none'");
    REFUSED(gguf_texts(g, "a.text", GGUF_NEEDED, &texts, &n, &f), "an array of strings");
    REFUSED(gguf_texts(g, "a.numbers", GGUF_NEEDED, &texts, &n, &f), "an array of i32");
    REFUSED(gguf_f32s(g, "a.bools", 2, GGUF_NEEDED, x, &f), "an array of bool");
    REFUSED(gguf_f32s(g, "a.floats", 3, GGUF_NEEDED, x, &f), "has 2 entries, it must have 3");
    REFUSED(gguf_u8s(g, "a.numbers", 2, 1, 3, GGUF_NEEDED, small, &f), "it must have 2");
    REFUSED(gguf_u8s(g, "a.numbers", 3, 1, 2, GGUF_NEEDED, small, &f), "entry 2 is 3");
    REFUSED(gguf_u8s(g, "a.texts", 3, 1, 2, GGUF_NEEDED, small, &f), "an array of string");
    assert_int_equal(u, 99);
    assert_int_equal(gguf_u32_uniform(g, "a.equal", 3, 0, 9, GGUF_NEEDED, &u, &f), 1);
    assert_int_equal(u, 4);
    assert_int_equal(gguf_u32_uniform(g, "a.u32", 3, 0, 9, GGUF_NEEDED, &u, &f), 1);
    assert_int_equal(u, 7);
}

static void getters_check_type_and_range(void **state)
{
    (void)state;
    const int32_t equal[] = {4, 4, 4}, differ[] = {4, 4, 5};
    struct doc d;
    struct gguf *g;
    struct fail f = {0};
    sample(&d);
    doc_f32(&d, "a.nan", (float)NAN);
    doc_f64(&d, "a.big", 1e300);
    doc_u64(&d, "a.max", UINT64_MAX);
    doc_array(&d, "a.equal", 5, equal, 3, 4);
    doc_array(&d, "a.differ", 5, differ, 3, 4);
    doc_array(&d, "a.none", 5, equal, 0, 4);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, scratch_file());
    assert_int_equal(gguf_open(&g, scratch_file(), GGUF_ALL, &f), 0);
    refuse_scalars(g);
    refuse_arrays(g);
    gguf_close(g);
    bytes_free(&b);
    doc_free(&d);
}

static void quoting(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(gguf_quote(out, sizeof out, "ab\n\x7f", 4), "'ab\\x0a\\x7f'");
    assert_string_equal(gguf_quote(out, 16, "abcdefghijklmnop", 16), "'abcdef...'");
    assert_string_equal(gguf_quote(out, sizeof out, "", 0), "''");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files),
        cmocka_unit_test(keys_only_does_not_look_at_tensors),
        cmocka_unit_test(long_header),
        cmocka_unit_test(each_fault_is_refused_by_place),
        cmocka_unit_test(each_truncation_is_refused),
        cmocka_unit_test(caps),
        cmocka_unit_test(what_is_no_file),
        cmocka_unit_test(long_paths_leave_room),
        cmocka_unit_test(getters_check_type_and_range),
        cmocka_unit_test(quoting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
