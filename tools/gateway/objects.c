/* objects.c - see objects.h. Members and their order: the OpenAI API reference, "The chat completion
 * object", "... chunk object", "The completion object". */
#include "objects.h"

#include <math.h>
#include <string.h>

static bool is_chat(const struct call *c)
{
    return c->params.api == API_CHAT;
}

/* ---- log-probabilities ---- */

static void put_bytes(struct buffer *out, const char *bytes, size_t n)
{
    buffer_text(out, "[");
    for (size_t i = 0; i < n; i++)
        buffer_format(out, "%s%u", i ? "," : "", (unsigned char)bytes[i]);
    buffer_text(out, "]");
}

static void put_entry(const struct call *c, struct buffer *out, int32_t token, float logprob)
{
    const char *text = "";
    long bytes = llm_token_bytes(c->model->tokenizer, token, &text);
    size_t n = bytes > 0 ? (size_t)bytes : 0;
    buffer_text(out, "{\"token\":");
    json_put_string(out, text, n);
    buffer_text(out, ",\"logprob\":");
    json_put_float(out, logprob);
    buffer_text(out, ",\"bytes\":");
    put_bytes(out, text, n);
}

static void add_chat_logprob(const struct call *c, struct choice *k, const struct token *t)
{
    struct buffer *out = &k->logprobs.content;
    put_entry(c, out, t->id, t->logprob);
    buffer_text(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        buffer_text(out, i ? "," : "");
        put_entry(c, out, t->top[i].token, t->top[i].logprob);
        buffer_text(out, "}");
    }
    buffer_text(out, "]}");
}

static void put_token_text(const struct call *c, struct buffer *out, int32_t token)
{
    const char *text = "";
    long bytes = llm_token_bytes(c->model->tokenizer, token, &text);
    json_put_string(out, text, bytes > 0 ? (size_t)bytes : 0);
}

/* Two candidates may have the same text (parts of a character): a member has to have one name. */
static bool told_before(const struct call *c, const struct llm_candidate *top, uint32_t i)
{
    const char *text, *other;
    long bytes = llm_token_bytes(c->model->tokenizer, top[i].token, &text);
    for (uint32_t j = 0; j < i; j++)
        if (llm_token_bytes(c->model->tokenizer, top[j].token, &other) == bytes && bytes >= 0 &&
            !memcmp(text, other, (size_t)bytes))
            return true;
    return false;
}

static void put_candidates(const struct call *c, struct buffer *out,
                           const struct llm_candidate *top, uint32_t n_top)
{
    bool first = true;
    buffer_text(out, "{");
    for (uint32_t i = 0; i < n_top; i++) {
        if (told_before(c, top, i))
            continue;
        buffer_text(out, first ? "" : ",");
        put_token_text(c, out, top[i].token);
        buffer_text(out, ":");
        json_put_float(out, top[i].logprob);
        first = false;
    }
    buffer_text(out, "}");
}

