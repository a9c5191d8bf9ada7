/* test_option_map.c - the option map of a submission: what it gives, and what it refuses with which
 * sentence. Maps stand in blocks of exactly their size, so that a sanitizer sees a byte too far. */
#include "../../appliance/option_map.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

static struct option_map map;
static const char *why;

static int read_bytes(const void *bytes, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    why = NULL;
    int e = option_map_read(&map, exact, n, &why);
    assert_true(e == 0 || e == LLM_EPARAM);
    assert_true(!e == !why);
    free(exact);
    return e;
}

#define READ(literal) read_bytes(literal, sizeof(literal) - 1)

static void assert_refused(int e, const char *part)
{
    assert_int_equal(e, LLM_EPARAM);
    if (!strstr(why, part))
        fail_msg("'%s' does not say '%s'", why, part);
}

/* ---- what it gives ---- */

static void label_tokens_come_back(void **state)
{
    (void)state;
    static const char bytes[] = "\x81\xa6labels\x92\xc4\x04\x01\x02\x03\x80"
                                "\xc4\x08\xff\xff\xff\xff\x07\0\0\0";
    assert_int_equal(READ(bytes), 0);
    assert_int_equal(map.n_labels, 2);
    assert_int_equal(map.labels[0].n_tokens, 1);
    assert_int_equal(map.labels[1].n_tokens, 2);
    int32_t t[2];
    option_label_tokens((const uint8_t *)bytes, &map.labels[0], t);
    assert_int_equal((uint32_t)t[0], 0x80030201);
    option_label_tokens((const uint8_t *)bytes, &map.labels[1], t);
    assert_int_equal(t[0], -1);
    assert_int_equal(t[1], 7);
}

static void an_empty_map_gives_nothing(void **state)
{
    (void)state;
    map.n_labels = 9;
    assert_int_equal(READ("\x80"), 0);
    assert_int_equal(map.n_labels, 0);
    assert_int_equal(READ("\xde\0\0"), 0);
    assert_int_equal(READ("\xdf\0\0\0\0"), 0);
}

/* Lengths may be written in more bytes than they need. */
static void every_width_of_length(void **state)
{
    (void)state;
    static const char *const maps[] = {"81", "de0001", "df00000001"};
    static const char *const keys[] = {"a6", "d906", "da0006", "db00000006"};
    static const char *const arrays[] = {"91", "dc0001", "dd00000001"};
    static const char *const bins[] = {"c404", "c50004", "c600000004"};
    for (int i = 0; i < 3 * 4 * 3 * 3; i++) {
        char hex[128];
        uint8_t bytes[64];
        snprintf(hex, sizeof hex, "%s%s6c6162656c73%s%s2a000000", maps[i % 3], keys[i / 3 % 4],
                 arrays[i / 12 % 3], bins[i / 36]);
        size_t n = strlen(hex) / 2;
        for (size_t k = 0; k < n; k++) {
            unsigned v;
            assert_int_equal(sscanf(hex + 2 * k, "%2x", &v), 1);
            bytes[k] = (uint8_t)v;
        }
        assert_int_equal(read_bytes(bytes, n), 0);
        assert_int_equal(map.n_labels, 1);
        assert_int_equal(map.labels[0].at, n - 4);
        for (size_t cut = 0; cut < n; cut++)
            assert_refused(read_bytes(bytes, cut), "not one whole msgpack value");
    }
}

static void pack_labels(msgpack_sbuffer *b, size_t n, uint32_t tokens)
{
    msgpack_packer p;
    int32_t ids[2000];
    msgpack_sbuffer_init(b);
    msgpack_packer_init(&p, b, msgpack_sbuffer_write);
    msgpack_pack_map(&p, 1);
    msgpack_pack_str(&p, 6);
    msgpack_pack_str_body(&p, "labels", 6);
    msgpack_pack_array(&p, n);
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < tokens; k++)
            ids[k] = (int32_t)(1000 * i + k);
        msgpack_pack_bin(&p, tokens * sizeof *ids);
        msgpack_pack_bin_body(&p, ids, tokens * sizeof *ids);
    }
}

