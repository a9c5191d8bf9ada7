/* test_client_sampling.c - penalties, stop strings, biases and candidates on the client's side: what
 * is asked for arrives where the ABI has it, what makes no sense never leaves, and what an engine
 * says of candidates is believed only as far as it can be true.
 */
#include "../../appliance/option_map.h"
#include "../../client/handle.h"
#include "../../shm/ring.h"

#include "fake_engine.h"

#include <math.h>

static const int32_t prompt[] = {3, 1, 4, 1, 5};
static const struct llm_stop stops[] = {{"\n\n", 2}, {"User:", 5}, {"\0", 1}};
static const struct llm_bias biases[] = {{7, -100.0f}, {99, 0.5f}};

static struct llm_request request(void)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.tokens = prompt, r.n_tokens = 5, r.max_tokens = 6, r.seed = 9;
    return r;
}

static struct llm_request full_request(void)
{
    struct llm_request r = request();
    r.repetition = 1.25f, r.presence = -2, r.frequency = 0.5f;
    r.stops = stops, r.n_stops = 3;
    r.biases = biases, r.n_biases = 2;
    r.top_logprobs = 4;
    return r;
}

static struct llm_client *client_with(struct fake *f, uint32_t top)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    f->top = o.max_top_logprobs = top;
    if (fake_connect(f, &o, &c))
        fail_msg("%s", llm_connect_error());
    assert_int_equal(f->hello.top, top);
    assert_int_equal(llm_max_top_logprobs(c), top);
    return c;
}

static uint64_t submit(struct llm_client *c, const struct llm_request *r)
{
    uint64_t id = 0;
    if (llm_submit(c, r, &id))
        fail_msg("%s", llm_errmsg(c));
    return id;
}

/* ---- what arrives ---- */

/* The entry is that of full_request, in all that full_request adds. */
static struct llm_sqe take_full(struct fake *f, const int32_t *tokens, uint32_t n)
{
    int32_t came[FAKE_ARENA / 4], token;
    uint8_t map[FAKE_ARENA];
    struct option_map m;
    const char *why;
    float bias;
    struct llm_sqe e = fake_take_all(f, came, map);
    assert_int_equal(e.tokens_len, n);
    assert_memory_equal(came, tokens, n * sizeof *came);
    assert_true(e.repetition == 1.25f && e.presence == -2 && e.frequency == 0.5f);
    if (option_map_read(&m, map, e.options_len, &why))
        fail_msg("%s", why);
    assert_int_equal(m.given, 1u << OPTION_STOP | 1u << OPTION_BIAS | 1u << OPTION_TOP);
    assert_int_equal(m.top, 4);
    assert_int_equal(m.n_stops, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(m.stops[i].bytes, stops[i].bytes);
        assert_memory_equal(map + m.stops[i].at, stops[i].text, stops[i].bytes);
    }
    assert_int_equal(m.n_biases, 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(option_bias(map, &m, i, &token, &bias), 0);
        assert_true(token == biases[i].token && bias == biases[i].bias);
    }
    return e;
}

static void all_of_it_arrives(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = client_with(f, 4);
    struct llm_request r = full_request();
    submit(c, &r);
    take_full(f, prompt, 5);
    int32_t *in_place = llm_reserve(c, 60); /* with room for the map behind the tokens */
    memcpy(in_place, prompt, sizeof prompt);
    r.tokens = in_place;
    submit(c, &r);
    take_full(f, prompt, 5);
    in_place = llm_reserve(c, 5); /* without: it moves */
    memcpy(in_place, prompt, sizeof prompt);
    r.tokens = in_place;
    submit(c, &r);
    take_full(f, prompt, 5);
    r.session = 8, r.tokens = NULL, r.n_tokens = 0; /* a map alone */
    submit(c, &r);
    take_full(f, prompt, 0);
    llm_close(c);
}

static void what_is_off_takes_no_map(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = client_with(f, 0);
    struct llm_request r = request();
    for (int i = 0; i < 2; i++, r.repetition = 0) { /* 0: as in a request that was zeroed */
        submit(c, &r);
        struct llm_sqe e = fake_take_quietly(f);
        assert_true(e.repetition == 1 && e.presence == 0 && e.frequency == 0);
        assert_int_equal(e.options_len, 0);
    }
    llm_close(c);
}

