/* session.c - `session`: open, append, replace, rewind, fork, close; each is one request, answered
 * with the number of tokens that the session has then.
 *
 * A session's name becomes its key by llm_session_key(), so that programs find the same one. It
 * belongs to the user, not to this connection: the next command goes on with it.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

struct session_options {
    const char *name, *to; /* to: of a fork */
    struct prompt_source prompt;
    struct llm_request request;
    uint32_t spin_us;
    bool json, keep_given;
};

/* What a word after `session` means, and which arguments stand behind it. */
static const struct verb {
    const char *name;
    uint32_t op;
    bool keeps, names, tokens; /* takes N; takes NEW; takes a source of tokens */
    bool needed;               /* the tokens are */
    bool opens;                /* where the session is not there */
} verbs[] = {
    {"open", LLM_OP_SESSION_OPEN, .tokens = true},
    {"append", LLM_OP_SESSION_APPEND, .tokens = true, .needed = true, .opens = true},
    {"replace", LLM_OP_SESSION_APPEND, .keeps = true, .tokens = true, .needed = true},
    {"rewind", LLM_OP_SESSION_APPEND, .keeps = true},
    {"fork", LLM_OP_SESSION_FORK, .names = true},
    {"close", LLM_OP_SESSION_CLOSE},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

enum {
    O_TOKENS = 256,
    O_TOKENS_FILE,
    O_PROMPT_FILE,
    O_PROMPT,
    O_KEEP,
    O_INTERRUPT,
    O_PIN,
    O_NO_CACHE,
    O_JSON
};

static const struct option options[] = {{"tokens", required_argument, NULL, O_TOKENS},
                                        {"tokens-file", required_argument, NULL, O_TOKENS_FILE},
                                        {"prompt-file", required_argument, NULL, O_PROMPT_FILE},
                                        {"prompt", required_argument, NULL, O_PROMPT},
                                        {"keep", required_argument, NULL, O_KEEP},
                                        {"interrupt", no_argument, NULL, O_INTERRUPT},
                                        {"pin", no_argument, NULL, O_PIN},
                                        {"no-cache", no_argument, NULL, O_NO_CACHE},
                                        {"json", no_argument, NULL, O_JSON},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static void help(void)
{
    printf("usage: llmctl [-i INSTANCE] session VERB NAME [ARGUMENT...] [OPTION...]\n\n"
           "A token history that the engine keeps, computed for as long as memory allows:\n"
           "  open NAME [SOURCE]        a new one\n"
           "  append NAME SOURCE        more tokens; opens it where it is not there\n"
           "  replace NAME N SOURCE     its first N tokens stay, these follow\n"
           "  rewind NAME N             its first N tokens stay\n"
           "  fork NAME NEW             a second one with the same history\n"
           "  close NAME                frees it\n"
           "llmctl complete --session NAME generates on it. Each prints how many tokens it has "
           "then.\n\n"
           "sources (one):\n%s\n"
           "  --keep N              another way to say N\n"
           "  --interrupt           append, replace, rewind, fork: what is being generated on it "
           "ends\n"
           "  --pin                 open: it stays in memory, within the quota of pins\n"
           "  --no-cache            open, append: leave nothing in the prefix cache\n"
           "  --json                the result as one JSON object\n",
           prompt_source_help);
}

/* ---- arguments ---- */

static int set_keep(const char *text, struct session_options *o)
{
    if (o->keep_given)
        return ctl_usage("--keep says N a second time");
    o->keep_given = true;
    return ctl_parse_uint("the number of tokens to keep", text, 0, UINT32_MAX,
                          &o->request.session_keep);
}

static int take_option(int c, struct session_options *o)
{
    switch (c) {
    case O_TOKENS:
        o->prompt.tokens = optarg;
        return 0;
    case O_TOKENS_FILE:
        o->prompt.tokens_file = optarg;
        return 0;
    case O_PROMPT:
        o->prompt.text = optarg;
        return 0;
    case O_PROMPT_FILE:
        o->prompt.prompt_file = optarg;
        return 0;
    case O_KEEP:
        return set_keep(optarg, o);
    case O_INTERRUPT:
        o->request.flags |= LLM_SQE_INTERRUPT;
        return 0;
    case O_PIN:
        o->request.flags |= LLM_SQE_PIN;
        return 0;
    case O_NO_CACHE:
        o->request.flags |= LLM_SQE_NO_CACHE;
        return 0;
    case O_JSON:
        o->json = true;
        return 0;
    }
    return 2;
}

/* What stands behind the verb, in its order. */
static int take_words(const struct verb *v, int n, char **words, struct session_options *o)
{
    int at = 0, rc = 0;
    if (at == n || !*words[at])
        return ctl_usage("session %s: which session? Give its NAME", v->name);
    o->name = words[at++];
    if (v->names && at < n)
        o->to = words[at++];
    if (v->keeps && !o->keep_given && at < n)
        rc = set_keep(words[at++], o);
    if (v->tokens && at < n && !o->prompt.text)
        o->prompt.text = words[at++];
    if (!rc && at < n)
        return ctl_usage("unexpected \"%.40s\" (quote a text of several words)", words[at]);
    return rc;
}

static int check(const struct verb *v, const struct session_options *o)
{
    if (v->names && (!o->to || !*o->to))
        return ctl_usage("session fork: the new session's NAME is missing");
    if (v->keeps != o->keep_given)
        return v->keeps ? ctl_usage("session %s: how many tokens stay? Give N", v->name)
                        : ctl_usage("session %s: --keep is of rewind and replace", v->name);
    if (!v->tokens && prompt_given(&o->prompt))
        return ctl_usage("session %s takes no tokens", v->name);
    return prompt_check(&o->prompt, v->needed);
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(verbs[i].name, name))
            return &verbs[i];
    return NULL;
}

/* 0, an exit status, or -1 after --help */
static int parse(int argc, char **argv, const struct verb **v, struct session_options *o)
{
    *o = (struct session_options){.request = LLM_REQUEST_INIT, .spin_us = 50};
    int c, rc;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1) {
        if (c == 'h') {
            help();
            return -1;
        }
        if ((rc = take_option(c, o)))
            return rc;
    }
    if (optind == argc)
        return ctl_usage("session what? open, append, replace, rewind, fork or close");
    *v = find_verb(argv[optind]);
    if (!*v)
        return ctl_usage("session has no \"%.40s\": open, append, replace, rewind, fork or close",
                         argv[optind]);
    rc = take_words(*v, argc - optind - 1, argv + optind + 1, o);
    return rc ? rc : check(*v, o);
}

