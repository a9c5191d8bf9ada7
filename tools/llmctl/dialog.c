/* dialog.c - see dialog.h. */
#include "dialog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/llm_template.h"

struct dialog {
    struct dialog_options o;
    struct llm_client *c;
    struct llm_tokenizer *t;
    struct llm_template *template;
    json_t *messages;
    unsigned stream; /* enum llm_detok_flags */
};

static int stream_flags(const char *name, unsigned *flags)
{
    if (!name || !strcmp(name, "bytes"))
        *flags = 0;
    else if (!strcmp(name, "words"))
        *flags = LLM_DETOK_WORDS;
    else if (!strcmp(name, "sentences"))
        *flags = LLM_DETOK_SENTENCES;
    else
        return ctl_usage("--stream: \"%.40s\" is none of bytes, words, sentences", name);
    return 0;
}

static int parse_template(struct dialog *d)
{
    const char *source = NULL;
    char why[512], *file = NULL;
    size_t bytes = 0;
    if (d->o.template_file)
        source = file = ctl_read_file(d->o.template_file, &bytes);
    else if (llm_chat_template(d->c, &source, &bytes) < 0 || !bytes)
        return ctl_error("the model brings no chat template: give one with --template FILE, or use "
                         "\"complete\"");
    if (!source)
        return 1;
    int rc = llm_template_parse(&d->template, source, bytes, why, sizeof why);
    free(file);
    return rc < 0 ? ctl_error("the chat template cannot be used: %s", why) : 0;
}

static int add_message(struct dialog *d, const char *role, const char *text, size_t bytes)
{
    json_t *content = json_stringn(text, bytes);
    if (!content)
        return ctl_error("the message is not UTF-8");
    json_array_append_new(d->messages, json_pack("{s:s, s:o}", "role", role, "content", content));
    return 0;
}

struct dialog *dialog_open(const struct dialog_options *o)
{
    struct dialog *d = calloc(1, sizeof *d);
    if (!d) {
        ctl_error("out of memory");
        return NULL;
    }
    d->o = *o;
    if (stream_flags(o->stream, &d->stream) || !(d->c = ctl_connect(1, o->spin_us)) ||
        !(d->t = ctl_tokenizer(d->c)) || parse_template(d) || dialog_reset(d, o->system)) {
        dialog_close(d);
        return NULL;
    }
    return d;
}

void dialog_close(struct dialog *d)
{
    if (!d)
        return;
    json_decref(d->messages);
    llm_template_free(d->template);
    llm_tokenizer_close(d->t);
    llm_close(d->c);
    free(d);
}

int dialog_reset(struct dialog *d, const char *system)
{
    json_decref(d->messages);
    d->messages = json_array();
    return system ? add_message(d, "system", system, strlen(system)) : 0;
}

void dialog_set_timing(struct dialog *d, bool on)
{
    d->o.timing = on;
}

bool dialog_timing(const struct dialog *d)
{
    return d->o.timing;
}

/* ---- an answer ---- */

static void set_special(const struct dialog *d, json_t *input, const char *name,
                        enum llm_special which)
{
    const char *text;
    int32_t token = llm_special_token(d->c, which);
    long bytes = token >= 0 ? llm_token_bytes(d->t, token, &text) : -1;
    if (bytes >= 0)
        json_object_set_new(input, name, json_stringn(text, (size_t)bytes));
}

/* The conversation as the template's input. */
static char *template_input(const struct dialog *d)
{
    json_t *input = json_object();
    json_object_set(input, "messages", d->messages);
    json_object_set_new(input, "add_generation_prompt", json_true());
    set_special(d, input, "bos_token", LLM_BOS);
    set_special(d, input, "eos_token", LLM_EOS);
    set_special(d, input, "unk_token", LLM_UNK);
    set_special(d, input, "pad_token", LLM_PAD);
    char *text = json_dumps(input, JSON_COMPACT);
    json_decref(input);
    return text;
}

