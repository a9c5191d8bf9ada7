/* Many requests at once: whatever the chunk, the budget, the places and the pool, each brings the
 * tokens that it brings alone; and steps are formed in the promised order. */
#include <stdlib.h>
#include <string.h>

#include "../support/engine_rig.h"

/* ---- the same tokens under every limit ---- */

struct load {
    uint32_t client, arrives; /* arrives: number of the step */
    struct llm_sqe q;
};

enum { LOAD = 64 };

static void make_load(struct load load[LOAD], uint32_t seed)
{
    srand(seed);
    for (uint32_t i = 0; i < LOAD; i++) {
        uint32_t n_prompt = 2 + (uint32_t)rand() % (i % 8 ? 40 : 120);
        uint32_t n_output = 1 + (uint32_t)rand() % 40;
        load[i].client = (uint32_t)rand() % RIG_CLIENTS;
        load[i].arrives = (uint32_t)rand() % 60;
        load[i].q =
            i % 7 == 3 ? rig_score(i + 1, n_prompt) : rig_generate(i + 1, n_prompt, n_output);
        if (load[i].q.op == LLM_OP_SCORE)
            continue;
        load[i].q.choices = i % 9 == 5 ? 2 + (uint16_t)(rand() % 5) : 1;
        load[i].q.temperature = i % 2 ? 0.9f : 0.0f;
        load[i].q.flags = (uint8_t)(rand() % 4);
    }
}

static void send_arrivals(struct rig *r, const struct load load[LOAD], bool sent[LOAD],
                          uint32_t step)
{
    int32_t tokens[RIG_TOKENS];
    for (uint32_t i = 0; i < LOAD; i++) {
        if (sent[i] || load[i].arrives > step)
            continue;
        rig_prompt(r, load[i].q.user_data, tokens, load[i].q.tokens_len);
        sent[i] = rig_submit(r, load[i].client, &load[i].q, tokens);
    }
}

static bool all_sent(const bool sent[LOAD])
{
    for (uint32_t i = 0; i < LOAD; i++)
        if (!sent[i])
            return false;
    return true;
}

static void check_counters(const struct rig *r)
{
    const struct llm_board *b = r->board;
    assert_true(rig_figure(&b->max_rows_in_step) <= r->config.max_num_batched_tokens);
    assert_true(rig_figure(&b->max_seqs_in_step) <= r->config.max_num_seqs);
    assert_int_equal(rig_figure(&b->steps), r->gpu.steps);
    assert_int_equal(rig_figure(&b->step.count), r->gpu.steps);
    assert_int_equal(rig_figure(&b->rows),
                     rig_figure(&b->decode_rows) + rig_figure(&b->prefill_rows));
    assert_int_equal(rig_figure(&b->requests), LOAD);
    assert_int_equal(rig_figure(&b->refused), 0);
    assert_int_equal(rig_figure(&b->finished), r->n_streams);
}

/* First tokens, gaps and admissions are observed once each. */
static void check_histograms(const struct rig *r)
{
    uint64_t generated = 0, streams = 0;
    for (uint32_t i = 0; i < r->n_streams; i++)
        if (r->streams[i].op == LLM_OP_GENERATE) {
            generated += r->streams[i].n;
            streams++;
        }
    assert_int_equal(rig_figure(&r->board->output_tokens), generated);
    assert_int_equal(rig_figure(&r->board->ttft.count), streams);
    assert_int_equal(rig_figure(&r->board->itl.count), generated - streams);
    assert_int_equal(rig_figure(&r->board->queue.count), r->n_streams);
    uint64_t in_buckets = 0;
    for (uint32_t i = 0; i < LLM_HIST_BUCKETS; i++)
        in_buckets += rig_figure(&r->board->itl.bucket[i]);
    assert_int_equal(in_buckets, rig_figure(&r->board->itl.count));
}

/* Returns how many preemptions there were. */
static uint64_t run_load(const struct load load[LOAD], struct engine_config limits)
{
    struct rig r;
    bool sent[LOAD] = {false};
    rig_init(&r);
    r.config.prefill_chunk = limits.prefill_chunk;
    r.config.max_num_batched_tokens = limits.max_num_batched_tokens;
    r.config.max_num_seqs = limits.max_num_seqs;
    r.config.n_blocks = limits.n_blocks;
    r.config.max_requests = limits.max_requests;
    rig_open(&r);
    for (uint32_t step = 0; !all_sent(sent) || engine_has_work(r.engine); step++) {
        assert_true(step < 100000);
        send_arrivals(&r, load, sent, step);
        rig_step(&r);
    }
    for (uint32_t i = 0; i < LOAD; i++)
        rig_expect_whole(&r, load[i].client, &load[i].q);
    check_counters(&r);
    check_histograms(&r);
    uint64_t preemptions = rig_figure(&r.board->preemptions);
    rig_close(&r);
    return preemptions;
}