/* What another writer of the format makes is read; also at every limit. */
static void maps_of_another_writer(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t tokens;
    } cases[] = {{1, 1}, {15, 3}, {16, 63}, {17, 64}, {64, 255}, {1, 2000}, {8, 2000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        msgpack_sbuffer b;
        pack_labels(&b, cases[i].n, cases[i].tokens);
        assert_int_equal(read_bytes(b.data, b.size), 0);
        assert_int_equal(map.n_labels, cases[i].n);
        for (size_t k = 0; k < cases[i].n; k++) {
            int32_t ids[2000];
            assert_int_equal(map.labels[k].n_tokens, cases[i].tokens);
            option_label_tokens((const uint8_t *)b.data, &map.labels[k], ids);
            for (uint32_t t = 0; t < cases[i].tokens; t++)
                assert_int_equal(ids[t], 1000 * k + t);
        }
        msgpack_sbuffer_destroy(&b);
    }
}

/* ---- what it refuses ---- */

static void numbers_of_labels(void **state)
{
    (void)state;
    msgpack_sbuffer b;
    pack_labels(&b, LLM_CHOICES_MAX + 1, 1);
    assert_refused(read_bytes(b.data, b.size), "1 to 64");
    msgpack_sbuffer_destroy(&b);
    assert_refused(READ("\x81\xa6labels\x90"), "1 to 64");
    assert_refused(READ("\x81\xa6labels\x91\xc4\0"), "empty");
    assert_refused(READ("\x81\xa6labels\x91\xc4\x03"
                        "abc"),
                   "whole token ids");
}

static void values_of_other_types(void **state)
{
    (void)state;
    assert_refused(READ("\x81\xa6labels\xc0"),
                   "\"labels\" must be an array of bins with token ids, not nil");
    assert_refused(READ("\x81\xa6labels\x07"), "not an integer");
    assert_refused(READ("\x81\xa6labels\xc3"), "not a boolean");
    assert_refused(READ("\x81\xa6labels\xca\0\0\0\0"), "not a float");
    assert_refused(READ("\x81\xa6labels\x81\x01\x92\x01\xa1x"), "not a map");
    assert_refused(READ("\x81\xa6labels\xd6\x01\0\0\0\0"), "not an ext");
    assert_refused(READ("\x81\xa6labels\xc4\x04\0\0\0\0"), "not a bin");
    assert_refused(READ("\x81\xa6labels\x91\xa4text"),
                   "each of \"labels\" must be a bin with token ids, not a string");
    assert_refused(READ("\x81\xa6labels\x91\x91\x01"), "not an array");
    assert_refused(READ("\x81\xa6labels\x92\xc4\x04\0\0\0\0\x05"), "not an integer");
}

static void keys(void **state)
{
    (void)state;
    assert_refused(READ("\x81\xa5label\x01"), "does not know");
    assert_refused(READ("\x81\xa7labels2\x01"), "does not know");
    assert_refused(READ("\x81\xa0\x01"), "does not know");
    assert_refused(READ("\x81\xa6labelz\x91\xc4\x04\0\0\0\0"), "does not know");
    assert_refused(READ("\x81\x01\x02"), "keys must be strings, not an integer");
    assert_refused(READ("\x81\xc4\x06labels\x02"), "keys must be strings, not a bin");
    assert_refused(READ("\x81\x90\x02"), "keys must be strings, not an array");
    assert_refused(READ("\x82\xa6labels\x91\xc4\x04\0\0\0\0\xa6labels\x91\xc4\x04\0\0\0\0"),
                   "twice");
    assert_refused(READ("\x82\xa6labels\x91\xc4\x04\0\0\0\0\xa4stoq\xa1x"), "does not know");
    assert_refused(READ("\x82\xa4stop\x90\xa4stop\x90"), "\"stop\" stands twice");
    assert_refused(READ("\x82\xaalogit_bias\xc4\0\xaalogit_bias\xc4\0"), "twice");
    assert_refused(READ("\x82\xactop_logprobs\x01\xactop_logprobs\x01"), "twice");
}

