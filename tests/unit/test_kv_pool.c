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

/* ---- blocks that can be found ---- */

/* All in the same bucket. */
static struct kv_hash hash_number(uint32_t i)
{
    return (struct kv_hash){(uint64_t)i << 40, i};
}

static void found_until_forgotten(void **state)
{
    (void)state;
    struct kv_pool p;
    assert_int_equal(kv_pool_create(&p, 4, NULL), 0);
    uint32_t a = kv_pool_alloc(&p), b = kv_pool_alloc(&p);
    assert_int_equal(kv_pool_find(&p, hash_number(1)), KV_NO_BLOCK);
    assert_true(kv_pool_publish(&p, a, hash_number(1)));
    assert_true(kv_pool_publish(&p, a, hash_number(2))); /* has its hash already */
    assert_false(kv_pool_publish(&p, b, hash_number(1)));
    assert_int_equal(kv_pool_find(&p, hash_number(1)), a);
    assert_int_equal(kv_pool_find(&p, hash_number(2)), KV_NO_BLOCK);
    assert_false(kv_pool_writable(&p, a)); /* somebody may find it */
    assert_true(kv_pool_writable(&p, b));
    kv_pool_unref(&p, a);
    assert_int_equal(p.n_free, 3);
    assert_int_equal(p.n_cached, 1);
    kv_pool_ref(&p, a); /* found again */
    assert_int_equal(p.n_cached, 0);
    kv_pool_forget(&p, a);
    assert_true(kv_pool_writable(&p, a));
    assert_int_equal(kv_pool_find(&p, hash_number(1)), KV_NO_BLOCK);
    kv_pool_forget(&p, a);
    assert_true(kv_pool_publish(&p, b, hash_number(1)));
    kv_pool_unref(&p, b);
    kv_pool_forget(&p, b); /* cached: free from now on */
    assert_int_equal(p.n_cached, 0);
    assert_int_equal(p.n_free, 3);
    kv_pool_destroy(&p);
}

static void free_blocks_go_before_cached_ones_and_old_before_new(void **state)
{
    (void)state;
    struct kv_pool p;
    uint32_t b[4];
    assert_int_equal(kv_pool_create(&p, 4, NULL), 0);
    for (uint32_t i = 0; i < 4; i++)
        b[i] = kv_pool_alloc(&p);
    for (uint32_t i = 0; i < 3; i++)
        kv_pool_publish(&p, b[i], hash_number(i));
    kv_pool_unref(&p, b[1]);
    kv_pool_unref(&p, b[0]);
    kv_pool_unref(&p, b[3]);
    kv_pool_unref(&p, b[2]);
    kv_pool_ref(&p, b[1]); /* used again: it is the newest */
    kv_pool_unref(&p, b[1]);
    assert_int_equal(kv_pool_alloc(&p), b[3]);
    assert_int_equal(p.evictions, 0);
    assert_int_equal(kv_pool_alloc(&p), b[0]);
    assert_int_equal(kv_pool_find(&p, hash_number(0)), KV_NO_BLOCK);
    assert_int_equal(kv_pool_alloc(&p), b[2]);
    assert_int_equal(kv_pool_alloc(&p), b[1]);
    assert_int_equal(kv_pool_alloc(&p), KV_NO_BLOCK);
    assert_int_equal(p.evictions, 3);
    kv_pool_destroy(&p);
}

static bool same(struct kv_hash a, struct kv_hash b)
{
    return a.low == b.low && a.high == b.high;
}

static void a_hash_names_all_that_decides_the_block(void **state)
{
    (void)state;
    struct kv_pool p, other;
    int32_t tokens[GPU_KV_BLOCK] = {1, 2, 3}, more[GPU_KV_BLOCK] = {1, 2, 3};
    assert_int_equal(kv_pool_create(&p, 4, NULL), 0);
    assert_int_equal(kv_pool_create(&other, 4, NULL), 0);
    struct kv_hash root = kv_pool_root(&p, 1, 2, 3);
    assert_true(same(root, kv_pool_root(&p, 1, 2, 3)));
    assert_false(same(root, kv_pool_root(&p, 2, 2, 3)));
    assert_false(same(root, kv_pool_root(&p, 1, 1, 3)));
    assert_false(same(root, kv_pool_root(&p, 1, 2, 4)));
    assert_false(same(root, kv_pool_root(&other, 1, 2, 3))); /* the key is drawn at start */
    struct kv_hash first = kv_pool_chain(&p, root, tokens);
    assert_true(same(first, kv_pool_chain(&p, root, more)));
    more[GPU_KV_BLOCK - 1]++;
    assert_false(same(first, kv_pool_chain(&p, root, more)));
    assert_false(same(first, kv_pool_chain(&p, first, tokens)));
    kv_pool_destroy(&p);
    kv_pool_destroy(&other);
}

/* A pool of a few blocks and hashes against a plain model: arrays that are looked through. */
enum { FEW = 7, HASHES = 9 };