static size_t characters_of(const struct call *c, int32_t token)
{
    const char *text = "";
    size_t n = 0;
    long bytes = llm_token_bytes(c->model->tokenizer, token, &text);
    if (llm_token_is_control(c->model->tokenizer, token))
        return 0; /* not in the text */
    for (long i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static void add_completion_logprob(const struct call *c, struct choice *k, const struct token *t)
{
    struct logprobs *l = &k->logprobs;
    put_token_text(c, &l->tokens, t->id);
    if (isnan(t->logprob)) { /* the first one of a text */
        buffer_text(&l->values, "null");
        buffer_text(&l->tops, "null");
    } else {
        json_put_float(&l->values, t->logprob);
        put_candidates(c, &l->tops, t->top, t->n_top);
    }
    buffer_format(&l->offsets, "%zu", k->characters);
    k->characters += characters_of(c, t->id);
}

void object_add_logprob(const struct call *c, struct choice *k, const struct token *token)
{
    struct logprobs *l = &k->logprobs;
    struct buffer *const parts[] = {&l->content, &l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; l->n && i < sizeof parts / sizeof *parts; i++)
        buffer_text(parts[i], ",");
    l->n++;
    if (is_chat(c))
        add_chat_logprob(c, k, token);
    else
        add_completion_logprob(c, k, token);
}

static void put_array(struct buffer *out, const char *before, const struct buffer *elements)
{
    buffer_text(out, before);
    buffer_add(out, elements->data, elements->bytes);
    buffer_text(out, "]");
}

static void put_logprobs(const struct call *c, const struct logprobs *l, struct buffer *out)
{
    buffer_text(out, "\"logprobs\":");
    if (!c->params.logprobs) {
        buffer_text(out, "null");
    } else if (is_chat(c)) {
        put_array(out, "{\"content\":[", &l->content);
        buffer_text(out, ",\"refusal\":null}");
    } else {
        put_array(out, "{\"tokens\":[", &l->tokens);
        put_array(out, ",\"token_logprobs\":[", &l->values);
        if (c->params.top_logprobs)
            put_array(out, ",\"top_logprobs\":[", &l->tops);
        else
            buffer_text(out, ",\"top_logprobs\":null");
        put_array(out, ",\"text_offset\":[", &l->offsets);
        buffer_text(out, "}");
    }
}

static void clear_logprobs(struct logprobs *l)
{
    struct buffer *const parts[] = {&l->content, &l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        buffer_clear(parts[i]);
    l->n = 0;
}

/* ---- what all have ---- */

static void put_head(const struct call *c, const char *object, struct buffer *out)
{
    buffer_format(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id,
                  object, (long long)c->created);
    json_put_text(out, c->params.model);
    buffer_format(out, ",\"system_fingerprint\":\"fp_%016llx\",\"choices\":[",
                  (unsigned long long)c->numerics_id);
}

static void put_finish(const struct choice *k, struct buffer *out)
{
    if (k->finish)
        buffer_format(out, ",\"finish_reason\":\"%s\"}", k->finish);
    else
        buffer_text(out, ",\"finish_reason\":null}");
}

static void put_usage(const struct call *c, struct buffer *out)
{
    uint64_t output = 0;
    for (uint32_t i = 0; i < call_choices(c); i++)
        output += c->choices[i].n_tokens;
    buffer_format(
        out,
        "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
        c->prompt_tokens, (unsigned long long)output,
        (unsigned long long)(c->prompt_tokens + output), c->cached_tokens);
}

/* ---- chunks ---- */

static void put_delta(struct choice *k, struct buffer *out)
{
    const char *comma = "";
    buffer_text(out, "\"delta\":{");
    if (!k->begun) {
        buffer_text(out, "\"role\":\"assistant\"");
        comma = ",";
    }
    if (k->text.bytes || !k->begun) {
        buffer_text(out, comma);
        buffer_text(out, "\"content\":");
        json_put_string(out, k->text.data, k->text.bytes);
        comma = ",";
    }
    if (k->calls.bytes) {
        buffer_text(out, comma);
        put_array(out, "\"tool_calls\":[", &k->calls);
    }
    buffer_text(out, "},");
}

void object_chunk(const struct call *c, struct choice *k, uint32_t index, struct buffer *out)
{
    buffer_text(out, "data: ");
    put_head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", out);
    buffer_format(out, "{\"index\":%u,", index);
    if (is_chat(c)) {
        put_delta(k, out);
    } else {
        buffer_text(out, "\"text\":");
        json_put_string(out, k->text.data, k->text.bytes);
        buffer_text(out, ",");
    }
    put_logprobs(c, &k->logprobs, out);
    put_finish(k, out);
    buffer_text(out, c->params.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
    k->begun = true;
    buffer_clear(&k->text);
    buffer_clear(&k->calls);
    clear_logprobs(&k->logprobs);
}

void object_usage_chunk(const struct call *c, struct buffer *out)
{
    buffer_text(out, "data: ");
    put_head(c, is_chat(c) ? "chat.completion.chunk" : "text_completion", out);
    buffer_text(out, "],");
    put_usage(c, out);
    buffer_text(out, "}\n\n");
}

/* ---- whole answers ---- */

static void put_message(const struct choice *k, struct buffer *out)
{
    buffer_text(out, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (k->calls.bytes && !k->text.bytes)
        buffer_text(out, "null");
    else
        json_put_string(out, k->text.data, k->text.bytes);
    buffer_text(out, ",\"refusal\":null");
    if (k->calls.bytes)
        put_array(out, ",\"tool_calls\":[", &k->calls);
    buffer_text(out, "},");
}

void object_answer(const struct call *c, struct buffer *out)
{
    put_head(c, is_chat(c) ? "chat.completion" : "text_completion", out);
    for (uint32_t i = 0; i < call_choices(c); i++) {
        const struct choice *k = &c->choices[i];
        buffer_format(out, "%s{\"index\":%u,", i ? "," : "", i);
        if (is_chat(c)) {
            put_message(k, out);
        } else {
            buffer_text(out, "\"text\":");
            json_put_string(out, k->text.data, k->text.bytes);
            buffer_text(out, ",");
        }
        put_logprobs(c, &k->logprobs, out);
        put_finish(k, out);
    }
    buffer_text(out, "],");
    put_usage(c, out);
    buffer_text(out, "}");
}