static void stop_strings(void **state)
{
    (void)state;
    static const char both[] = "\x81\xa4stop\x92\xa2"
                               "ab\xc4\x03\0\xff\n";
    assert_int_equal(READ(both), 0);
    assert_int_equal(map.given, 1u << OPTION_STOP);
    assert_int_equal(map.n_stops, 2);
    assert_int_equal(map.stops[0].bytes, 2);
    assert_memory_equal(both + map.stops[0].at, "ab", 2);
    assert_int_equal(map.stops[1].bytes, 3);
    assert_memory_equal(both + map.stops[1].at, "\0\xff\n", 3);
    assert_int_equal(READ("\x81\xa4stop\x90"), 0);
    assert_int_equal(map.n_stops, 0);
    assert_refused(READ("\x81\xa4stop\xa1x"), "must be an array of strings or bins, not a string");
    assert_refused(READ("\x81\xa4stop\x91\x01"), "must be a string or a bin, not an integer");
    assert_refused(READ("\x81\xa4stop\x91\xa0"), "1 to 256 bytes");
    for (uint32_t n = 1; n <= 20; n++) { /* 16 of them at most */
        uint8_t bytes[64] = "\x81\xa4stop\xdc";
        bytes[8] = (uint8_t)n;
        for (uint32_t i = 0; i < n; i++)
            memcpy(bytes + 9 + 2 * i, "\xa1x", 2);
        if (n <= 16)
            assert_int_equal(read_bytes(bytes, 9 + 2 * n), 0);
        else
            assert_refused(read_bytes(bytes, 9 + 2 * n), "at most 16");
    }
    for (uint32_t n = 255; n <= 258; n++) { /* of 256 bytes at most */
        uint8_t bytes[300] = "\x81\xa4stop\x91\xc5";
        bytes[8] = (uint8_t)(n >> 8), bytes[9] = (uint8_t)n;
        if (n <= 256)
            assert_int_equal(read_bytes(bytes, 10 + n), 0);
        else
            assert_refused(read_bytes(bytes, 10 + n), "1 to 256 bytes");
    }
}

static size_t put_bias(uint8_t *to, int32_t token, float bias)
{
    memcpy(to, &token, 4);
    memcpy(to + 4, &bias, 4);
    return 8;
}

static void biases(void **state)
{
    (void)state;
    static const float bad[] = {100.1f, -100.1f, NAN, INFINITY, -INFINITY};
    uint8_t bytes[40] = "\x81\xaalogit_bias\xc4\x10";
    size_t head = 14, n = head;
    n += put_bias(bytes + n, 7, -100.0f);
    n += put_bias(bytes + n, -1, 100.0f); /* whether there is such a token is not judged here */
    assert_int_equal(read_bytes(bytes, n), 0);
    int32_t token;
    float bias;
    assert_int_equal(map.n_biases, 2);
    assert_int_equal(option_bias(bytes, &map, 0, &token, &bias), 0);
    assert_true(token == 7 && bias == -100.0f);
    assert_int_equal(option_bias(bytes, &map, 1, &token, &bias), 0);
    assert_true(token == -1 && bias == 100.0f);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_bias(bytes + head + 8, 7, bad[i]);
        assert_refused(read_bytes(bytes, n), "not in [-100, 100]");
    }
    bytes[13] = 0x0f;
    assert_refused(read_bytes(bytes, n - 1), "whole pairs");
    assert_refused(READ("\x81\xaalogit_bias\xa8xxxxxxxx"), "must be a bin");
    uint8_t *many = calloc(1, 8300);
    for (uint32_t k = 1023; k <= 1025; k++) {
        memcpy(many, "\x81\xaalogit_bias\xc5", 13);
        many[13] = (uint8_t)(8 * k >> 8), many[14] = (uint8_t)(8 * k);
        if (k <= 1024)
            assert_int_equal(read_bytes(many, 15 + 8 * k), 0);
        else
            assert_refused(read_bytes(many, 15 + 8 * k), "at most 1024");
    }
    free(many);
}