static void the_same_tokens_under_every_limit(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {1, 7, 64, 512, 0}, budgets[] = {1, 16, 64, 700},
                          places[] = {1, 3, 64};
    static struct load load[LOAD];
    make_load(load, 1);
    for (uint32_t c = 0; c < 5; c++)
        for (uint32_t b = 0; b < 4; b++)
            for (uint32_t p = 0; p < 3; p++)
                run_load(load, (struct engine_config){.prefill_chunk = chunks[c],
                                                      .max_num_batched_tokens = budgets[b],
                                                      .max_num_seqs = places[p],
                                                      .n_blocks = 1000,
                                                      .max_requests = 128});
}

static void the_same_tokens_in_a_tiny_pool(void **state)
{
    (void)state;
    static struct load load[LOAD];
    uint64_t preemptions = 0;
    for (uint32_t seed = 2; seed < 8; seed++) {
        make_load(load, seed);
        for (uint32_t blocks = 10; blocks <= 40; blocks += 6)
            preemptions += run_load(load, (struct engine_config){.prefill_chunk = seed % 3 * 8,
                                                                 .max_num_batched_tokens = 48,
                                                                 .max_num_seqs = 4 * seed,
                                                                 .n_blocks = blocks,
                                                                 .max_requests = 20 + seed});
    }
    assert_true(preemptions > 100); /* else this tests nothing */
}

/* ---- the order of a step ---- */

struct watched {
    uint32_t n_seqs, n_rows[64], pos[64];
};

static void watch(void *context, const struct gpu_step *step)
{
    struct watched *w = context;
    w->n_seqs = step->n_seqs;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        w->n_rows[i] = step->seqs[i].n_rows;
        w->pos[i] = step->seqs[i].pos;
    }
}

static void open_watched(struct rig *r, struct watched *w)
{
    rig_open(r);
    r->gpu.watch = watch;
    r->gpu.watch_context = w;
}

static void decodes_come_first_and_prompts_in_order(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    rig_init(&r);
    r.config.max_num_batched_tokens = 32;
    r.config.prefill_chunk = 10;
    r.config.policy = ENGINE_FIRST_COME;
    open_watched(&r, &w);
    struct llm_sqe first = rig_generate(1, 9, 40), a = rig_generate(2, 25, 40);
    struct llm_sqe b = rig_generate(3, 26, 40), c = rig_generate(4, 27, 40);
    first.flags = a.flags = b.flags = c.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &first);
    rig_step(&r);
    rig_step(&r);
    assert_true(w.n_seqs == 1 && w.n_rows[0] == 1 && w.pos[0] == 9);
    rig_send(&r, 0, &a);
    rig_send(&r, 1, &b);
    rig_send(&r, 0, &c);
    rig_send(&r, 2, &(struct llm_sqe){.user_data = 77, .op = LLM_OP_NOP});
    rig_step(&r); /* 1 decode, 10 of a, 10 of b, 10 of c, 1 row over: no more of anybody */
    assert_int_equal(w.n_seqs, 4);
    assert_true(w.n_rows[0] == 1 && w.pos[0] == 10);
    assert_true(w.n_rows[1] == 10 && w.n_rows[2] == 10 && w.n_rows[3] == 10);
    rig_step(&r);
    rig_step(&r); /* a ends its prompt: 5, b 6, c 7 */
    assert_true(w.n_rows[1] == 5 && w.n_rows[2] == 6 && w.n_rows[3] == 7);
    rig_step(&r);
    assert_true(w.n_seqs == 4 && w.n_rows[1] == 1 && w.n_rows[2] == 1 && w.n_rows[3] == 1);
    assert_int_equal(rig_figure(&r.board->mixed_steps), 3);
    assert_int_equal(rig_figure(&r.board->max_rows_in_step), 31);
    assert_int_equal(rig_figure(&r.board->max_seqs_in_step), 4);
    rig_run(&r);
    rig_close(&r);
}

