/* Who is served when: classes, deadlines, fair shares between clients, ageing, who gives way, and
 * that nothing is passed by what is smaller. */
#include "../support/engine_rig.h"

#include <string.h>

/* One place, so that admissions are in the order that is looked for. */
static void open_narrow(struct rig *r, enum engine_policy policy)
{
    rig_init(r);
    r->config.max_num_seqs = 1;
    r->config.policy = policy;
    rig_open(r);
}

static struct llm_sqe plain(uint64_t id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct llm_sqe q = rig_generate(id, n_prompt, max_tokens);
    q.flags = LLM_SQE_IGNORE_EOS;
    return q;
}

/* Holds the only place while the others arrive. */
static void occupy(struct rig *r)
{
    struct llm_sqe q = plain(1, 4, 3);
    q.priority = LLM_PRIORITY_HIGH;
    rig_send(r, 7, &q);
    rig_step(r);
}

static uint64_t admitted(struct rig *r, uint32_t client, uint64_t id)
{
    const struct rig_stream *s = rig_stream(r, client, id, 0);
    assert_int_equal(s->finals, 1);
    assert_int_equal(s->final.status, 0);
    return s->result.t_admit;
}

static void run_audited(struct rig *r)
{
    for (uint32_t i = 0; engine_has_work(r->engine); i++) {
        assert_true(i < 100000);
        rig_step(r);
        rig_audit(r);
    }
}

/* All of client 0: ids in the order in which they must have been admitted. */
static void expect_order(struct rig *r, const uint64_t *ids, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (admitted(r, 0, ids[i - 1]) >= admitted(r, 0, ids[i]))
            fail_msg("%llu was not admitted before %llu", (unsigned long long)ids[i - 1],
                     (unsigned long long)ids[i]);
}

static void send_class(struct rig *r, uint64_t id, enum llm_priority priority, uint32_t deadline_us)
{
    struct llm_sqe q = plain(id, 4, 2);
    q.priority = (uint16_t)priority;
    q.deadline_us = deadline_us;
    rig_send(r, 0, &q);
}

static void classes_then_deadlines_then_arrival(void **state)
{
    (void)state;
    static const uint64_t order[] = {15, 13, 16, 12, 17, 11};
    struct rig r;
    open_narrow(&r, ENGINE_FAIR);
    occupy(&r);
    send_class(&r, 11, LLM_PRIORITY_LOW, 100000);
    send_class(&r, 12, LLM_PRIORITY_NORMAL, 900000);
    send_class(&r, 17, LLM_PRIORITY_NORMAL, 0);
    send_class(&r, 13, LLM_PRIORITY_HIGH, 0);
    send_class(&r, 15, LLM_PRIORITY_HIGH, 800000);
    send_class(&r, 16, LLM_PRIORITY_NORMAL, 500000);
    run_audited(&r);
    expect_order(&r, order, 6);
    rig_close(&r);
}

