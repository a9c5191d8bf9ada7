/* test_segment_abuse.c - failure test (6): a client tries to cut, grow, map for writing, protect
 * anew, punch and seal every segment that it was given, by each way to it. It is refused, or hurts
 * itself; the engine and the clients beside it notice nothing.
 */
#include "../support/by_hand.h"
#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { UP, DOWN, PULSE, VOCABULARY, SEGMENTS };

static struct engine_process engine;
static struct hand neighbour;

static int start(void **state)
{
    (void)state;
    engine_start(&engine, golden_path("tiny_gguf/llama.Q4_0.gguf"), "--threads", "1", NULL);
    assert_true(hand_open(&neighbour, engine.instance, NULL));
    return 0;
}

static int finish(void **state)
{
    (void)state;
    hand_close(&neighbour);
    return engine_stop(&engine);
}

static off_t size_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_size;
}

static void refused(int rc)
{
    int code = errno;
    assert_int_equal(rc, -1);
    assert_true(code == EPERM || code == EACCES || code == EINVAL || code == EOPNOTSUPP);
}

static void resize(int fd)
{
    off_t bytes = size_of(fd);
    refused(ftruncate(fd, 0));
    refused(ftruncate(fd, bytes - 1));
    refused(ftruncate(fd, bytes + 4096));
    refused(fallocate(fd, 0, bytes, 4096));
    refused(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE));
    refused(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE));
    assert_int_equal(size_of(fd), bytes);
}

static void overwrite(int fd)
{
    off_t bytes = size_of(fd);
    refused((int)pwrite(fd, "x", 1, 0));
    refused(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes));
    refused(fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, bytes));
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_ptr_equal(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    refused(mprotect(at, 4096, PROT_READ | PROT_WRITE));
    refused(madvise(at, 4096, MADV_REMOVE));
    munmap(at, 4096);
}

/* A private copy may be written: it is nobody else's. */
static void copy(int fd)
{
    char *mine = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    const char *theirs = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(mine != MAP_FAILED && theirs != MAP_FAILED);
    char was = theirs[100];
    mine[100] = (char)(was + 1);
    assert_int_equal(theirs[100], was);
    munmap(mine, 4096);
    munmap((void *)theirs, 4096);
}

/* Another way to the same object. */
static int reopened(int fd, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, flags | O_CLOEXEC);
}

static void by_every_way(int fd, void (*abuse)(int fd))
{
    abuse(fd);
    int again = reopened(fd, O_RDWR);
    if (again >= 0) {
        abuse(again);
        close(again);
    }
    int cut = reopened(fd, O_RDWR | O_TRUNC);
    assert_true(cut < 0 || size_of(cut) == size_of(fd));
    if (cut >= 0)
        close(cut);
}

static void every_segment_resists(void **state)
{
    (void)state;
    struct hand h;
    assert_true(hand_open(&h, engine.instance, NULL));
    for (int i = UP; i < SEGMENTS; i++) {
        off_t bytes = size_of(h.fds[i]);
        by_every_way(h.fds[i], resize);
        if (i != UP) {
            by_every_way(h.fds[i], overwrite);
            copy(h.fds[i]);
        }
        assert_int_equal(size_of(h.fds[i]), bytes);
        assert_true(hand_nop(&h));
        assert_true(hand_nop(&neighbour));
    }
    assert_int_equal(order_acquire(&h.down->evicted), 0);
    hand_close(&h);
}

static void punch(int fd, off_t from, off_t bytes)
{
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, bytes), 0);
}

/* The prompt lies in a hole: it reads as zeros, which are tokens. */
static void a_hole_in_the_arena_is_a_prompt_of_zeros(void **state)
{
    (void)state;
    struct hand h;
    struct llm_cqe c;
    assert_true(hand_open(&h, engine.instance, NULL));
    off_t bytes = size_of(h.fds[UP]);
    assert_non_null(ring_reserve(&h.ring, 32));
    struct llm_sqe *q = hand_entry(&h);
    q->tokens_len = 32;
    punch(h.fds[UP], bytes - h.welcome.arena_bytes, h.welcome.arena_bytes);
    if (ring_submit(&h.ring))
        hand_wake(&h.up->sq_tail);
    do
        assert_true(hand_take(&h, &c));
    while (c.type == LLM_CQE_TOKENS);
    assert_int_equal(c.type, LLM_CQE_DONE);
    assert_true(hand_nop(&neighbour));
    hand_close(&h);
}

/* Its cursors are gone with the rest: they stand where no honest client's stood. */
static void a_hole_instead_of_all_is_the_end_of_its_owner(void **state)
{
    (void)state;
    struct hand h;
    assert_true(hand_open(&h, engine.instance, NULL));
    assert_true(hand_nop(&h));
    punch(h.fds[UP], 0, size_of(h.fds[UP]));
    hand_expect_eviction(&h, "sq_tail");
    assert_true(hand_nop(&neighbour));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_segment_resists),
        cmocka_unit_test(a_hole_in_the_arena_is_a_prompt_of_zeros),
        cmocka_unit_test(a_hole_instead_of_all_is_the_end_of_its_owner),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
