/* KV block numbers: counts, reuse, and the asserts that guard them. */
#include "../../appliance/kv_pool.h" /* before cmocka.h, whose fail() is a macro */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void hands_out_every_block_once(void **state)
{
    (void)state;
    struct kv_pool p;
    bool seen[37] = {false};
    assert_int_equal(kv_pool_create(&p, 37, NULL), 0);
    for (uint32_t i = 0; i < 37; i++) {
        uint32_t b = kv_pool_alloc(&p);
        assert_true(b < 37 && !seen[b]);
        seen[b] = true;
        assert_true(kv_pool_writable(&p, b));
        assert_int_equal(p.n_free, 36 - i);
    }
    assert_int_equal(kv_pool_alloc(&p), KV_NO_BLOCK);
    kv_pool_unref(&p, 11);
    assert_int_equal(kv_pool_alloc(&p), 11);
    kv_pool_destroy(&p);
}

static void the_last_freed_comes_first(void **state)
{
    (void)state;
    struct kv_pool p;
    assert_int_equal(kv_pool_create(&p, 8, NULL), 0);
    uint32_t a = kv_pool_alloc(&p), b = kv_pool_alloc(&p), c = kv_pool_alloc(&p);
    kv_pool_unref(&p, b);
    kv_pool_unref(&p, a);
    assert_int_equal(kv_pool_alloc(&p), a);
    assert_int_equal(kv_pool_alloc(&p), b);
    kv_pool_unref(&p, c);
    assert_int_equal(kv_pool_alloc(&p), c);
    kv_pool_destroy(&p);
}

static void a_shared_block_is_free_with_its_last_reference(void **state)
{
    (void)state;
    struct kv_pool p;
    assert_int_equal(kv_pool_create(&p, 2, NULL), 0);
    uint32_t b = kv_pool_alloc(&p);
    kv_pool_ref(&p, b);
    kv_pool_ref(&p, b);
    assert_false(kv_pool_writable(&p, b));
    kv_pool_unref(&p, b);
    kv_pool_unref(&p, b);
    assert_int_equal(p.n_free, 1);
    assert_true(kv_pool_writable(&p, b));
    kv_pool_unref(&p, b);
    assert_int_equal(p.n_free, 2);
    assert_false(kv_pool_writable(&p, b));
    kv_pool_destroy(&p);
}

static void blocks_for_tokens(void **state)
{
    (void)state;
    assert_int_equal(kv_blocks_for(0), 0);
    assert_int_equal(kv_blocks_for(1), 1);
    assert_int_equal(kv_blocks_for(16), 1);
    assert_int_equal(kv_blocks_for(17), 2);
    assert_int_equal(kv_blocks_for(UINT32_MAX), 1u << 28);
}

static void refuses_a_pool_without_blocks(void **state)
{
    (void)state;
    struct kv_pool p;
    struct fail f = {0};
    assert_int_equal(kv_pool_create(&p, 0, &f), -EINVAL);
    assert_int_equal(f.code, -EINVAL);
    kv_pool_destroy(&p);
}

/* True if `misuse` ends its process with SIGABRT. */
static bool aborts(void (*misuse)(struct kv_pool *p, uint32_t block))
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct kv_pool p;
        int null = open("/dev/null", O_WRONLY);
        signal(SIGABRT, SIG_DFL);
        dup2(null, STDERR_FILENO);
        kv_pool_create(&p, 4, NULL);
        misuse(&p, kv_pool_alloc(&p));
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void correct_use(struct kv_pool *p, uint32_t block)
{
    kv_pool_ref(p, block);
    kv_pool_unref(p, block);
    kv_pool_unref(p, block);
}
static void double_free(struct kv_pool *p, uint32_t block)
{
    kv_pool_unref(p, block);
    kv_pool_unref(p, block);
}
static void ref_of_a_free_block(struct kv_pool *p, uint32_t block)
{
    kv_pool_unref(p, block);
    kv_pool_ref(p, block);
}
static void foreign_number(struct kv_pool *p, uint32_t block)
{
    kv_pool_unref(p, block + 4);
}

static void misuse_aborts(void **state)
{
    (void)state;
    assert_false(aborts(correct_use));
    assert_true(aborts(double_free));
    assert_true(aborts(ref_of_a_free_block));
    assert_true(aborts(foreign_number));
}

/* Random use against a plain model of counts. */
static void random_use(void **state)
{
    (void)state;
    enum { N = 50 };
    struct kv_pool p;
    uint32_t refs[N] = {0}, n_free = N;
    assert_int_equal(kv_pool_create(&p, N, NULL), 0);
    srand(1);
    for (int i = 0; i < 100000; i++) {
        uint32_t b = (uint32_t)rand() % N;
        switch (rand() % 3) {
        case 0:
            b = kv_pool_alloc(&p);
            assert_int_equal(b == KV_NO_BLOCK, n_free == 0);
            if (b != KV_NO_BLOCK) {
                assert_int_equal(refs[b], 0);
                refs[b] = 1;
                n_free--;
            }
            break;
        case 1:
            if (refs[b]) {
                kv_pool_ref(&p, b);
                refs[b]++;
            }
            break;
        default:
            if (refs[b]) {
                kv_pool_unref(&p, b);
                n_free += --refs[b] == 0;
            }
        }
        assert_int_equal(p.n_free, n_free);
        assert_int_equal(kv_pool_writable(&p, (uint32_t)i % N), refs[i % N] == 1);
    }
    kv_pool_destroy(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hands_out_every_block_once),
        cmocka_unit_test(the_last_freed_comes_first),
        cmocka_unit_test(a_shared_block_is_free_with_its_last_reference),
        cmocka_unit_test(blocks_for_tokens),
        cmocka_unit_test(refuses_a_pool_without_blocks),
        cmocka_unit_test(misuse_aborts),
        cmocka_unit_test(random_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