/* Every size of stop strings, biases: what is counted is what is written, and is read again. */
static void maps_of_all_sizes(void **state)
{
    (void)state;
    static struct llm_bias many[LLM_BIASES_MAX];
    static uint8_t map[LLM_OPTIONS_MAX + 1];
    static char text[LLM_STOP_BYTES_MAX];
    struct llm_stop some[LLM_STOPS_MAX];
    struct option_map m;
    const char *why;
    for (uint32_t n = 1; n <= LLM_STOPS_MAX; n++)
        for (uint32_t k = 0; k <= LLM_BIASES_MAX; k += 31) {
            struct llm_request r = LLM_REQUEST_INIT;
            for (uint32_t i = 0; i < n; i++)
                some[i] = (struct llm_stop){text, i ? 1 : n == 16 ? 256 : 17 * n};
            r.stops = some, r.n_stops = n, r.biases = many, r.n_biases = k;
            r.top_logprobs = n;
            uint64_t bytes = request_options_bytes(&r);
            map[bytes] = 0xA5;
            request_options_write(&r, map);
            assert_int_equal(map[bytes], 0xA5);
            if (option_map_read(&m, map, bytes, &why))
                fail_msg("%u stop strings, %u biases: %s", n, k, why);
            assert_true(m.n_stops == n && m.n_biases == k && m.top == n);
        }
}

/* After the engine's death all of it is asked for again. */
static void resumed_with_all_of_it(void **state)
{
    struct fake *f = *state;
    static const int32_t whole[] = {3, 1, 4, 1, 5, 20};
    struct llm_client *c = client_with(f, 4);
    struct llm_request r = full_request();
    struct llm_event e;
    assert_int_equal(llm_resume(c, 0, 0), 0);
    uint64_t id = submit(c, &r);
    take_full(f, prompt, 5);
    fake_token(f, id, 0, 0, 20);
    fake_publish(f);
    assert_int_equal(llm_poll(c, &e), 1);
    fake_die(f);
    llm_arm(c);
    assert_int_equal(llm_poll(c, &e), 0);
    fake_handshake(f);
    assert_int_equal(f->hello.top, 4);
    assert_int_equal(llm_poll(c, &e), 0);
    struct llm_sqe again = take_full(f, whole, 6);
    assert_int_equal(again.output_from, 5);
    llm_close(c);
}

/* ---- what never leaves ---- */

#define WRONG(error, ...)                                                                          \
    do {                                                                                           \
        struct llm_request q_ = full_request(), *q = &q_;                                          \
        __VA_ARGS__;                                                                               \
        int rc_ = llm_submit(c, q, NULL);                                                          \
        if (rc_ != (error) || llm_errcode(c) != rc_ || !*llm_errmsg(c))                            \
            fail_msg("line %d: %d (%s)", __LINE__, rc_, llm_errmsg(c));                            \
    } while (0)

