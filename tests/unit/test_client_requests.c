/* test_client_requests.c - what ABI 1.1 added to requests: every field arrives where the ABI has
 * it, sessions and labels by their calls, programs built with the header of 1.0, and engines that
 * speak 1.0.
 */
#include "../../appliance/option_map.h"
#include "../../client/handle.h"
#include "../../shm/ring.h"

#include "fake_engine.h"

static const int32_t prompt[] = {3, 1, 4, 1, 5};

static struct llm_request request(void)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 6, r.seed = 9;
    return r;
}

static uint64_t submit(struct llm_client *c, const struct llm_request *r)
{
    uint64_t id = 0;
    if (llm_submit(c, r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

static struct llm_event next_event(struct llm_client *c)
{
    struct llm_event e;
    assert_int_equal(llm_poll(c, &e), 1);
    return e;
}

/* ---- fields ---- */

static void every_field_arrives(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.choices = 2, r.first_choice = 7, r.priority = LLM_PRIORITY_LOW, r.flags = LLM_SQE_NO_CACHE;
    r.deadline_us = 11, r.timeout_ms = 12, r.queue_timeout_ms = 13, r.max_itl_us = 14;
    r.output_from = 3;
    uint64_t id = submit(c, &r);
    struct llm_sqe e = fake_take_quietly(f);
    assert_int_equal(e.op, LLM_OP_GENERATE);
    assert_int_equal(e.flags, LLM_SQE_NO_CACHE);
    assert_int_equal(e.priority, LLM_PRIORITY_LOW);
    assert_int_equal(e.deadline_us, 11);
    assert_int_equal(e.timeout_ms, 12);
    assert_int_equal(e.queue_timeout_ms, 13);
    assert_int_equal(e.max_itl_us, 14);
    assert_int_equal(e.choices, 2);
    assert_int_equal(e.first_choice, 7);
    assert_int_equal(e.output_from, 3);
    assert_true(e.session == 0 && e.target == 0 && e.options_len == 0);

    fake_token(f, id, 8, 2, 1); /* the choices are named as they were asked for */
    fake_done(f, id, 8, LLM_FINISH_STOP);
    fake_done(f, id, 7, LLM_FINISH_STOP);
    fake_publish(f);
    assert_int_equal(next_event(c).choice, 8);
    assert_int_equal(next_event(c).choice, 8);
    assert_int_equal(next_event(c).choice, 7);
    assert_int_equal(llm_inflight(c), 0);
    llm_close(c);
}

static void a_choice_that_was_not_asked_for_breaks_the_ring(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    struct llm_event e;
    r.first_choice = 7;
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_publish(f);
    assert_int_equal(llm_poll(c, &e), 1);
    assert_int_equal(e.status, LLM_EPROTO);
    llm_close(c);
}

static void generating_on_a_session(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_request r = request();
    r.session = 77, r.session_keep = 30, r.flags = LLM_SQE_INTERRUPT;
    submit(c, &r);
    struct llm_sqe e = fake_take_quietly(f);
    assert_true(e.session == 77 && e.target == 30 && e.tokens_len == 5);
    assert_int_equal(e.flags, LLM_SQE_INTERRUPT);
    r = request();
    r.session = 77, r.tokens = NULL, r.n_tokens = 0;
    submit(c, &r);
    e = fake_take_quietly(f);
    assert_true(e.session == 77 && e.target == LLM_SESSION_ALL && e.tokens_len == 0);
    llm_close(c);
}

/* ---- sessions ---- */

static void expect_session(struct fake *f, uint64_t id, enum llm_op op, uint32_t tokens,
                           uint64_t target, unsigned flags)
{
    int32_t came[FAKE_ARENA / 4];
    struct llm_sqe e = fake_take(f, came);
    assert_int_equal(e.op, op);
    assert_true(e.user_data == id && e.session == 77);
    assert_int_equal(e.tokens_len, tokens);
    assert_memory_equal(came, prompt, tokens * sizeof *came);
    assert_true(e.target == target);
    assert_int_equal(e.flags, flags);
    assert_int_equal(e.choices, 0);
    fake_done(f, id, 0, LLM_FINISH_STOP);
    fake_publish(f);
}

static void each_session_call_is_one_request(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    uint64_t id;
#define CALL(call, op, tokens, target, flags)                                                      \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s", llm_errmsg(c));                                                         \
        expect_session(f, id, op, tokens, target, flags);                                          \
        assert_true(next_event(c).id == id);                                                       \
    } while (0)
    CALL(llm_session_open(c, 77, prompt, 5, LLM_SQE_NO_CACHE, &id), LLM_OP_SESSION_OPEN, 5, 0,
         LLM_SQE_NO_CACHE);
    CALL(llm_session_open(c, 77, NULL, 0, 0, &id), LLM_OP_SESSION_OPEN, 0, 0, 0);
    CALL(llm_session_append(c, 77, prompt, 2, &id), LLM_OP_SESSION_APPEND, 2, LLM_SESSION_ALL, 0);
    CALL(llm_session_replace(c, 77, 4, prompt, 3, &id), LLM_OP_SESSION_APPEND, 3, 4, 0);
    CALL(llm_session_rewind(c, 77, 0, &id), LLM_OP_SESSION_APPEND, 0, 0, 0);
    CALL(llm_session_interrupt(c, 77, 9, &id), LLM_OP_SESSION_APPEND, 0, 9, LLM_SQE_INTERRUPT);
    CALL(llm_session_fork(c, 77, 78, &id), LLM_OP_SESSION_FORK, 0, 78, 0);
    CALL(llm_session_close(c, 77, &id), LLM_OP_SESSION_CLOSE, 0, 0, 0);
    CALL(llm_prefix_pin(c, 77, prompt, 5, &id), LLM_OP_SESSION_OPEN, 5, 0, LLM_SQE_PIN);
    CALL(llm_prefix_unpin(c, 77, &id), LLM_OP_SESSION_CLOSE, 0, 0, 0);
    llm_close(c);
}

/* Test vectors of FNV-1a: draft-eastlake-fnv, appendix C. */
static void keys_of_names(void **state)
{
    (void)state;
    assert_true(llm_session_key("") == 0xCBF29CE484222325ull);
    assert_true(llm_session_key("a") == 0xAF63DC4C8601EC8Cull);
    assert_true(llm_session_key("foobar") == 0x85944171F73967E8ull);
    /* "\xD5\x6B\xB9\x53\x42\x87\x08\x36" hashes to 0, the key that names no session */
    assert_true(llm_session_key("\xD5\x6B\xB9\x53\x42\x87\x08\x36") == 1);
}

/* ---- labels ---- */

static const int32_t words[300] = {7, 8, 9};

static struct llm_label label(uint32_t from, uint32_t n)
{
    return (struct llm_label){words + from, n};
}

/* Takes a choose and compares prompt and labels with what was asked for. */
static void expect_choose(struct fake *f, const struct llm_label *labels, uint32_t n)
{
    int32_t tokens[FAKE_ARENA / 4], came[FAKE_ARENA / 4];
    uint8_t options[FAKE_ARENA];
    struct option_map map;
    const char *why = NULL;
    struct llm_sqe e = fake_take_all(f, tokens, options);
    assert_int_equal(e.op, LLM_OP_CHOOSE);
    assert_int_equal(e.choices, n);
    assert_int_equal(e.tokens_len, 5);
    assert_memory_equal(tokens, prompt, sizeof prompt);
    assert_int_equal(e.options_off, e.tokens_off + sizeof prompt);
    if (option_map_read(&map, options, e.options_len, &why))
        fail_msg("%s", why);
    assert_int_equal(map.n_labels, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(map.labels[i].n_tokens, labels[i].n_tokens);
        option_label_tokens(options, &map.labels[i], came);
        assert_memory_equal(came, labels[i].tokens, labels[i].n_tokens * sizeof *came);
    }
}

static void labels_travel_behind_the_prompt(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_label labels[] = {label(0, 1), label(1, 2), label(0, 64)};
    uint64_t id;
    for (uint32_t round = 0; round < 20; round++) { /* over the arena's end, too */
        uint32_t n = 1 + round % 3;
        assert_int_equal(llm_choose(c, prompt, 5, labels, n, &id), 0);
        expect_choose(f, labels, n);
        for (uint32_t i = 0; i < n; i++)
            fake_done(f, id, i, LLM_FINISH_STOP);
        fake_publish(f);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(next_event(c).choice, i);
    }
    llm_close(c);
}

/* There may be room for the labels behind what llm_reserve gave, or the prompt has to move. */
static void labels_behind_a_reserve(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_label labels[] = {label(0, 2), label(1, 3)};
    uint64_t id;
    for (uint32_t room = 5; room < 95; room += 10) {
        int32_t *at = llm_reserve(c, room);
        assert_non_null(at);
        memcpy(at, prompt, sizeof prompt);
        assert_int_equal(llm_choose(c, at, 5, labels, 2, &id), 0);
        expect_choose(f, labels, 2);
        fake_done(f, id, 1, LLM_FINISH_STOP);
        fake_done(f, id, 0, LLM_FINISH_STOP);
        fake_publish(f);
        next_event(c), next_event(c);
    }
    llm_close(c);
}

/* Every width of msgpack's heads: an array of 1 .. 64 and bins of up to 65536 bytes. */
static void maps_of_all_sizes(void **state)
{
    (void)state;
    static int32_t tokens[16384], came[16384];
    static uint8_t bytes[LLM_OPTIONS_MAX + 64];
    static struct option_map map;
    const char *why = NULL;
    static const uint32_t sizes[] = {1, 15, 63, 64, 65, 255, 16383 / 2, 16000};
    for (uint32_t i = 0; i < 16384; i++)
        tokens[i] = (int32_t)i;
    for (uint32_t n = 1; n <= LLM_CHOICES_MAX; n++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            struct llm_label labels[LLM_CHOICES_MAX];
            for (uint32_t i = 0; i < n; i++)
                labels[i] = (struct llm_label){tokens + i, i ? 1 : sizes[k]};
            struct llm_request r = LLM_REQUEST_INIT;
            r.op = LLM_OP_CHOOSE, r.labels = labels, r.n_labels = n;
            uint64_t size = request_options_bytes(&r);
            assert_in_range(size, 1, LLM_OPTIONS_MAX);
            bytes[size] = 0xA5;
            request_options_write(&r, bytes);
            assert_int_equal(bytes[size], 0xA5);
            if (option_map_read(&map, bytes, size, &why))
                fail_msg("%u labels, the first of %u: %s", n, sizes[k], why);
            assert_int_equal(map.n_labels, n);
            for (uint32_t i = 0; i < n; i++) {
                assert_int_equal(map.labels[i].n_tokens, labels[i].n_tokens);
                option_label_tokens(bytes, &map.labels[i], came);
                assert_memory_equal(came, labels[i].tokens, 4ull * labels[i].n_tokens);
            }
        }
}

static struct llm_event scored(uint64_t id, uint32_t choice, uint32_t n, float a, float b)
{
    return (struct llm_event){
        .id = id, .type = LLM_EVENT_TOKENS, .choice = choice, .n_tokens = n, .logprobs = {a, b}};
}

static struct llm_event final(uint64_t id, uint32_t choice)
{
    return (struct llm_event){.id = id, .type = LLM_EVENT_DONE, .choice = choice};
}

static void sums_of_labels(void **state)
{
    (void)state;
    struct llm_choose_result r;
    llm_choose_begin(&r, 5, 3);
    const struct llm_event events[] = {
        scored(5, 0, 2, -1.5f, -2.5f),
        scored(5, 1, 1, -3, 0),
        scored(6, 1, 1, 100, 0),
        scored(5, 2, 2, -4, -4),
        scored(5, 1, 1, -0.5, 0),
        final(5, 0),
        final(6, 1),
        final(5, 2),
    };
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        assert_int_equal(llm_choose_add(&r, &events[i]), 0);
    struct llm_event last = final(5, 1);
    assert_int_equal(llm_choose_add(&r, &last), 1);
    assert_int_equal(llm_choose_best(&r), 1);
    assert_true(r.logprob[0] == -4.0 && r.logprob[1] == -3.5 && r.logprob[2] == -8.0);
    assert_int_equal(r.n_tokens[1], 2);

    llm_choose_begin(&r, 5, 2);
    struct llm_event failed = {.id = 5, .type = LLM_EVENT_ERROR, .choice = 1, .status = LLM_EBUSY};
    assert_int_equal(llm_choose_add(&r, &failed), 0);
    last = final(5, 0);
    last.finish = LLM_FINISH_CANCELLED;
    assert_int_equal(llm_choose_add(&r, &last), LLM_EBUSY);
    llm_choose_begin(&r, 5, 1);
    assert_int_equal(llm_choose_add(&r, &last), -ECANCELED);
}

/* ---- refused here ---- */

#define WRONG(error, ...)                                                                          \
    do {                                                                                           \
        struct llm_request q_ = request(), *q = &q_;                                               \
        __VA_ARGS__;                                                                               \
        int rc_ = llm_submit(c, q, NULL);                                                          \
        if (rc_ != (error) || llm_errcode(c) != rc_ || !*llm_errmsg(c))                            \
            fail_msg("line %d: %d (%s)", __LINE__, rc_, llm_errmsg(c));                            \
    } while (0)

static void wrong_requests_never_leave(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    static const int32_t beyond[] = {1, FAKE_VOCAB};
    struct llm_label two[] = {label(0, 1), label(0, 1)}, none = {words, 0}, far = {beyond, 2};
    struct llm_label broad = label(0, 300), null = {NULL, 1};
    WRONG(-EINVAL, q->flags = LLM_SQE_FLAGS + 1);
    WRONG(LLM_EPARAM, q->flags = LLM_SQE_SPECULATE | LLM_SQE_NO_SPECULATION);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SCORE, q->flags = LLM_SQE_SPECULATE);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_OPEN, q->session = 1,
          q->flags = LLM_SQE_NO_SPECULATION);
    WRONG(LLM_EPARAM, q->priority = 3);
    WRONG(LLM_EPARAM, q->flags = LLM_SQE_INTERRUPT);
    WRONG(LLM_EPARAM, q->flags = LLM_SQE_PIN);
    WRONG(LLM_EPARAM, q->session_keep = 4);
    WRONG(LLM_EPARAM, q->session_to = 4);
    WRONG(LLM_EPARAM, q->session = 1, q->choices = 2);
    WRONG(LLM_EPARAM, q->session = 1, q->output_from = 2);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SCORE, q->session = 1);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SCORE, q->deadline_us = 1);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SCORE, q->first_choice = 1);
    WRONG(LLM_EPARAM, q->first_choice = 64);
    WRONG(LLM_EPARAM, q->first_choice = 62, q->choices = 3);
    WRONG(LLM_EPARAM, q->output_from = 6);
    WRONG(LLM_EPARAM, q->output_from = 1, q->max_tokens = 3);
    WRONG(-EINVAL, q->n_labels = 1, q->labels = two);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = 1);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = 65, q->labels = two);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = FAKE_INFLIGHT + 1, q->labels = two);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = 1, q->labels = &none);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = 1, q->labels = &null);
    WRONG(LLM_EPARAM, q->op = LLM_OP_CHOOSE, q->n_labels = 2, q->labels = two, q->n_tokens = 0);
    WRONG(LLM_ETOKEN, q->op = LLM_OP_CHOOSE, q->n_labels = 1, q->labels = &far);
    WRONG(LLM_ETOOLONG, q->op = LLM_OP_CHOOSE, q->n_labels = 1, q->labels = &broad);
    WRONG(LLM_ETOOLONG, q->output_from = 5, q->max_tokens = FAKE_MAX_LEN - 4);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_APPEND);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_FORK, q->session = 1, q->n_tokens = 0);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_FORK, q->session = q->session_to = 1, q->n_tokens = 0);
    WRONG(-EINVAL, q->op = LLM_OP_SESSION_CLOSE, q->session = 1);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_OPEN, q->session = 1, q->session_keep = 2);
    WRONG(LLM_EPARAM, q->op = LLM_OP_SESSION_OPEN, q->session = 1, q->flags = LLM_SQE_INTERRUPT);
    assert_int_equal(llm_session_close(c, 0, NULL), LLM_EPARAM);
    assert_true(fake_nothing_came(f));
    assert_int_equal(llm_inflight(c), 0);
    struct llm_request right = request(); /* the tokens from output_from on count once */
    right.output_from = 1, right.max_tokens = FAKE_MAX_LEN - 1;
    submit(c, &right);
    llm_close(c);
}