/* Fewer rows than decodes: they take turns, none falls behind by more than one token. */
static void decodes_take_turns(void **state)
{
    (void)state;
    enum { N = 7 };
    struct rig r;
    rig_init(&r);
    r.config.max_num_batched_tokens = 3;
    rig_open(&r);
    struct llm_sqe q[N];
    for (uint32_t i = 0; i < N; i++) {
        q[i] = rig_generate(i + 1, 1, 100);
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q[i]);
    }
    while (rig_stream(&r, 0, N, 0)->n == 0)
        rig_step(&r);
    uint32_t before[N];
    for (uint32_t i = 0; i < N; i++)
        before[i] = rig_stream(&r, 0, i + 1, 0)->n;
    for (uint32_t step = 1; step <= 70; step++) {
        uint32_t least = UINT32_MAX, most = 0;
        rig_step(&r);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t n = rig_stream(&r, 0, i + 1, 0)->n - before[i];
            least = n < least ? n : least;
            most = n > most ? n : most;
        }
        assert_true(most - least <= 1);
    }
    rig_run(&r);
    for (uint32_t i = 0; i < N; i++)
        rig_expect_whole(&r, 0, &q[i]);
    rig_close(&r);
}

static void waiting_requests_start_in_order_of_arrival(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 3;
    r.config.policy = ENGINE_FIRST_COME;
    rig_open(&r);
    for (uint32_t i = 1; i <= 40; i++) {
        struct llm_sqe q = rig_generate(i, 1 + i * 7 % 50, 1 + i * 5 % 20);
        rig_send(&r, i % RIG_CLIENTS, &q);
    }
    assert_int_equal(rig_figure(&r.board->waiting), 40);
    rig_run(&r);
    for (uint32_t i = 1; i < r.n_streams; i++)
        assert_true(r.streams[i - 1].result.t_admit <= r.streams[i].result.t_admit);
    rig_close(&r);
}

/* ---- preemption ---- */

static void the_last_admitted_gives_way_and_comes_back_first(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 10;
    r.config.max_num_seqs = 3;
    rig_open(&r);
    struct llm_sqe q[] = {rig_generate(1, 30, 30), rig_generate(2, 30, 30), rig_generate(3, 30, 30),
                          rig_generate(4, 5, 10)};
    for (uint32_t i = 0; i < 4; i++) {
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q[i]);
    }
    /* at 49 tokens the first takes the last block, the second makes the third give way; that one
     * keeps its place in front of the fourth, which would fit */
    rig_run(&r);
    for (uint32_t i = 0; i < 4; i++) {
        rig_expect_whole(&r, 0, &q[i]);
        assert_int_equal(rig_stream(&r, 0, i + 1, 0)->result.preemptions, i == 2);
    }
    assert_true(rig_stream(&r, 0, 4, 0)->result.t_admit >= rig_stream(&r, 0, 1, 0)->result.t_last);
    assert_true(rig_stream(&r, 0, 4, 0)->result.t_first <= rig_stream(&r, 0, 3, 0)->result.t_last);
    rig_close(&r);
}

/* A prompt in small chunks whose blocks a younger answer has taken: the prompt gets them back. */
static void the_oldest_advances_in_every_step(void **state)
{
    (void)state;
    struct rig r;
    struct watched w;
    rig_init(&r);
    r.config.n_blocks = 10;
    r.config.prefill_chunk = 1;
    open_watched(&r, &w);
    struct llm_sqe old = rig_generate(1, 110, 10), young = rig_generate(2, 1, 120);
    old.flags = young.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &old);
    for (uint32_t pos = 0; pos < 119; pos++) {
        bool there = false;
        if (pos == 8) /* so that the old one is the first to miss a block */
            rig_send(&r, 0, &young);
        rig_step(&r);
        for (uint32_t i = 0; i < w.n_seqs; i++)
            there |= w.pos[i] == pos;
        assert_true(there);
    }
    assert_int_equal(rig_stream(&r, 0, 1, 0)->finals, 1);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->result.preemptions, 0);
    assert_true(rig_figure(&r.board->preemptions) > 0);
    rig_run(&r);
    rig_expect_whole(&r, 0, &old);
    rig_expect_whole(&r, 0, &young);
    rig_close(&r);
}

/* One row a step: an answer and a prompt share it, step by step. */
static void answers_and_prompts_share_a_single_row(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_batched_tokens = 1;
    rig_open(&r);
    struct llm_sqe answer = rig_generate(1, 1, 60), prompt = rig_generate(2, 25, 5);
    answer.flags = prompt.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &answer);
    rig_step(&r);
    rig_send(&r, 0, &prompt);
    for (uint32_t i = 0; i < 49; i++)
        rig_step(&r);
    assert_int_equal(rig_stream(&r, 0, 1, 0)->n, 25);
    assert_int_equal(rig_stream(&r, 0, 2, 0)->n, 1);
    rig_run(&r);
    rig_expect_whole(&r, 0, &answer);
    rig_expect_whole(&r, 0, &prompt);
    rig_close(&r);
}

