/* A generation that goes on elsewhere: resumed behind any of its tokens it brings the same rest and
 * the same final. */
#include "../support/engine_rig.h"

#include <string.h>

enum { PROMPT = 21, OUTPUT = 40 };

static void open_rig(struct rig *r, bool cache)
{
    rig_init(r);
    r->config.prefix_cache = cache;
    rig_open(r);
}

/* What is to be sent after `n` tokens of that stream have come. */
static struct llm_sqe resumed(const struct rig_stream *s, uint64_t id, uint32_t n, int32_t *tokens)
{
    struct llm_sqe q = s->q;
    q.user_data = id;
    q.first_choice = (uint16_t)s->choice;
    q.choices = 1;
    q.output_from = s->n_known;
    q.tokens_len = s->n_known + n;
    memcpy(tokens, s->known, s->n_known * sizeof *tokens);
    memcpy(tokens + s->n_known, s->tokens, n * sizeof *tokens);
    return q;
}

/* `s` ended by itself, in whatever engine; on this one it is resumed behind each token. */
static void resume_everywhere(struct rig *r, const struct rig_stream *s, uint64_t first_id)
{
    int32_t tokens[RIG_TOKENS];
    for (uint32_t n = 0; n <= s->n; n++) {
        struct llm_sqe q = resumed(s, first_id + n, n, tokens);
        assert_true(rig_submit(r, 1, &q, tokens));
        while (engine_has_work(r->engine)) {
            rig_step(r);
            rig_audit(r);
        }
        const struct rig_stream *rest = rig_stream(r, 1, q.user_data, s->choice);
        rig_expect_stream(r, rest, true);
        assert_int_equal(rest->n, s->n - n);
        assert_memory_equal(rest->tokens, s->tokens + n, rest->n * sizeof *rest->tokens);
        assert_memory_equal(rest->logprob, s->logprob + n, rest->n * sizeof *rest->logprob);
        assert_int_equal(rest->final.finish, s->final.finish);
        assert_int_equal(rest->final.position, s->final.position);
        assert_int_equal(rest->result.prompt_tokens, s->result.prompt_tokens);
        assert_int_equal(rest->result.output_tokens, s->result.output_tokens);
    }
}

static void every_split(const struct llm_sqe *q, bool cache)
{
    static struct rig r, elsewhere; /* another engine, that has never seen the request */
    open_rig(&r, cache);
    open_rig(&elsewhere, cache);
    rig_send(&r, 0, q);
    rig_run(&r);
    rig_expect_whole(&r, 0, q);
    for (uint32_t i = 0; i < q->choices; i++)
        resume_everywhere(i % 2 ? &r : &elsewhere, rig_stream(&r, 0, q->user_data, i),
                          1000 * (i + 1));
    rig_close(&elsewhere);
    rig_close(&r);
}

static void of_a_length(void **state)
{
    (void)state;
    struct llm_sqe q = rig_generate(1, PROMPT, OUTPUT);
    q.flags = LLM_SQE_IGNORE_EOS | LLM_SQE_LOGPROBS;
    every_split(&q, false);
    every_split(&q, true);
}

static void of_several_choices(void **state)
{
    (void)state;
    struct llm_sqe q = rig_generate(1, PROMPT, OUTPUT);
    q.flags = LLM_SQE_LOGPROBS;
    q.temperature = 0.9f;
    q.choices = 5;
    every_split(&q, true);
}

/* Among many seeds some end by a stop token, the split behind it included. */
static void that_stopped(void **state)
{
    (void)state;
    uint32_t stopped = 0;
    for (uint64_t id = 1; id < 30; id++) {
        static struct rig r;
        struct llm_sqe q = rig_generate(id, PROMPT, OUTPUT);
        open_rig(&r, id % 2);
        rig_send(&r, 0, &q);
        rig_run(&r);
        const struct rig_stream *s = rig_stream(&r, 0, id, 0);
        stopped += s->final.finish == LLM_FINISH_STOP;
        resume_everywhere(&r, s, 100);
        rig_close(&r);
    }
    assert_true(stopped > 5);
}

static void what_had_ended_ends_at_once(void **state)
{
    (void)state;
    struct rig r;
    int32_t tokens[RIG_TOKENS];
    open_rig(&r, false);
    struct llm_sqe q = rig_generate(1, 12, 2);
    q.choices = 3;
    q.output_from = 10;
    rig_send(&r, 0, &q);
    assert_false(engine_has_work(r.engine));
    for (uint32_t i = 0; i < 3; i++) { /* each choice has its final */
        const struct rig_stream *s = rig_stream(&r, 0, 1, i);
        assert_int_equal(s->finals, 1);
        assert_int_equal(s->final.finish, LLM_FINISH_LENGTH);
        assert_int_equal(s->final.position, 2);
        assert_int_equal(s->puts, 1);
    }
    q = rig_generate(2, 12, 30);
    q.output_from = 10;
    rig_prompt(&r, 2, tokens, 12);
    tokens[11] = 5; /* an end */
    assert_true(rig_submit(&r, 0, &q, tokens));
    assert_int_equal(rig_stream(&r, 0, 2, 0)->final.finish, LLM_FINISH_STOP);
    rig_expect_whole(&r, 0, &q);
    q.user_data = 3;
    q.flags = LLM_SQE_IGNORE_EOS;
    assert_true(rig_submit(&r, 0, &q, tokens));
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_int_equal(rig_stream(&r, 0, 3, 0)->n, 28);
    tokens[9] = 5; /* the prompt's own end is none */
    q.user_data = 4;
    q.flags = 0;
    q.output_from = q.tokens_len = 10;
    assert_true(rig_submit(&r, 0, &q, tokens));
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    assert_true(rig_stream(&r, 0, 4, 0)->n > 0);
    rig_audit(&r);
    rig_close(&r);
}

static void several_choices_from_one_beginning(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, false);
    struct llm_sqe q = rig_generate(1, 40, 20);
    q.choices = 4;
    q.first_choice = 7;
    q.output_from = 33;
    q.temperature = 1.0f;
    q.flags = LLM_SQE_LOGPROBS;
    rig_send(&r, 0, &q);
    rig_run(&r);
    rig_expect_whole(&r, 0, &q);
    rig_close(&r);
}

static void refusals(void **state)
{
    (void)state;
    struct rig r;
    open_rig(&r, false);
    struct llm_sqe behind = rig_generate(1, 20, 10), more = rig_generate(2, 20, 10);
    struct llm_sqe number = rig_generate(3, 20, 10), length = rig_generate(4, 20, 500);
    behind.output_from = 21;
    more.output_from = 9;
    number.choices = 2;
    number.first_choice = 63;
    length.output_from = 13;
    rig_send(&r, 0, &behind);
    rig_expect_refused(&r, 0, &behind, LLM_EPARAM, 0);
    rig_send(&r, 0, &more);
    rig_expect_refused(&r, 0, &more, LLM_EPARAM, 0);
    rig_send(&r, 0, &number);
    rig_expect_refused(&r, 0, &number, LLM_EPARAM, 0);
    rig_send(&r, 0, &length);
    rig_expect_refused(&r, 0, &length, LLM_ETOOLONG, 499);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_a_length),
        cmocka_unit_test(of_several_choices),
        cmocka_unit_test(that_stopped),
        cmocka_unit_test(what_had_ended_ends_at_once),
        cmocka_unit_test(several_choices_from_one_beginning),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