/* Tokens that fit, but not with the labels behind them. */
static void labels_that_never_fit(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct llm_label labels[] = {label(0, 60), label(0, 60)};
    assert_int_equal(llm_choose(c, prompt, 5, labels, 2, NULL), -E2BIG);
    assert_non_null(strstr(llm_errmsg(c), "arena_bytes"));
    assert_true(fake_nothing_came(f));
    llm_close(c);
}

/* ---- versions ---- */

/* struct llm_request as the header of 1.0 had it (commit d001699). */
struct request_1_0 {
    uint32_t size, op;
    const int32_t *tokens;
    uint32_t n_tokens, max_tokens, choices, flags;
    uint64_t seed, user_data;
    float temperature, top_p, min_p;
    uint32_t top_k;
};

static void a_program_of_1_0_keeps_working(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct {
        struct request_1_0 r;
        uint8_t beyond[64]; /* the caller's own: never looked at */
    } old = {.r = {sizeof old.r, LLM_OP_GENERATE, prompt, 5, 6, 2, LLM_SQE_LOGPROBS, 9, 1234, 0.5f,
                   0.9f, 0.1f, 4}};
    memset(old.beyond, 0xFF, sizeof old.beyond);
    uint64_t id;
    if (llm_submit(c, (const struct llm_request *)(const void *)&old, &id))
        fail_msg("%s", llm_errmsg(c));
    struct llm_sqe e = fake_take_quietly(f);
    assert_true(e.user_data == 1234 && id == 1234 && e.seed == 9);
    assert_true(e.max_tokens == 6 && e.choices == 2 && e.flags == LLM_SQE_LOGPROBS);
    assert_true(e.temperature == 0.5f && e.top_p == 0.9f && e.min_p == 0.1f && e.top_k == 4);
    assert_true(!e.session && !e.target && !e.priority && !e.deadline_us && !e.timeout_ms &&
                !e.queue_timeout_ms && !e.max_itl_us && !e.first_choice && !e.output_from &&
                !e.options_len);
    old.r.size = sizeof old.r + 8; /* never was a size */
    assert_int_equal(llm_submit(c, (const struct llm_request *)(const void *)&old, NULL), -EINVAL);
    llm_close(c);
}