static void first_come_is_first_served(void **state)
{
    (void)state;
    static const uint64_t order[] = {11, 12, 17, 13, 15, 16};
    struct rig r;
    open_narrow(&r, ENGINE_FIRST_COME);
    occupy(&r);
    send_class(&r, 11, LLM_PRIORITY_LOW, 100000);
    send_class(&r, 12, LLM_PRIORITY_NORMAL, 1); /* no deadline is looked at */
    send_class(&r, 17, LLM_PRIORITY_NORMAL, 0);
    send_class(&r, 13, LLM_PRIORITY_HIGH, 0);
    send_class(&r, 15, LLM_PRIORITY_HIGH, 800000);
    send_class(&r, 16, LLM_PRIORITY_NORMAL, 500000);
    run_audited(&r);
    expect_order(&r, order, 6);
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

/* A flood of the highest class does not keep the lowest out for ever. */
static void the_oldest_has_its_turn(void **state)
{
    (void)state;
    struct rig r;
    open_narrow(&r, ENGINE_FAIR);
    occupy(&r);
    send_class(&r, 2, LLM_PRIORITY_LOW, 0);
    for (uint64_t id = 10; id < 50; id++)
        send_class(&r, id, LLM_PRIORITY_HIGH, 0);
    run_audited(&r);
    uint32_t before = 0;
    for (uint64_t id = 10; id < 50; id++)
        before += admitted(&r, 0, id) < admitted(&r, 0, 2);
    assert_in_range(before, 1, 16);
    rig_close(&r);
}

/* A client that comes later than another one's flood is next, or the one after. */
static void a_flood_does_not_keep_others_waiting(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 2;
    r.config.max_requests = 200;
    rig_open(&r);
    for (uint64_t id = 1; id <= 60; id++) {
        struct llm_sqe q = plain(id, 64, 8);
        rig_send(&r, 0, &q);
    }
    for (uint64_t id = 101; id <= 105; id++) {
        for (int i = 0; i < 15; i++)
            rig_step(&r);
        struct llm_sqe q = plain(id, 64, 8);
        uint64_t arrival = r.clock_ns;
        rig_send(&r, 1, &q);
        while (!rig_stream(&r, 1, id, 0)->finals)
            rig_step(&r);
        rig_expect_whole(&r, 1, &q);
        uint32_t before = 0; /* admissions of the other one meanwhile */
        for (uint64_t other = 1; other <= 60; other++) {
            const struct rig_stream *s = rig_stream(&r, 0, other, 0);
            before += s->finals && s->result.t_admit >= arrival &&
                      s->result.t_admit < rig_stream(&r, 1, id, 0)->result.t_admit;
        }
        assert_true(before <= 3);
    }
    run_audited(&r);
    rig_close(&r);
}

static uint64_t rows_of(struct rig *r, uint32_t client, uint64_t from, uint64_t to)
{
    uint64_t rows = 0;
    for (uint64_t id = from; id < to; id++) {
        const struct rig_stream *s = rig_stream(r, client, id, 0);
        rows += s->finals ? s->n_known + s->n : 0;
    }
    return rows;
}

/* Two floods, one of long requests, one of short ones: the same rows for both, not the same number
 * of requests. */
static void shares_are_of_rows(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 4;
    r.config.max_requests = 400;
    r.config.max_num_batched_tokens = 32;
    rig_open(&r);
    for (uint64_t id = 1; id <= 40; id++) {
        struct llm_sqe q = plain(id, 200, 40);
        rig_send(&r, 0, &q);
    }
    for (uint64_t id = 101; id <= 300; id++) {
        struct llm_sqe q = plain(id, 20, 10);
        rig_send(&r, 1, &q);
    }
    while (rows_of(&r, 1, 101, 301) < 3000)
        rig_step(&r);
    uint64_t a = rows_of(&r, 0, 1, 41), b = rows_of(&r, 1, 101, 301);
    assert_true(a * 2 > b && b * 2 > a);
    run_audited(&r);
    rig_close(&r);
}

/* A tight deadline does not make more of a share. */
static void a_deadline_is_no_way_to_take_more(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.max_num_seqs = 1;
    r.config.max_requests = 200;
    r.config.max_num_batched_tokens = 16;
    rig_open(&r);
    for (uint64_t id = 1; id <= 40; id++) {
        struct llm_sqe q = plain(id, 60, 4), p = plain(100 + id, 60, 4);
        q.deadline_us = 100000000;
        rig_send(&r, 0, &q);
        rig_send(&r, 1, &p);
    }
    while (rows_of(&r, 0, 1, 41) < 1200)
        rig_step(&r);
    assert_true(rows_of(&r, 1, 101, 141) > 600);
    run_audited(&r);
    rig_close(&r);
}

/* The pool has no room for the big one now: what is small and came later does not take it. */
static void nothing_passes_what_does_not_fit(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 20;
    rig_open(&r);
    struct llm_sqe holds = plain(1, 150, 20), big = plain(2, 250, 4);
    rig_send(&r, 0, &holds);
    for (int i = 0; i < 5; i++)
        rig_step(&r);
    rig_send(&r, 0, &big);
    for (uint64_t id = 10; id < 16; id++) {
        struct llm_sqe q = plain(id, 10, 30);
        rig_send(&r, 0, &q);
    }
    run_audited(&r);
    for (uint64_t id = 10; id < 16; id++)
        assert_true(admitted(&r, 0, 2) <= admitted(&r, 0, id));
    assert_int_equal(rig_figure(&r.board->preemptions), 0);
    rig_close(&r);
}

static void a_lower_class_gives_way(void **state)
{
    (void)state;
    struct rig r;
    struct llm_sqe low[2], high = plain(9, 10, 5);
    rig_init(&r);
    r.config.max_num_seqs = 2;
    rig_open(&r);
    for (uint64_t i = 0; i < 2; i++) {
        low[i] = plain(i + 1, 8, 60);
        low[i].priority = LLM_PRIORITY_LOW;
        rig_send(&r, 0, &low[i]);
    }
    for (int i = 0; i < 40; i++)
        rig_step(&r);
    high.priority = LLM_PRIORITY_HIGH;
    rig_send(&r, 0, &high);
    rig_step(&r);
    assert_int_equal(rig_stream(&r, 0, 9, 0)->n, 1); /* within the step */
    assert_int_equal(rig_figure(&r.board->preemptions), 1);
    run_audited(&r);
    rig_expect_whole(&r, 0, &high);
    for (int i = 0; i < 2; i++)
        rig_expect_whole(&r, 0, &low[i]);
    rig_close(&r);
}

/* One client has all places; another one comes: it gets one in the next step, and what had to leave
 * goes on where it was. */
static void who_has_all_places_gives_one(void **state)
{
    (void)state;
    struct rig r;
    struct llm_sqe q[4], other = plain(20, 10, 5);
    rig_init(&r);
    r.config.max_num_seqs = 4;
    rig_open(&r);
    for (uint64_t i = 0; i < 4; i++) {
        q[i] = plain(i + 1, 8, 60);
        rig_send(&r, 0, &q[i]);
    }
    for (int i = 0; i < 40; i++)
        rig_step(&r);
    rig_send(&r, 1, &other);
    rig_step(&r);
    assert_int_equal(rig_stream(&r, 1, 20, 0)->n, 1);
    assert_int_equal(rig_figure(&r.board->preemptions), 1);
    run_audited(&r);
    rig_expect_whole(&r, 1, &other);
    for (int i = 0; i < 4; i++)
        rig_expect_whole(&r, 0, &q[i]);
    assert_int_equal(rig_figure(&r.board->preemptions), 1); /* and was not pushed back and forth */
    rig_close(&r);
}

/* A pool of a few blocks under ten times its capacity: something ends all the time, every client's
 * requests end, and nothing is computed again without bound. */
static void a_few_blocks_for_many(void **state)
{
    (void)state;
    struct rig r;
    rig_init(&r);
    r.config.n_blocks = 8;
    r.config.max_requests = 100;
    r.config.prefix_cache = true;
    rig_open(&r);
    for (uint64_t id = 1; id <= 60; id++) {
        struct llm_sqe q = plain(id, 20 + (uint32_t)(id * 7 % 40), 40);
        q.priority = (uint16_t)(id % 3);
        rig_send(&r, (uint32_t)(id % 5), &q);
    }
    uint64_t finished = 0;
    for (uint32_t since = 0; engine_has_work(r.engine); since++) {
        rig_step(&r);
        rig_audit(&r);
        if (rig_figure(&r.board->finished) > finished)
            since = 0;
        finished = rig_figure(&r.board->finished);
        assert_true(since < 400); /* the longest has 40 tokens */
    }
    assert_int_equal(finished, 60);
    assert_true(rig_figure(&r.board->recomputed_tokens) < rig_figure(&r.board->rows) / 2);
    for (uint64_t id = 1; id <= 60; id++)
        rig_expect_stream(&r, rig_stream(&r, (uint32_t)(id % 5), id, 0), true);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_then_deadlines_then_arrival),
        cmocka_unit_test(first_come_is_first_served),
        cmocka_unit_test(the_oldest_has_its_turn),
        cmocka_unit_test(a_flood_does_not_keep_others_waiting),
        cmocka_unit_test(shares_are_of_rows),
        cmocka_unit_test(a_deadline_is_no_way_to_take_more),
        cmocka_unit_test(nothing_passes_what_does_not_fit),
        cmocka_unit_test(a_lower_class_gives_way),
        cmocka_unit_test(who_has_all_places_gives_one),
        cmocka_unit_test(a_few_blocks_for_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