static void wrong_requests_never_leave(void **state)
{
    struct fake *f = *state;
    struct llm_client *c = client_with(f, 4);
    struct llm_stop empty = {"x", 0}, huge = {"x", LLM_STOP_BYTES_MAX + 1}, null = {NULL, 3};
    struct llm_bias far = {FAKE_VOCAB, 1}, negative = {-1, 1}, strong = {1, 100.5f}, nan = {1, NAN};
    WRONG(LLM_EPARAM, q->repetition = -1);
    assert_non_null(
        strstr(llm_errmsg(c), "the repetition penalty is -1, not a finite number over"));
    WRONG(LLM_EPARAM, q->repetition = NAN);
    WRONG(LLM_EPARAM, q->repetition = INFINITY);
    WRONG(LLM_EPARAM, q->presence = 2.5f);
    assert_string_equal(llm_errmsg(c), "the presence penalty is 2.5, not in [-2, 2]");
    WRONG(LLM_EPARAM, q->presence = NAN);
    WRONG(LLM_EPARAM, q->frequency = -2.5f);
    assert_string_equal(llm_errmsg(c), "the frequency penalty is -2.5, not in [-2, 2]");
    WRONG(LLM_EPARAM, q->frequency = NAN);
    WRONG(LLM_EPARAM, q->top_logprobs = 5);
    WRONG(LLM_EPARAM, q->n_stops = 17);
    WRONG(LLM_EPARAM, q->stops = NULL);
    WRONG(LLM_EPARAM, q->stops = &empty, q->n_stops = 1);
    WRONG(LLM_EPARAM, q->stops = &huge, q->n_stops = 1);
    WRONG(LLM_EPARAM, q->stops = &null, q->n_stops = 1);
    WRONG(LLM_EPARAM, q->n_biases = 1025);
    WRONG(LLM_EPARAM, q->biases = NULL);
    WRONG(LLM_ETOKEN, q->biases = &far, q->n_biases = 1);
    WRONG(LLM_ETOKEN, q->biases = &negative, q->n_biases = 1);
    WRONG(LLM_EPARAM, q->biases = &strong, q->n_biases = 1);
    WRONG(LLM_EPARAM, q->biases = &nan, q->n_biases = 1);
    WRONG(-EINVAL, q->op = LLM_OP_SCORE);
    struct llm_stop long_one[2] = {{"x", 256}, {"x", 256}};
    char text[256] = "";
    long_one[0].text = long_one[1].text = text;
    WRONG(-E2BIG, q->stops = long_one, q->n_stops = 2); /* never fits into this arena */
    WRONG(-E2BIG, q->stops = long_one, q->n_stops = 2, q->session = 1, q->n_tokens = 0);
    assert_true(fake_nothing_came(f));
    llm_close(c);
}

/* An engine of 1.0 knows nothing of all this. */
static void an_older_engine(void **state)
{
    struct fake *f = *state;
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.max_top_logprobs = 20;
    f->older = 1;
    assert_int_equal(fake_connect(f, &o, &c), 0);
    assert_int_equal(llm_max_top_logprobs(c), 0);
    WRONG(-ENOTSUP, *q = request(), q->repetition = 1.5f);
    WRONG(-ENOTSUP, *q = request(), q->presence = 1);
    WRONG(-ENOTSUP, *q = request(), q->frequency = 1);
    WRONG(-ENOTSUP, *q = request(), q->stops = stops, q->n_stops = 1);
    WRONG(-ENOTSUP, *q = request(), q->biases = biases, q->n_biases = 1);
    WRONG(-ENOTSUP, *q = request(), q->top_logprobs = 1);
    struct llm_request plain = request();
    submit(c, &plain);
    llm_close(c);
}

/* struct llm_options as the header of 1.0 had it, its padding not zero. */
static void options_of_1_0(void **state)
{
    struct fake *f = *state;
    struct {
        uint32_t size, max_inflight, arena_bytes, sq_entries, cq_entries, spin_us;
        const char *name;
        uint32_t connect_timeout_ms, padding;
        uint8_t beyond[32]; /* the caller's own */
    } old = {.size = 40, .name = "old", .connect_timeout_ms = 4000, .padding = 0xFFFFFFFF};
    memset(old.beyond, 0xFF, sizeof old.beyond);
    struct llm_client *c;
    if (fake_connect(f, (const struct llm_options *)(const void *)&old, &c))
        fail_msg("%s", llm_connect_error());
    assert_int_equal(f->hello.top, 0);
    assert_string_equal(f->hello.name, "old");
    llm_close(c);
    struct llm_options o = LLM_OPTIONS_INIT;
    o.max_top_logprobs = LLM_TOP_MAX + 1;
    assert_int_equal(llm_connect(&c, "fake", &o), LLM_EPARAM);
    assert_non_null(strstr(llm_connect_error(), "max_top_logprobs"));
}

/* ---- candidates ---- */

static void put(struct fake *f, uint64_t id, uint32_t position, const struct llm_candidate *top,
                uint32_t n, uint16_t count)
{
    struct llm_cqe cqe = {.user_data = id,
                          .type = LLM_CQE_TOKENS,
                          .flags = LLM_CQE_HAS_LOGPROBS | LLM_CQE_HAS_TOP,
                          .count = count,
                          .position = position,
                          .tokens = {9},
                          .logprobs = {-2}};
    if (f->ring.top)
        ring_put_top(&f->ring, top, n);
    ring_put(&f->ring, &cqe, NULL);
}