/* A newer program's llm_request: what this library does not know must be zero. */
static void a_program_of_later_times(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = fake_client(f);
    struct {
        struct llm_request r;
        uint64_t later;
    } new = {request(), 0};
    new.r.size = sizeof new;
    submit(c, &new.r);
    new.later = 1;
    assert_int_equal(llm_submit(c, &new.r, NULL), -EINVAL);
    llm_close(c);
}

static void an_engine_of_1_0_is_never_sent_what_it_does_not_know(void **state)
{
    struct fake *f = *state;
    f->older = LLM_ABI_MINOR;
    struct llm_client *c = fake_client(f);
    struct llm_label one = label(0, 1);
    struct llm_limits l;
    llm_get_limits(c, &l);
    assert_int_equal(l.abi_minor, 0);
    assert_int_equal(f->hello.minor, LLM_ABI_MINOR);
    WRONG(-ENOTSUP, q->flags = LLM_SQE_NO_CACHE);
    WRONG(-ENOTSUP, q->flags = LLM_SQE_SPECULATE);
    WRONG(-ENOTSUP, q->session = 1);
    WRONG(-ENOTSUP, q->priority = LLM_PRIORITY_HIGH);
    WRONG(-ENOTSUP, q->deadline_us = 1);
    WRONG(-ENOTSUP, q->timeout_ms = 1);
    WRONG(-ENOTSUP, q->queue_timeout_ms = 1);
    WRONG(-ENOTSUP, q->max_itl_us = 1);
    WRONG(-ENOTSUP, q->first_choice = 1);
    WRONG(-ENOTSUP, q->output_from = 1);
    assert_non_null(strstr(llm_errmsg(c), "version 1.0"));
    assert_int_equal(llm_session_open(c, 1, NULL, 0, 0, NULL), -ENOTSUP);
    assert_int_equal(llm_choose(c, prompt, 5, &one, 1, NULL), -ENOTSUP);
    assert_int_equal(llm_resume(c, 0, 0), -ENOTSUP);
    assert_true(fake_nothing_came(f));

    struct llm_request r = request(); /* what 1.0 knows is what it was */
    uint64_t id = submit(c, &r);
    assert_true(fake_take_quietly(f).user_data == id);
    llm_close(c);
}

