/* prompt.c - see prompt.h. */
#include "prompt.h"

#include <stdlib.h>
#include <string.h>

int32_t *prompt_tokenize(const struct model *m, const char *text, size_t bytes, unsigned flags,
                         uint32_t *n, struct problem *problem)
{
    if (!m->tokenizer) {
        problem_set(problem, 400, "unsupported_value", "prompt",
                    "this model's text cannot be tokenized (%s): send token ids", m->why_no_text);
        return NULL;
    }
    /* a token has at least a byte, but for those that are added around a text */
    size_t room = bytes + 8;
    int32_t *tokens = malloc(room * sizeof *tokens);
    long got = tokens ? llm_tokenize(m->tokenizer, text, bytes, flags, tokens, room) : -1;
    if (got < 0 || (size_t)got > room) {
        free(tokens);
        problem_memory(problem);
        return NULL;
    }
    int32_t *less = realloc(tokens, (size_t)(got ? got : 1) * sizeof *tokens);
    *n = (uint32_t)got;
    return less ? less : tokens;
}

int32_t *prompt_ids(const struct model *m, const json_t *array, const char *param, uint32_t *n,
                    struct problem *problem)
{
    size_t i;
    const json_t *v;
    int32_t *tokens = malloc((json_array_size(array) + 1) * sizeof *tokens);
    if (!tokens) {
        problem_memory(problem);
        return NULL;
    }
    json_array_foreach((json_t *)array, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= (json_int_t)m->limits.vocab) {
            free(tokens);
            problem_set(problem, 400, "invalid_token", param,
                        "%s: element %zu is no token id: this model's are 0 to %u", param, i,
                        m->limits.vocab - 1);
            return NULL;
        }
        tokens[i] = (int32_t)id;
    }
    *n = (uint32_t)json_array_size(array);
    return tokens;
}

/* ---- completions ---- */

static int echo_ids(const struct model *m, struct prompt *p, struct problem *problem)
{
    struct buffer text = {0};
    for (uint32_t i = 0; i < p->n; i++) {
        const char *bytes;
        long n = llm_token_bytes(m->tokenizer, p->tokens[i], &bytes);
        if (n > 0 && !llm_token_is_control(m->tokenizer, p->tokens[i]))
            buffer_add(&text, bytes, (size_t)n);
    }
    p->text = text.data;
    p->bytes = text.bytes;
    return text.failed ? problem_memory(problem) : 0;
}

static int echo_text(struct prompt *p, const json_t *v, struct problem *problem)
{
    p->bytes = json_string_length(v);
    if (!(p->text = malloc(p->bytes + 1)))
        return problem_memory(problem);
    memcpy(p->text, json_string_value(v), p->bytes);
    return 0;
}

static int read_one(struct call *c, struct prompt *p, const json_t *v, struct problem *problem)
{
    const struct model *m = c->model;
    if (json_is_string(v))
        p->tokens =
            prompt_tokenize(m, json_string_value(v), json_string_length(v),
                            LLM_TOKENIZE_SPECIAL | LLM_TOKENIZE_ADD_SPECIAL, &p->n, problem);
    else if (json_is_array(v))
        p->tokens = prompt_ids(m, v, "prompt", &p->n, problem);
    else
        return problem_set(problem, 400, "invalid_type", "prompt",
                           "'prompt' must be a string, an array of strings, of token ids, or of "
                           "arrays of token ids");
    if (!p->tokens)
        return -1;
    if (!p->n)
        return problem_value(problem, "prompt", "the prompt has no tokens");
    c->prompt_tokens += p->n;
    if (!c->params.echo)
        return 0;
    return json_is_string(v) ? echo_text(p, v, problem) : echo_ids(m, p, problem);
}

/* One prompt, or several. */
static int read_completion(struct call *c, struct problem *problem)
{
    const json_t *v = c->params.prompt;
    bool one = json_is_string(v) || json_is_integer(json_array_get(v, 0));
    size_t n = one ? 1 : json_array_size(v);
    if (!n)
        return problem_value(problem, "prompt", "'prompt' is empty");
    if (n > CALL_PROMPTS_MAX)
        return problem_value(problem, "prompt", "there are %zu prompts: at most %d in one request",
                             n, CALL_PROMPTS_MAX);
    if (n * c->params.n > CALL_CHOICES_MAX)
        return problem_value(problem, "n",
                             "%zu prompts with %u choices each: at most %d in one "
                             "request",
                             n, c->params.n, CALL_CHOICES_MAX);
    if (!(c->prompts = calloc(n, sizeof *c->prompts)))
        return problem_memory(problem);
    c->n_prompts = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        if (read_one(c, &c->prompts[i], one ? v : json_array_get(v, i), problem))
            return -1;
    return 0;
}

/* ---- chat ---- */

static int read_chat(struct call *c, struct problem *problem)
{
    size_t bytes;
    char *text = chat_render(&c->params, c->model, &bytes, &c->forced, problem);
    if (!text)
        return -1;
    if (!(c->prompts = calloc(1, sizeof *c->prompts))) {
        llm_template_free_text(text);
        return problem_memory(problem);
    }
    c->n_prompts = 1;
    struct prompt *p = &c->prompts[0];
    p->tokens = prompt_tokenize(c->model, text, bytes, LLM_TOKENIZE_SPECIAL, &p->n, problem);
    llm_template_free_text(text);
    c->prompt_tokens = p->n;
    if (p->tokens && !p->n)
        return problem_value(problem, "messages", "the messages have no tokens");
    return p->tokens ? 0 : -1;
}

int prompt_make(struct call *c, struct problem *problem)
{
    if (!c->model->tokenizer)
        return problem_set(problem, 400, "unsupported_value", NULL,
                           "this model's tokenizer is not supported (%s)", c->model->why_no_text);
    return c->params.api == API_CHAT ? read_chat(c, problem) : read_completion(c, problem);
}