/* In every width that an integer may be written in. */
static void number_of_candidates(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        size_t n;
        int32_t top; /* -1: refused */
    } cases[] = {{"\x00", 1, 0},
                 {"\x14", 1, 20},
                 {"\x15", 1, -1},
                 {"\x7f", 1, -1},
                 {"\xcc\x14", 2, 20},
                 {"\xcc\xff", 2, -1},
                 {"\xcd\0\x05", 3, 5},
                 {"\xcd\1\x05", 3, -1},
                 {"\xce\0\0\0\x05", 5, 5},
                 {"\xce\1\0\0\x05", 5, -1},
                 {"\xcf\0\0\0\0\0\0\0\x05", 9, 5},
                 {"\xcf\0\0\0\1\0\0\0\x05", 9, -1},
                 {"\xcf\x80\0\0\0\0\0\0\x05", 9, -1},
                 {"\xd0\x05", 2, 5},
                 {"\xd0\x85", 2, -1},
                 {"\xd1\0\x05", 3, 5},
                 {"\xd1\xff\x05", 3, -1},
                 {"\xd2\0\0\0\x05", 5, 5},
                 {"\xd3\0\0\0\0\0\0\0\x05", 9, 5},
                 {"\xd3\xff\xff\xff\xff\xff\xff\xff\xff", 9, -1},
                 {"\xe0", 1, -1},
                 {"\xff", 1, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t bytes[32] = "\x81\xactop_logprobs";
        memcpy(bytes + 14, cases[i].value, cases[i].n);
        int e = read_bytes(bytes, 14 + cases[i].n);
        if (cases[i].top < 0) {
            assert_refused(e, "from 0 to 20");
            continue;
        }
        assert_int_equal(e, 0);
        assert_int_equal(map.top, cases[i].top);
    }
    assert_refused(READ("\x81\xactop_logprobs\xca\0\0\0\0"), "not a float");
    assert_refused(READ("\x81\xactop_logprobs\xc0"), "not nil");
}

static void all_keys_in_any_order(void **state)
{
    (void)state;
    assert_int_equal(READ("\x83\xactop_logprobs\x03\xaalogit_bias\xc4\0\xa4stop\x91\xa1x"), 0);
    assert_int_equal(map.given, 1u << OPTION_TOP | 1u << OPTION_BIAS | 1u << OPTION_STOP);
    assert_int_equal(READ("\x80"), 0); /* nothing of it is left */
    assert_int_equal(map.given + map.n_stops + map.n_biases + map.top, 0);
}

static void what_is_no_map(void **state)
{
    (void)state;
    assert_refused(READ(""), "not one whole msgpack value");
    assert_refused(READ("\xc1"), "not one whole");
    assert_refused(READ("\x90"), "must be a msgpack map, not an array");
    assert_refused(READ("\x05"), "not an integer");
    assert_refused(READ("\xff"), "not an integer");
    assert_refused(READ("\xa3"
                        "abc"),
                   "not a string");
    assert_refused(READ("\xcb\0\0\0\0\0\0\0\0"), "not a float");
    assert_refused(READ("\xc7\0\x01"), "not an ext");
    assert_refused(READ("\x80\x80"), "followed by other bytes");
    assert_refused(READ("\x80\0"), "followed by other bytes");
}

/* Ill-formed bytes inside an option that is unknown anyway: still ill-formed. */
static void whole_before_anything_else(void **state)
{
    (void)state;
    assert_refused(READ("\x81\xa4stop\xc1"), "not one whole");
    assert_refused(READ("\x81\xa4stop\x92\x01"), "not one whole");
    assert_refused(READ("\x81\x01\xc4\x09"), "not one whole");
    assert_refused(READ("\x82\xa4stop\x01"), "not one whole");
}