static void every_code_has_its_meaning(void **state)
{
    (void)state;
    for (int code = LLM_EOWNERDEAD; code >= LLM_ENUMERICS; code--) {
        assert_string_not_equal(llm_strerror(code), "unknown error");
        for (int other = code + 1; other <= LLM_EOWNERDEAD; other++)
            assert_string_not_equal(llm_strerror(code), llm_strerror(other));
    }
    assert_string_equal(llm_strerror(LLM_ENUMERICS - 1), "unknown error");
    const char *session = llm_strerror(LLM_ESESSION); /* two faults: what to do about each */
    assert_non_null(strstr(session, "interrupt it"));
    assert_non_null(strstr(session, "another key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_has_its_meaning),
        FAKE_TEST(every_field_arrives),
        FAKE_TEST(a_choice_that_was_not_asked_for_breaks_the_ring),
        FAKE_TEST(generating_on_a_session),
        FAKE_TEST(each_session_call_is_one_request),
        cmocka_unit_test(keys_of_names),
        FAKE_TEST(labels_travel_behind_the_prompt),
        FAKE_TEST(labels_behind_a_reserve),
        cmocka_unit_test(maps_of_all_sizes),
        cmocka_unit_test(sums_of_labels),
        FAKE_TEST(wrong_requests_never_leave),
        FAKE_TEST(labels_that_never_fit),
        FAKE_TEST(a_program_of_1_0_keeps_working),
        FAKE_TEST(a_program_of_later_times),
        FAKE_TEST(an_engine_of_1_0_is_never_sent_what_it_does_not_know),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
