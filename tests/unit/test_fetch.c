/* test_fetch.c - reading tensors: sizes around the chunks and the window, with a ring and without,
 * what is told of arrivals, and files that end too early.
 */
#include "../../appliance/model/fetch.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_doc.h"

enum { FILE_BYTES = 40 << 20 };

/* A GGUF file without tensors, followed by FILE_BYTES of a pattern that repeats nowhere near. */
struct big {
    char path[512];
    struct gguf *g;
    uint64_t start;
};

static uint32_t pattern(uint64_t word)
{
    return (uint32_t)((word * 0x9e3779b97f4a7c15ull) >> 32);
}

static void big_open(struct big *b)
{
    struct doc d;
    struct fail f = {0};
    uint32_t *words = malloc(FILE_BYTES);
    doc_init(&d);
    struct bytes head = doc_bytes(&d);
    b->start = head.n;
    for (uint64_t i = 0; i < FILE_BYTES / 4; i++)
        words[i] = pattern(i);
    bytes_add(&head, words, FILE_BYTES);
    snprintf(b->path, sizeof b->path, "%s/big.gguf", scratch_dir());
    bytes_save(&head, b->path);
    free(words);
    bytes_free(&head);
    if (gguf_open(&b->g, b->path, GGUF_ALL, &f) < 0)
        fail_msg("%s", f.text);
}

static void big_close(struct big *b)
{
    gguf_close(b->g);
    unlink(b->path);
}

struct arrivals {
    const char *dst;
    uint64_t bytes;
};

static void note_arrival(void *context, const void *at, uint64_t bytes)
{
    struct arrivals *a = context;
    assert_ptr_equal(at, a->dst + a->bytes); /* in order, no gaps */
    assert_true(bytes > 0);
    a->bytes += bytes;
}

static int read_part(struct fetch *x, const struct big *b, uint64_t offset, uint64_t bytes,
                     char *dst, struct arrivals *a, struct fail *f)
{
    *a = (struct arrivals){dst, 0};
    const struct fetch_job job = {.what = "part",
                                  .offset = b->start + offset,
                                  .bytes = bytes,
                                  .dst = dst,
                                  .arrived = note_arrival,
                                  .context = a};
    return fetch_read(x, &job, f);
}

static void check_part(struct fetch *x, const struct big *b, uint64_t offset, uint64_t bytes)
{
    struct arrivals a;
    struct fail f = {0};
    char *dst = aligned_alloc(64, (bytes + 127) & ~63ull);
    memset(dst, 0, bytes);
    dst[bytes] = 0x5a;
    if (read_part(x, b, offset, bytes, dst, &a, &f) < 0)
        fail_msg("%s", f.text);
    assert_int_equal(a.bytes, bytes);
    assert_int_equal(dst[bytes], 0x5a);
    for (uint64_t i = 0; i < bytes; i++) {
        uint32_t word = pattern((offset + i) / 4);
        if ((uint8_t)dst[i] != (uint8_t)(word >> 8 * ((offset + i) % 4)))
            fail_msg("byte %zu of %zu at %zu is wrong", (size_t)i, (size_t)bytes, (size_t)offset);
    }
    free(dst);
}

static void every_size_with_every_depth(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1,
                                     4095,
                                     FETCH_CHUNK - 1,
                                     FETCH_CHUNK,
                                     FETCH_CHUNK + 1,
                                     2 * FETCH_CHUNK,
                                     FETCH_DEPTH * FETCH_CHUNK,
                                     FETCH_DEPTH * FETCH_CHUNK + 1,
                                     (2 * FETCH_DEPTH + 3) * FETCH_CHUNK + 777};
    static const unsigned depths[] = {FETCH_PLAIN, 1, 3, FETCH_DEPTH};
    struct big b;
    big_open(&b);
    for (size_t d = 0; d < 4; d++) {
        struct fetch *x;
        struct fail f = {0};
        assert_int_equal(fetch_open(&x, b.g, depths[d], &f), 0);
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
            check_part(x, &b, s * 1013, sizes[s]);
        fetch_close(x);
    }
    big_close(&b);
}

/* Ends inside the part: refused with the place, nothing written past the part, and the next fetch
 * of what is there works all the same. */
static void a_file_that_ends_early(void **state)
{
    (void)state;
    static const unsigned depths[] = {FETCH_PLAIN, 1, FETCH_DEPTH};
    for (size_t d = 0; d < 3; d++) {
        struct big b;
        struct fetch *x;
        struct arrivals a;
        struct fail f = {0};
        char *dst = aligned_alloc(64, 20 << 20), place[64];
        big_open(&b);
        uint64_t end = b.start + 5 * FETCH_CHUNK + 123;
        assert_int_equal(fetch_open(&x, b.g, depths[d], &f), 0);
        assert_int_equal(truncate(b.path, (off_t)end), 0);
        assert_int_equal(read_part(x, &b, 100, 20 << 20, dst, &a, &f), -EIO);
        snprintf(place, sizeof place, "big.gguf: ends at byte %zu, inside tensor 'part'",
                 (size_t)end);
        if (depths[d] <= 1 && !strstr(f.text, place)) /* with more in flight any may be the first */
            fail_msg("no '%s' in: %s", place, f.text);
        assert_non_null(strstr(f.text, "inside tensor 'part'"));
        assert_true(a.bytes <= 5 * FETCH_CHUNK + 123);
        check_part(x, &b, 0, 3 * FETCH_CHUNK);
        fetch_close(x);
        big_close(&b);
        free(dst);
    }
}

/* An error that the ring reports is looked at again by the plain read, which names it. */
static void errors_are_named(void **state)
{
    (void)state;
    static const unsigned depths[] = {FETCH_PLAIN, FETCH_DEPTH};
    struct big b;
    big_open(&b);
    int good = b.g->fd;
    for (size_t d = 0; d < 2; d++) {
        struct fetch *x;
        struct arrivals a;
        struct fail f = {0};
        char *dst = aligned_alloc(64, 8 << 20);
        assert_int_equal(fetch_open(&x, b.g, depths[d], &f), 0);
        b.g->fd = open(b.path, O_WRONLY | O_CLOEXEC);
        assert_int_equal(read_part(x, &b, 0, 8 << 20, dst, &a, &f), -EBADF);
        assert_non_null(strstr(f.text, "tensor 'part' cannot be read at byte"));
        assert_non_null(strstr(f.text, strerror(EBADF)));
        assert_int_equal(a.bytes, 0);
        close(b.g->fd);
        b.g->fd = good;
        fetch_close(x);
        free(dst);
    }
    big_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_size_with_every_depth),
        cmocka_unit_test(a_file_that_ends_early),
        cmocka_unit_test(errors_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