static void candidates_come_with_their_token(void **state)
{
    struct fake *f = *state;
    static const struct llm_candidate top[2][4] = {{{1, -0.5f}, {2, -1}, {3, -2}, {0, -3}},
                                                   {{5, -0.25f}, {99, -4}}};
    struct llm_client *c = client_with(f, 4);
    struct llm_candidate got[4];
    struct llm_request r = full_request();
    struct llm_event e;
    for (uint32_t round = 0; round < 3 * FAKE_CQ; round++) { /* around the ring */
        uint64_t id = submit(c, &r);
        take_full(f, prompt, 5);
        put(f, id, 0, top[0], 4, 1);
        put(f, id, 1, top[1], 2, 1); /* fewer than there is room for */
        fake_token(f, id, 0, 2, 8);
        fake_done(f, id, 0, LLM_FINISH_STOP);
        fake_publish(f);
        assert_int_equal(llm_poll(c, &e), 1);
        assert_int_equal(e.n_tokens, 1);
        assert_int_equal(llm_event_top(c, 0, got, 4), 4);
        assert_memory_equal(got, top[0], sizeof got);
        assert_int_equal(llm_event_top(c, 0, NULL, 0), 4);
        assert_int_equal(llm_event_top(c, 1, got, 4), 0);
        memset(got, 0, sizeof got);
        assert_int_equal(llm_event_top(c, 0, got, 1), 4);
        assert_true(got[0].token == 1 && got[1].token == 0);
        assert_int_equal(llm_poll(c, &e), 1);
        assert_int_equal(llm_event_top(c, 0, got, 4), 2);
        assert_memory_equal(got, top[1], 2 * sizeof *got);
        for (int i = 0; i < 2; i++) { /* a token without, and the final */
            assert_int_equal(llm_poll(c, &e), 1);
            assert_int_equal(llm_event_top(c, 0, got, 4), 0);
        }
        assert_int_equal(llm_poll(c, &e), 0);
    }
    llm_close(c);
}

/* One client for each: a broken ring is the end. */
static void hostile(struct fake *f, uint32_t top, int32_t token, uint16_t count)
{
    const struct llm_candidate one = {token, -1};
    struct llm_client *c = client_with(f, top);
    struct llm_request r = request();
    struct llm_event e;
    uint64_t id = submit(c, &r);
    fake_take_quietly(f);
    put(f, id, 0, &one, 1, count);
    fake_publish(f);
    assert_int_equal(llm_poll(c, &e), 1);
    assert_int_equal(e.status, LLM_EPROTO);
    assert_int_equal(llm_event_top(c, 0, NULL, 0), 0);
    llm_close(c);
}

static void candidate_outside_the_vocabulary(void **state)
{
    hostile(*state, 4, FAKE_VOCAB, 1);
}

static void negative_candidate(void **state)
{
    hostile(*state, 4, -2, 1);
}

static void candidates_of_several_tokens(void **state)
{
    hostile(*state, 4, 1, 2);
}

static void candidates_without_room(void **state)
{
    hostile(*state, 0, 1, 1);
}

static void more_granted_than_asked_for(void **state)
{
    struct fake *f = *state;
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.max_top_logprobs = 3;
    f->top = 4;
    assert_int_equal(fake_connect(f, &o, &c), LLM_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FAKE_TEST(all_of_it_arrives),
        FAKE_TEST(what_is_off_takes_no_map),
        cmocka_unit_test(maps_of_all_sizes),
        FAKE_TEST(resumed_with_all_of_it),
        FAKE_TEST(wrong_requests_never_leave),
        FAKE_TEST(an_older_engine),
        FAKE_TEST(options_of_1_0),
        FAKE_TEST(candidates_come_with_their_token),
        FAKE_TEST(candidate_outside_the_vocabulary),
        FAKE_TEST(negative_candidate),
        FAKE_TEST(candidates_of_several_tokens),
        FAKE_TEST(candidates_without_room),
        FAKE_TEST(more_granted_than_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