static void announced_but_not_there(void **state)
{
    (void)state;
    assert_refused(READ("\xdf\xff\xff\xff\xff"), "not one whole");
    assert_refused(READ("\x81\xa6labels\xdd\xff\xff\xff\xff\xc4\x04\0\0\0\0"), "not one whole");
    assert_refused(READ("\x81\xa6labels\x91\xc6\xff\xff\xff\xff\0\0\0\0"), "not one whole");
    assert_refused(READ("\x81\xdb\xff\xff\xff\xff"
                        "labels"),
                   "not one whole");
    assert_refused(READ("\x81\xa6labels\xc9\xff\xff\xff\xff\x01"), "not one whole");
}

static void deep_nesting_is_walked_flat(void **state)
{
    (void)state;
    static uint8_t bytes[LLM_OPTIONS_MAX + 1];
    memset(bytes, 0x91, sizeof bytes);
    memcpy(bytes, "\x81\xa1x", 3);
    bytes[LLM_OPTIONS_MAX - 1] = 0xc0;
    assert_refused(read_bytes(bytes, LLM_OPTIONS_MAX), "does not know");
    assert_refused(read_bytes(bytes, LLM_OPTIONS_MAX - 1), "not one whole");
    assert_refused(read_bytes(bytes, LLM_OPTIONS_MAX + 1), "longer than");
    /* as many heads as can be that each announce 2^32 - 1 more: the count must not wrap to zero */
    for (size_t i = 0; i + 5 <= LLM_OPTIONS_MAX; i += 5)
        memcpy(bytes + i, "\xdd\xff\xff\xff\xff", 5);
    assert_refused(read_bytes(bytes, LLM_OPTIONS_MAX), "not one whole");
}

/* Each family of the specification once, as the value of a key that is refused: its length is
 * understood where the refusal is for the key and not for the form. */
static void every_family_has_its_length(void **state)
{
    (void)state;
    static const struct {
        uint8_t head;
        uint8_t bytes; /* that follow, zeros */
    } families[] = {{0xc0, 0}, {0xc2, 0}, {0xc3, 0},  {0xc4, 1}, {0xc5, 2}, {0xc6, 4}, {0xc7, 2},
                    {0xc8, 3}, {0xc9, 5}, {0xca, 4},  {0xcb, 8}, {0xcc, 1}, {0xcd, 2}, {0xce, 4},
                    {0xcf, 8}, {0xd0, 1}, {0xd1, 2},  {0xd2, 4}, {0xd3, 8}, {0xd4, 2}, {0xd5, 3},
                    {0xd6, 5}, {0xd7, 9}, {0xd8, 17}, {0xd9, 1}, {0xda, 2}, {0xdb, 4}, {0xdc, 2},
                    {0xdd, 4}, {0xde, 2}, {0xdf, 4},  {0x00, 0}, {0x7f, 0}, {0x80, 0}, {0x90, 0},
                    {0xa0, 0}, {0xe0, 0}, {0xff, 0}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        uint8_t bytes[32] = {0x81, 0xa1, 'x', families[i].head};
        size_t n = 4u + families[i].bytes;
        assert_refused(read_bytes(bytes, n), "does not know");
        assert_refused(read_bytes(bytes, n + 1), "followed by other bytes");
        assert_refused(read_bytes(bytes, n - 1), "not one whole");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(label_tokens_come_back),
        cmocka_unit_test(an_empty_map_gives_nothing),
        cmocka_unit_test(every_width_of_length),
        cmocka_unit_test(maps_of_another_writer),
        cmocka_unit_test(numbers_of_labels),
        cmocka_unit_test(values_of_other_types),
        cmocka_unit_test(keys),
        cmocka_unit_test(stop_strings),
        cmocka_unit_test(biases),
        cmocka_unit_test(number_of_candidates),
        cmocka_unit_test(all_keys_in_any_order),
        cmocka_unit_test(what_is_no_map),
        cmocka_unit_test(whole_before_anything_else),
        cmocka_unit_test(announced_but_not_there),
        cmocka_unit_test(deep_nesting_is_walked_flat),
        cmocka_unit_test(every_family_has_its_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