/* ---- the request ---- */

/* At the front of a session stands what stands at the front of a text. */
static int set_tokens(const struct verb *v, const struct session_options *o,
                      struct llm_tokenizer *t, struct ctl_job *job)
{
    bool is_text = prompt_is_text(&o->prompt),
         at_front = v->op == LLM_OP_SESSION_OPEN || (v->keeps && !o->request.session_keep);
    job->open_session = v->opens;
    job->first = v->opens && is_text ? prompt_first_token(t) : -1;
    return prompt_tokens(&o->prompt, t,
                         LLM_TOKENIZE_SPECIAL | (at_front ? LLM_TOKENIZE_ADD_SPECIAL : 0),
                         &job->prompt);
}

static int print(const struct session_options *o, const struct ctl_job *job)
{
    const struct ctl_choice *c = &job->choices[0];
    const char *name = o->to ? o->to : o->name;
    char key[17];
    snprintf(key, sizeof key, "%016" PRIx64, llm_session_key(name));
    if (o->json) {
        json_t *result = json_pack("{s:o, s:s}", "session", ctl_json_string(name), "key", key);
        if (c->status < 0)
            json_object_set_new(result, "error", ctl_error_json(job, c));
        else
            json_object_set_new(result, "length", json_integer(c->length));
        if (ctl_print_json(result))
            return 1;
    }
    if (c->status < 0)
        return ctl_print_refusal(job, c);
    if (!o->json)
        printf("%s: %u tokens\n", name, c->length);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

static void fill(const struct verb *v, const struct session_options *o, struct llm_request *r)
{
    *r = o->request;
    r->op = v->op;
    r->session = llm_session_key(o->name);
    if (v->names)
        r->session_to = llm_session_key(o->to);
}

int cmd_session(int argc, char **argv)
{
    struct session_options o;
    const struct verb *v = NULL;
    int rc = parse(argc, argv, &v, &o);
    if (rc)
        return rc < 0 ? 0 : rc;
    struct llm_tokenizer *t = NULL;
    struct ctl_job *job = calloc(1, sizeof *job);
    struct llm_client *c = ctl_connect(1, o.spin_us);
    rc = 1;
    if (!job || !c || (prompt_is_text(&o.prompt) && !(t = ctl_tokenizer(c))))
        goto out;
    fill(v, &o, &job->request);
    rc = set_tokens(v, &o, t, job);
    rc = rc ? rc : ctl_run_jobs(c, job, 1, NULL, NULL);
    rc = rc ? rc : print(&o, job);
out:
    ctl_free_jobs(job, job ? 1 : 0);
    llm_tokenizer_close(t);
    llm_close(c);
    return rc;
}