struct naive {
    uint32_t refs[FEW];
    int hash[FEW];        /* -1: not findable */
    uint64_t cached[FEW]; /* when it became cached, 0: it is not */
    uint32_t stack[FEW], n_stack;
    uint64_t now;
};

static uint32_t naive_find(const struct naive *m, int hash)
{
    for (uint32_t b = 0; b < FEW; b++)
        if (m->hash[b] == hash)
            return b;
    return KV_NO_BLOCK;
}

/* The one that was cached first. */
static uint32_t naive_oldest(const struct naive *m)
{
    uint32_t best = KV_NO_BLOCK;
    for (uint32_t b = 0; b < FEW; b++)
        if (m->cached[b] && (best == KV_NO_BLOCK || m->cached[b] < m->cached[best]))
            best = b;
    return best;
}

static uint32_t naive_alloc(struct naive *m)
{
    uint32_t best = KV_NO_BLOCK;
    if (m->n_stack)
        best = m->stack[--m->n_stack];
    else
        best = naive_oldest(m);
    if (best != KV_NO_BLOCK) {
        m->refs[best] = 1;
        m->hash[best] = -1;
        m->cached[best] = 0;
    }
    return best;
}

static void naive_unref(struct naive *m, uint32_t b)
{
    if (--m->refs[b])
        return;
    if (m->hash[b] >= 0)
        m->cached[b] = ++m->now;
    else
        m->stack[m->n_stack++] = b;
}

static void naive_forget(struct naive *m, uint32_t b)
{
    m->hash[b] = -1;
    if (m->cached[b])
        m->stack[m->n_stack++] = b;
    m->cached[b] = 0;
}

static void naive_evict_ahead(struct naive *m, uint32_t n, uint32_t most)
{
    for (; most && m->n_stack < n && naive_oldest(m) != KV_NO_BLOCK; most--)
        naive_forget(m, naive_oldest(m));
}

static void naive_compare(const struct naive *m, const struct kv_pool *p)
{
    uint32_t n_cached = 0;
    for (uint32_t b = 0; b < FEW; b++) {
        n_cached += m->cached[b] != 0;
        assert_int_equal(kv_pool_refs(p, b), m->refs[b]);
        assert_int_equal(kv_pool_writable(p, b), m->refs[b] == 1 && m->hash[b] < 0);
    }
    for (int hash = 0; hash < HASHES; hash++)
        assert_int_equal(kv_pool_find(p, hash_number((uint32_t)hash)), naive_find(m, hash));
    assert_int_equal(p->n_cached, n_cached);
    assert_int_equal(p->n_free, m->n_stack + n_cached);
}

static void one_random_call(struct naive *m, struct kv_pool *p)
{
    uint32_t b = (uint32_t)rand() % FEW;
    int hash = rand() % HASHES;
    bool held = m->refs[b] > 0;
    switch (rand() % 7) {
    case 0:
        assert_int_equal(kv_pool_alloc(p), naive_alloc(m));
        break;
    case 1:
        if (!held && !m->cached[b])
            break;
        kv_pool_ref(p, b);
        m->refs[b]++;
        m->cached[b] = 0;
        break;
    case 2:
    case 3:
        if (!held)
            break;
        kv_pool_unref(p, b);
        naive_unref(m, b);
        break;
    case 4:
        if (!held)
            break;
        bool fresh = m->hash[b] < 0 && naive_find(m, hash) == KV_NO_BLOCK;
        assert_int_equal(kv_pool_publish(p, b, hash_number((uint32_t)hash)),
                         fresh || m->hash[b] >= 0);
        m->hash[b] = fresh ? hash : m->hash[b];
        break;
    case 5: {
        uint32_t n = (uint32_t)rand() % 4, most = (uint32_t)rand() % 3;
        kv_pool_evict_ahead(p, n, most);
        naive_evict_ahead(m, n, most);
        break;
    }
    default:
        if (rand() % 4)
            break;
        kv_pool_forget(p, b);
        naive_forget(m, b);
    }
}

static void random_use_with_the_index(void **state)
{
    (void)state;
    struct kv_pool p;
    struct naive m = {.n_stack = FEW};
    assert_int_equal(kv_pool_create(&p, FEW, NULL), 0);
    srand(2);
    for (uint32_t b = 0; b < FEW; b++) {
        m.hash[b] = -1;
        m.stack[b] = FEW - 1 - b;
    }
    for (int i = 0; i < 200000; i++) {
        one_random_call(&m, &p);
        naive_compare(&m, &p);
    }
    assert_true(p.evictions > 1000);
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
        cmocka_unit_test(found_until_forgotten),
        cmocka_unit_test(free_blocks_go_before_cached_ones_and_old_before_new),
        cmocka_unit_test(a_hash_names_all_that_decides_the_block),
        cmocka_unit_test(random_use_with_the_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