static int render(const struct dialog *d, struct ctl_tokens *prompt)
{
    char why[512], *text, *input = template_input(d);
    size_t bytes;
    if (!input)
        return ctl_error("out of memory for the conversation");
    int rc = llm_template_render(d->template, input, strlen(input), NULL, &text, &bytes, why,
                                 sizeof why);
    free(input);
    if (rc < 0)
        return ctl_error("the chat template failed: %s", why);
    rc = ctl_tokens_from_prompt(d->t, text, bytes, LLM_TOKENIZE_SPECIAL, prompt);
    llm_template_free_text(text);
    return rc;
}

struct voice {
    struct llm_detokenizer *detokenizer;
    bool lost;
};

static void speak(void *context, const struct llm_event *e)
{
    struct voice *v = context;
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        char text[8192];
        long n = llm_detokenize(v->detokenizer, e->tokens[i], text, sizeof text);
        if (n > 0 && fwrite(text, 1, (size_t)n, stdout) != (size_t)n)
            v->lost = true;
    }
    fflush(stdout);
}

static void finish_speaking(struct voice *v)
{
    char rest[8192];
    long n = llm_detokenize_flush(v->detokenizer, rest, sizeof rest);
    if (n > 0)
        fwrite(rest, 1, (size_t)n, stdout);
    putchar('\n');
    if (fflush(stdout))
        v->lost = true;
}

static int fit_length(const struct dialog *d, struct ctl_job *job)
{
    struct llm_limits limits;
    llm_get_limits(d->c, &limits);
    if (d->o.length_given)
        return 0;
    if (job->prompt.n >= limits.max_model_len)
        return ctl_error("the conversation has %zu tokens, the engine takes %u: start a new one",
                         job->prompt.n, limits.max_model_len);
    job->request.max_tokens = limits.max_model_len - (uint32_t)job->prompt.n;
    return 0;
}

static int keep_answer(struct dialog *d, const struct ctl_choice *c)
{
    size_t bytes;
    char *text = ctl_text(d->t, c->tokens, c->n, 0, &bytes);
    int rc =
        text ? add_message(d, "assistant", text, bytes) : ctl_error("out of memory for the answer");
    free(text);
    return rc;
}

static int answer(struct dialog *d)
{
    struct ctl_job *job = calloc(1, sizeof *job);
    struct voice v = {NULL, false};
    int rc = 1;
    if (!job || llm_detokenizer_open(&v.detokenizer, d->t, LLM_DETOK_UTF8 | d->stream) < 0) {
        ctl_error("out of memory for the answer");
        goto out;
    }
    job->request = d->o.request;
    if ((rc = render(d, &job->prompt)) || (rc = fit_length(d, job)) ||
        (rc = ctl_run_jobs(d->c, job, 1, speak, &v)))
        goto out;
    const struct ctl_choice *c = &job->choices[0];
    if (c->status < 0 && !c->n) {
        rc = ctl_print_refusal(job, c);
        goto out;
    }
    finish_speaking(&v);
    if (c->status < 0)
        ctl_error("the answer ended early: %s", ctl_refusal(job, c));
    if (d->o.timing)
        ctl_print_timing(job);
    rc = keep_answer(d, c);
    if (!rc && v.lost)
        rc = ctl_error("cannot write to standard output");
out:
    llm_detokenizer_close(v.detokenizer);
    ctl_free_jobs(job, job ? 1 : 0);
    return rc;
}

int dialog_ask(struct dialog *d, const char *text, size_t bytes)
{
    size_t before = json_array_size(d->messages);
    int rc = add_message(d, "user", text, bytes);
    rc = rc ? rc : answer(d);
    if (rc)
        while (json_array_size(d->messages) > before)
            json_array_remove(d->messages, json_array_size(d->messages) - 1);
    return rc ? rc : ctl_interrupted() ? 130 : 0;
}
