/* text.c - /tokenize and /detokenize, as vLLM has them. */
#include <stdlib.h>

#include "body.h"
#include "prompt.h"
#include "routes.h"

static int read_flag(const json_t *body, const char *name, bool *out, struct problem *problem)
{
    const json_t *v = json_object_get(body, name);
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return problem_set(problem, 400, "invalid_type", name, "'%s' must be true or false", name);
    *out = json_is_true(v);
    return 0;
}

/* The model that the body names; the first one where it names none. */
static struct model *model_of(struct exchange *x, const json_t *body)
{
    struct model *m = NULL;
    const json_t *name = json_object_get(body, "model");
    if (name && !json_is_string(name)) {
        problem_set(&x->problem, 400, "invalid_type", "model", "'model' must be a string");
        return NULL;
    }
    gateway_find(x->gateway,
                 name ? json_string_value(name) : instance_name(x->gateway->instances[0]), &m,
                 &x->problem);
    if (m && !m->tokenizer) {
        problem_set(&x->problem, 400, "unsupported_value", NULL,
                    "this model's tokenizer is not supported (%s)", m->why_no_text);
        model_unref(m);
        return NULL;
    }
    return m;
}

/* ---- /tokenize ---- */

static int32_t *tokens_of_messages(struct exchange *x, const struct model *m, const json_t *body,
                                   uint32_t *n)
{
    struct params p = {.api = API_CHAT,
                       .messages = json_object_get(body, "messages"),
                       .add_generation_prompt = true};
    size_t bytes;
    char *forced = NULL;
    if (read_flag(body, "add_generation_prompt", &p.add_generation_prompt, &x->problem))
        return NULL;
    if (!json_array_size(p.messages)) {
        problem_value(&x->problem, "messages", "'messages' must be an array of messages");
        return NULL;
    }
    char *text = chat_render(&p, m, &bytes, &forced, &x->problem);
    if (!text)
        return NULL;
    int32_t *tokens = prompt_tokenize(m, text, bytes, LLM_TOKENIZE_SPECIAL, n, &x->problem);
    llm_template_free_text(text);
    return tokens;
}

static int32_t *tokens_of_prompt(struct exchange *x, const struct model *m, const json_t *body,
                                 uint32_t *n)
{
    const json_t *prompt = json_object_get(body, "prompt");
    bool special = true;
    if (!json_is_string(prompt)) {
        problem_set(&x->problem, 400, "invalid_type", "prompt",
                    "'prompt' must be a string, or there must be 'messages'");
        return NULL;
    }
    if (read_flag(body, "add_special_tokens", &special, &x->problem))
        return NULL;
    return prompt_tokenize(m, json_string_value(prompt), json_string_length(prompt),
                           LLM_TOKENIZE_SPECIAL | (special ? LLM_TOKENIZE_ADD_SPECIAL : 0), n,
                           &x->problem);
}

static void put_texts(struct buffer *out, const struct model *m, const int32_t *tokens, uint32_t n)
{
    buffer_text(out, ",\"token_strs\":[");
    for (uint32_t i = 0; i < n; i++) {
        const char *text = "";
        long bytes = llm_token_bytes(m->tokenizer, tokens[i], &text);
        buffer_text(out, i ? "," : "");
        json_put_string(out, text, bytes > 0 ? (size_t)bytes : 0);
    }
    buffer_text(out, "]}");
}

static int tokenize(struct exchange *x, const struct model *m, const json_t *body)
{
    uint32_t n = 0;
    bool texts = false;
    if (read_flag(body, "return_token_strs", &texts, &x->problem))
        return -1;
    int32_t *tokens = json_object_get(body, "messages") ? tokens_of_messages(x, m, body, &n)
                                                        : tokens_of_prompt(x, m, body, &n);
    if (!tokens)
        return -1;
    struct buffer *out = &x->reply.body;
    buffer_format(out, "{\"count\":%u,\"max_model_len\":%u,\"tokens\":[", n,
                  m->limits.max_model_len);
    for (uint32_t i = 0; i < n; i++)
        buffer_format(out, "%s%d", i ? "," : "", tokens[i]);
    buffer_text(out, "]");
    if (texts)
        put_texts(out, m, tokens, n);
    else
        buffer_text(out, ",\"token_strs\":null}");
    free(tokens);
    return 0;
}

/* ---- /detokenize ---- */

static int put_text(struct buffer *out, const struct model *m, const int32_t *tokens, uint32_t n)
{
    struct llm_detokenizer *d;
    struct buffer text = {0};
    char part[8192];
    long got = llm_detokenizer_open(&d, m->tokenizer,
                                    LLM_DETOK_UTF8 | LLM_DETOK_SHOW_SPECIAL | LLM_DETOK_CONTINUE);
    if (got < 0)
        return (int)got;
    for (uint32_t i = 0; i < n && got >= 0; i++)
        if ((got = llm_detokenize(d, tokens[i], part, sizeof part)) > 0)
            buffer_add(&text, part, (size_t)got);
    if (got >= 0 && (got = llm_detokenize_flush(d, part, sizeof part)) > 0)
        buffer_add(&text, part, (size_t)got);
    llm_detokenizer_close(d);
    json_put_string(out, text.data, text.bytes);
    out->failed |= text.failed;
    buffer_free(&text);
    return got < 0 ? (int)got : 0;
}

static int detokenize(struct exchange *x, const struct model *m, const json_t *body)
{
    const json_t *ids = json_object_get(body, "tokens");
    uint32_t n;
    if (!json_is_array(ids))
        return problem_set(&x->problem, 400, "invalid_type", "tokens",
                           "'tokens' must be an array of token ids");
    int32_t *tokens = prompt_ids(m, ids, "tokens", &n, &x->problem);
    if (!tokens)
        return -1;
    buffer_text(&x->reply.body, "{\"prompt\":");
    int rc = put_text(&x->reply.body, m, tokens, n);
    buffer_text(&x->reply.body, "}");
    free(tokens);
    return rc < 0 ? problem_of_engine(&x->problem, rc, 0, NULL) : 0;
}

/* ---- */

static int with_model(struct exchange *x,
                      int (*what)(struct exchange *, const struct model *, const json_t *))
{
    json_t *body = body_parse(x->body.data, x->body.bytes, &x->problem);
    struct model *m = body ? model_of(x, body) : NULL;
    int rc = m ? what(x, m, body) : -1;
    model_unref(m);
    json_decref(body);
    return rc;
}

int route_tokenize(struct exchange *x)
{
    return with_model(x, tokenize);
}

int route_detokenize(struct exchange *x)
{
    return with_model(x, detokenize);
}