/* Forks and admissions count the blocks that will be needed for the next token: what starts is not
 * thrown out by its own first step. */
static void starts_with_room_for_the_next_token(void **state)
{
    (void)state;
    for (uint32_t n_prompt = 14; n_prompt <= 18; n_prompt++) {
        struct rig r;
        rig_init(&r);
        r.config.n_blocks = 8;
        rig_open(&r);
        struct llm_sqe q = rig_generate(1, n_prompt, 8);
        q.choices = 8;
        q.temperature = 1.0f;
        q.flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q);
        rig_step(&r);
        assert_true(engine_running(r.engine) >= 2);
        for (uint32_t i = 0; i < (16 - n_prompt) % 16 + 1; i++)
            rig_step(&r);
        if (n_prompt >= 16)
            assert_int_equal(rig_figure(&r.board->preemptions), 0);
        rig_run(&r);
        rig_expect_whole(&r, 0, &q);
        rig_close(&r);
    }
}

static void admission_counts_the_first_new_token(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 5;
    rig_open(&r);
    struct llm_sqe a = rig_generate(1, 32, 18), b = rig_generate(2, 16, 17);
    a.flags = b.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &a);
    rig_step(&r);
    rig_step(&r);
    rig_send(&r, 0, &b);
    rig_run(&r);
    rig_expect_whole(&r, 0, &a);
    rig_expect_whole(&r, 0, &b);
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

/* What was thrown out does not come back before it has room for all it knows: no ping-pong. */
static void preemption_does_not_thrash(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 16;
    rig_open(&r);
    struct llm_sqe q[8];
    for (uint32_t i = 0; i < 8; i++) {
        q[i] = rig_generate(i + 1, 16, 64);
        q[i].flags = LLM_SQE_IGNORE_EOS;
        rig_send(&r, 0, &q[i]);
    }
    rig_run(&r);
    for (uint32_t i = 0; i < 8; i++) {
        rig_expect_whole(&r, 0, &q[i]);
        assert_true(rig_stream(&r, 0, i + 1, 0)->result.preemptions <= 3);
    }
    assert_in_range(rig_figure(&r.board->preemptions), 1, 12);
    rig_close(&r);
}

/* Long prompts whose sum is over the pool: admitted one behind the other, none is thrown out. */
static void prompts_are_admitted_only_with_room_for_all_of_them(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 20;
    r.config.prefill_chunk = 8;
    rig_open(&r);
    struct llm_sqe q[4];
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = rig_generate(i + 1, 150, 2);
        rig_send(&r, 0, &q[i]);
    }
    rig_step(&r);
    assert_int_equal(engine_running(r.engine), 1);
    rig_run(&r);
    for (uint32_t i = 0; i < 4; i++)
        rig_expect_whole(&r, 0, &q[i]);
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

/* Blocks come as tokens are computed: at most one block a sequence is not full. */
static void blocks_are_taken_as_tokens_come(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    rig_open(&r);
    struct llm_sqe q = rig_generate(1, 20, 200);
    q.flags = LLM_SQE_IGNORE_EOS;
    rig_send(&r, 0, &q);
    for (uint32_t n = 20; engine_has_work(r.engine) && n < 219; n++) {
        rig_step(&r);
        assert_int_equal(rig_figure(&r.board->kv_blocks_free),
                         r.config.n_blocks - (n + GPU_KV_BLOCK - 1) / GPU_KV_BLOCK);
    }
    rig_run(&r);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_tokens_under_every_limit),
        cmocka_unit_test(the_same_tokens_in_a_tiny_pool),
        cmocka_unit_test(decodes_come_first_and_prompts_in_order),
        cmocka_unit_test(decodes_take_turns),
        cmocka_unit_test(waiting_requests_start_in_order_of_arrival),
        cmocka_unit_test(the_last_admitted_gives_way_and_comes_back_first),
        cmocka_unit_test(the_oldest_advances_in_every_step),
        cmocka_unit_test(answers_and_prompts_share_a_single_row),
        cmocka_unit_test(starts_with_room_for_the_next_token),
        cmocka_unit_test(admission_counts_the_first_new_token),
        cmocka_unit_test(preemption_does_not_thrash),
        cmocka_unit_test(prompts_are_admitted_only_with_room_for_all_of_them),
        cmocka_unit_test(blocks_are_taken_as_tokens_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
