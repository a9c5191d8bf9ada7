/* serve_options.c - the command line of `serve`: names that people know from vLLM, and llmd's own.
 *
 * One table names every flag and what becomes of it: it goes to the engine, or to the gateway, or is
 * ours, or asks for what is so anyway, or is refused with its reason. There is no flag that is taken
 * and forgotten. Ranges are checked by who uses the value: the engine and the gateway leave with
 * status 2 then.
 *
 * vLLM's names: its documentation, "vllm serve" and "Engine Arguments".
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"

enum kind {
    ENGINE,        /* to llmd, with a value */
    ENGINE_SWITCH, /* to llmd: --x, --no-x, --x yes|no */
    GATEWAY_FILE,  /* to llm-gateway as `to`, the name of a file */
    OURS,
    ONLY,   /* one of the values of `to` ("a|b") is how it is anyway; others: `why` */
    SO,     /* a switch that asks for what is so anyway; --no-x: `why` */
    REFUSED /* `why` */
};

static const char adapters[] = "the engine has no adapters yet";
static const char one_device[] = "the engine computes on one device";
static const char by_family[] = "how a model calls tools is known from its family";
static const char swapping[] = "the engine moves neither weights nor KV out of its memory";
static const char tokenizer[] = "the tokenizer is the one inside the GGUF file";
static const char no_requests_log[] = "nothing logs requests";

static const struct flag {
    const char *name;
    enum kind kind;
    const char *to, *why;
} flags[] = {
    {"model", OURS, "FILE", NULL},
    {"host", OURS, "HOST", NULL},
    {"port", OURS, "PORT", NULL},
    {"api-key", OURS, "KEY", NULL},
    {"api-keys", GATEWAY_FILE, "api-keys", NULL},
    {"ssl-certfile", GATEWAY_FILE, "tls-cert", NULL},
    {"ssl-keyfile", GATEWAY_FILE, "tls-key", NULL},
    {"tls-cert", GATEWAY_FILE, "tls-cert", NULL},
    {"tls-key", GATEWAY_FILE, "tls-key", NULL},
    {"instance", OURS, "NAME", NULL},
    {"drain-timeout", OURS, "SECONDS", NULL},
    {"restarts", OURS, "N", NULL},
    {"help", OURS, NULL, NULL},

    /* the engine's, most of them vLLM's names */
    {"served-model-name", ENGINE, NULL, NULL},
    {"max-model-len", ENGINE, NULL, NULL},
    {"gpu-memory-utilization", ENGINE, NULL, NULL},
    {"max-num-seqs", ENGINE, NULL, NULL},
    {"max-num-batched-tokens", ENGINE, NULL, NULL},
    {"enable-prefix-caching", ENGINE_SWITCH, NULL, NULL},
    {"kv-cache-dtype", OURS, "TYPE", NULL},
    {"block-size", ENGINE, NULL, NULL},
    {"num-gpu-blocks-override", ENGINE, NULL, NULL},
    {"kv-cache-memory", ENGINE, NULL, NULL},
    {"num-kv-blocks", ENGINE, NULL, NULL},
    {"config", OURS, "FILE", NULL},
    {"backend", ENGINE, NULL, NULL},
    {"threads", ENGINE, NULL, NULL},
    {"cpu-list", ENGINE, NULL, NULL},
    {"io-cpu", ENGINE, NULL, NULL},
    {"rt-priority", ENGINE, NULL, NULL},
    {"huge-pages", ENGINE, NULL, NULL},
    {"mlock", ENGINE_SWITCH, NULL, NULL},
    {"prefill-chunk", ENGINE, NULL, NULL},
    {"activations", ENGINE, NULL, NULL},
    {"speculative", ENGINE, NULL, NULL},
    {"speculative-tokens", ENGINE, NULL, NULL},
    {"num-speculative-tokens", ENGINE, NULL, NULL},
    {"prompt-lookup-min", ENGINE, NULL, NULL},
    {"prompt-lookup-max", ENGINE, NULL, NULL},
    {"speculative-config", OURS, "JSON", NULL},
    {"max-sessions", ENGINE, NULL, NULL},
    {"session-idle-s", ENGINE, NULL, NULL},
    {"max-requests", ENGINE, NULL, NULL},
    {"max-waiting", ENGINE, NULL, NULL},
    {"max-waiting-tokens", ENGINE, NULL, NULL},
    {"max-unread-tokens", ENGINE, NULL, NULL},
    {"max-itl-ms", ENGINE, NULL, NULL},
    {"max-step-ms", ENGINE, NULL, NULL},
    {"queue-timeout-ms", ENGINE, NULL, NULL},
    {"timeout-ms", ENGINE, NULL, NULL},
    {"max-clients", ENGINE, NULL, NULL},
    {"quota-clients", ENGINE, NULL, NULL},
    {"quota-memory", ENGINE, NULL, NULL},
    {"quota-requests", ENGINE, NULL, NULL},
    {"quota-prompt-tokens", ENGINE, NULL, NULL},
    {"quota-kv-blocks", ENGINE, NULL, NULL},
    {"quota-sessions", ENGINE, NULL, NULL},
    {"quota-pinned-blocks", ENGINE, NULL, NULL},
    {"idle-spin-us", ENGINE, NULL, NULL},
    {"io", ENGINE, NULL, NULL},
    {"log-level", ENGINE, NULL, NULL},
    {"log-json", ENGINE_SWITCH, NULL, NULL},
    {"drain-timeout-ms", REFUSED, NULL, "here it is --drain-timeout, in seconds"},
    {"check-config", REFUSED, NULL, "llmd --config FILE --check-config does that"},

    /* vLLM's that are so anyway, or only with some values */
    {"dtype", ONLY, "auto", "the arithmetic follows the model file (see --activations)"},
    {"quantization", ONLY, "gguf|None|none",
     "the engine has no such quantization yet: it serves GGUF files, quantized as they are"},
    {"load-format", ONLY, "auto|gguf", "the engine reads GGUF files only"},
    {"tensor-parallel-size", ONLY, "1", one_device},
    {"pipeline-parallel-size", ONLY, "1", one_device},
    {"data-parallel-size", ONLY, "1", one_device},
    {"device", ONLY, "auto|cpu", "the engine computes on CPUs so far"},
    {"swap-space", ONLY, "0", swapping},
    {"cpu-offload-gb", ONLY, "0", swapping},
    {"enable-chunked-prefill", SO, NULL, "prompts are always read in chunks"},
    {"enable-auto-tool-choice", SO, NULL, by_family},
    {"disable-log-requests", SO, NULL, no_requests_log},
    {"enable-log-requests", REFUSED, NULL, no_requests_log},
    {"disable-log-stats", REFUSED, NULL, "the figures stand in shared memory and cost nothing"},
    {"trust-remote-code", REFUSED, NULL, "no model's code is ever run"},
    {"enforce-eager", REFUSED, NULL, "there are no graphs to switch off"},
    {"seed", REFUSED, NULL, "seeds are a request's own (\"seed\"); the engine has none in common"},

    /* what the engine does not have */
    {"enable-lora", REFUSED, NULL, adapters},
    {"lora-modules", REFUSED, NULL, adapters},
    {"max-loras", REFUSED, NULL, adapters},
    {"max-lora-rank", REFUSED, NULL, adapters},
    {"max-cpu-loras", REFUSED, NULL, adapters},
    {"speculative-model", REFUSED, NULL,
     "the engine speculates without a second model: --speculative"},
    {"tokenizer", REFUSED, NULL, tokenizer},
    {"tokenizer-mode", REFUSED, NULL, tokenizer},
    {"chat-template", REFUSED, NULL, "chats are rendered with the template inside the GGUF file"},
    {"tool-call-parser", REFUSED, NULL, by_family},
    {"reasoning-parser", REFUSED, NULL, "reasoning is not told apart from the answer yet"},
    {"guided-decoding-backend", REFUSED, NULL, "the engine has no constrained decoding yet"},
    {"structured-outputs-config", REFUSED, NULL, "the engine has no constrained decoding yet"},
    {"rope-scaling", REFUSED, NULL, "positions are encoded as the GGUF file says"},
    {"rope-theta", REFUSED, NULL, "positions are encoded as the GGUF file says"},
    {"revision", REFUSED, NULL, "models are files: nothing is downloaded"},
    {"download-dir", REFUSED, NULL, "models are files: nothing is downloaded"},
    {"hf-token", REFUSED, NULL, "models are files: nothing is downloaded"},
};

enum { N_FLAGS = sizeof flags / sizeof *flags, NAME_BYTES = 64 };

static const struct {
    const char *text, *name;
} short_names[] = {{"-h", "help"},
                   {"-q", "quantization"},
                   {"-i", "instance"},
                   {"-tp", "tensor-parallel-size"},
                   {"-pp", "pipeline-parallel-size"},
                   {"-dp", "data-parallel-size"}};

/* ---- names ---- */

static const struct flag *find(const char *name)
{
    for (size_t i = 0; i < N_FLAGS; i++)
        if (!strcmp(flags[i].name, name))
            return &flags[i];
    return NULL;
}

/* Levenshtein's distance; both are shorter than NAME_BYTES. */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_BYTES], n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static int unknown(const char *name)
{
    const char *best = NULL;
    size_t best_distance = strlen(name) / 2 + 1;
    for (size_t i = 0; i < N_FLAGS; i++) {
        size_t d = distance(name, flags[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = flags[i].name;
        }
    }
    if (best)
        return ctl_usage("serve has no option --%s; did you mean --%s?", name, best);
    return ctl_usage("serve has no option --%s", name);
}

/* One argument, taken apart. */
struct argument {
    char name[NAME_BYTES];
    bool no;           /* --no-NAME */
    const char *value; /* behind '=', or NULL */
    const struct flag *flag;
};

static int take_apart(struct argument *a, const char *text)
{
    *a = (struct argument){0};
    const char *name = text + 2;
    size_t head = strcspn(text, "="), n = head > 2 ? head - 2 : 0;
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if (strlen(short_names[i].text) == head && !memcmp(text, short_names[i].text, head)) {
            name = short_names[i].name;
            n = strlen(name);
        }
    if ((name == text + 2 && strncmp(text, "--", 2)) || !n || n >= NAME_BYTES)
        return ctl_usage("serve has no option %.60s", text);
    memcpy(a->name, name, n);
    for (char *c = a->name; *c; c++)
        *c = *c == '_' ? '-' : *c; /* vLLM takes both */
    a->value = text[head] ? text + head + 1 : NULL;
    a->flag = find(a->name);
    if (!a->flag && !strncmp(a->name, "no-", 3)) {
        a->flag = find(a->name + 3);
        bool is_switch = a->flag && (a->flag->kind == ENGINE_SWITCH || a->flag->kind == SO);
        if (!is_switch)
            a->flag = NULL;
        a->no = is_switch;
    }
    return a->flag ? 0 : unknown(a->name);
}

/* ---- values ---- */

static bool one_of(const char *list, const char *value)
{
    size_t n = strlen(value);
    for (const char *at = list;; at++) {
        size_t word = strcspn(at, "|");
        if (word == n && !memcmp(at, value, n))
            return true;
        at += word;
        if (!*at)
            return false;
    }
}

static int refuse(const struct argument *a, const char *value)
{
    ctl_error("--%s%s%.60s is refused: %s", a->name, value ? " " : "", value ? value : "",
              a->flag->why);
    return 2;
}

/* vLLM's "auto" is what the engine does without the option, and f16 has another name there. */
static void set_kv_type(struct serve_options *o, const char *value)
{
    if (one_of("float16|fp16|half", value))
        value = "f16";
    if (strcmp(value, "auto"))
        args_add(&o->engine, "--kv-cache-dtype=%s", value);
}

static int set_speculative_number(struct serve_options *o, const char *key, const json_t *v)
{
    static const char *const known[][2] = {{"num_speculative_tokens", "speculative-tokens"},
                                           {"prompt_lookup_min", "prompt-lookup-min"},
                                           {"prompt_lookup_max", "prompt-lookup-max"}};
    size_t i = 0;
    while (i < 3 && strcmp(key, known[i][0]))
        i++;
    if (i == 3)
        return ctl_usage("--speculative-config has no \"%.40s\" here", key);
    if (!json_is_integer(v))
        return ctl_usage("--speculative-config: \"%s\" is a whole number", key);
    args_add(&o->engine, "--%s=%lld", known[i][1], (long long)json_integer_value(v));
    return 0;
}

/* vLLM's object: a method, and numbers that are options of the engine. */
static int set_speculation(struct serve_options *o, const char *value)
{
    const char *key;
    json_t *v, *config = json_loads(value, 0, NULL);
    const char *method = json_string_value(json_object_get(config, "method"));
    int rc = 0;
    if (!method || strcmp(method, "ngram"))
        rc = ctl_usage("--speculative-config: the engine has the method \"ngram\" alone, as "
                       "{\"method\": \"ngram\", \"num_speculative_tokens\": 8}");
    json_object_foreach(config, key, v)
    {
        if (!rc && strcmp(key, "method"))
            rc = set_speculative_number(o, key, v);
    }
    json_decref(config);
    args_add(&o->engine, "--speculative=ngram");
    return rc;
}

/* Keys go to the gateway as lines of a file (keys.h): what would be no key there, or another one, is
 * refused before the engine loads its model. No key is shown. */
static int add_key(struct serve_options *o, const char *key)
{
    if (!*key || *key == '#' || strpbrk(key, " \t\r\n") || strlen(key) > 255)
        return ctl_usage("--api-key takes a key of 1 to 255 bytes, without blanks and without '#' "
                         "at its front");
    for (size_t i = 0; i < o->keys.n; i++)
        if (!strcmp(o->keys.w[i], key))
            return 0; /* given twice */
    args_add(&o->keys, "%s", key);
    return 0;
}

static int set_ours(struct serve_options *o, const char *name, const char *value)
{
    if (!strcmp(name, "port"))
        return ctl_parse_uint("--port", value, 1, 65535, &o->port);
    if (!strcmp(name, "restarts"))
        return ctl_parse_uint("--restarts", value, 0, 1000000, &o->restarts);
    if (!strcmp(name, "drain-timeout"))
        return ctl_parse_amount("--drain-timeout", value, &o->drain_s);
    if (!strcmp(name, "instance"))
        return ctl_check_instance("--instance", o->instance = value);
    if (!strcmp(name, "host"))
        o->host = value;
    else if (!strcmp(name, "model"))
        o->model = value;
    else if (!strcmp(name, "api-key"))
        return add_key(o, value);
    else if (!strcmp(name, "kv-cache-dtype"))
        set_kv_type(o, value);
    else if (!strcmp(name, "speculative-config"))
        return set_speculation(o, value);
    else if (!strcmp(name, "config")) {
        o->config = true;
        args_add(&o->engine, "--config=%s", value);
    }
    return 0;
}

static int set_file(struct serve_options *o, const struct argument *a, const char *value)
{
    if (access(value, R_OK)) {
        ctl_error("--%s: %.200s cannot be read: %s", a->name, value, strerror(errno));
        return 2;
    }
    if (!strcmp(a->flag->to, "tls-cert"))
        o->certificate = value;
    args_add(&o->gateway, "--%s", a->flag->to);
    args_add(&o->gateway, "%s", value);
    return 0;
}

/* A switch: `value` is what stood behind '=', or NULL. */
static int set_switch(struct serve_options *o, const struct argument *a)
{
    const char *yes = a->value ? a->value : a->no ? "no" : "yes";
    bool on = one_of("yes|true|on|1|True", yes);
    if (!on && !one_of("no|false|off|0|False", yes))
        return ctl_usage("--%s is yes or no, not \"%.40s\"", a->flag->name, yes);
    if (a->value && a->no)
        return ctl_usage("--%s takes no value", a->name);
    if (a->flag->kind == ENGINE_SWITCH)
        args_add(&o->engine, "--%s=%s", a->flag->name, on ? "yes" : "no");
    return a->flag->kind == SO && !on ? refuse(a, a->value) : 0;
}

static int set_value(struct serve_options *o, const struct argument *a, const char *value)
{
    switch (a->flag->kind) {
    case ENGINE:
        args_add(&o->engine, "--%s=%s", a->flag->name, value);
        return 0;
    case GATEWAY_FILE:
        return set_file(o, a, value);
    case ONLY:
        return one_of(a->flag->to, value) ? 0 : refuse(a, value);
    default:
        return set_ours(o, a->flag->name, value);
    }
}

/* One argument, and the next one (may be NULL) where it is its value. Returns how many were taken,
 * or -2 after a message. */
static int take(struct serve_options *o, const char *text, const char *next)
{
    struct argument a;
    if (*text != '-') {
        if (o->model)
            return -ctl_usage("unexpected \"%.60s\"", text);
        o->model = text; /* as `vllm serve MODEL` */
        return 1;
    }
    if (take_apart(&a, text))
        return -2;
    if (a.flag->kind == REFUSED)
        return -refuse(&a, a.value);
    if (!strcmp(a.flag->name, "help")) {
        o->help = true;
        return 1;
    }
    if (a.flag->kind == ENGINE_SWITCH || a.flag->kind == SO)
        return set_switch(o, &a) ? -2 : 1;
    if (!a.value && !next)
        return -ctl_usage("--%s needs a value", a.name);
    return set_value(o, &a, a.value ? a.value : next) ? -2 : a.value ? 1 : 2;
}

/* ---- the whole ---- */

static int check_model(const struct serve_options *o)
{
    if (!o->model)
        return o->config ? 0 : ctl_usage("serve needs MODEL, or --model FILE: a GGUF file");
    if (!access(o->model, R_OK))
        return 0;
    ctl_error("the model %.200s cannot be read (%s): --model names a GGUF file on this machine, "
              "nothing is downloaded",
              o->model, strerror(errno));
    return 2;
}

static int check(struct serve_options *o)
{
    bool file = false;
    for (size_t i = 0; i < o->gateway.n; i++)
        file |= !strcmp(o->gateway.w[i], "--api-keys");
    if (file && o->keys.n)
        return ctl_usage("--api-key and --api-keys cannot both be given");
    if (!*o->host || strpbrk(o->host, "/ ") || strlen(o->host) >= 64)
        return ctl_usage("--host \"%.60s\" is no address", o->host);
    if (o->drain_s > 86400)
        return ctl_usage("--drain-timeout is at most a day, 86400");
    return check_model(o);
}

int serve_options_parse(struct serve_options *o, int argc, char **argv)
{
    *o = (struct serve_options){
        .host = "127.0.0.1", .port = 8000, .drain_s = 5, .restarts = 5, .instance = ctl_instance};
    for (int i = 1; i < argc && !o->help;) {
        int n = take(o, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (n < 0)
            return -n;
        i += n;
    }
    if (o->help)
        return 0;
    int rc = check(o);
    if (rc)
        return rc;
    ctl_instance = o->instance;
    if (o->model)
        args_add(&o->engine, "--model=%s", o->model);
    args_add(&o->engine, "--instance=%s", o->instance);
    args_add(&o->engine, "--drain-timeout-ms=%llu", (unsigned long long)(o->drain_s * 1e3));
    args_add(&o->gateway, "--instance");
    args_add(&o->gateway, "%s", o->instance);
    /* its own limit is in whole seconds; ours ends it a little later */
    args_add(&o->gateway, "--drain-timeout-s");
    args_add(&o->gateway, "%llu",
             (unsigned long long)(o->drain_s < 3600 ? o->drain_s + 0.999 : 3600));
    args_add(&o->gateway, "--listen");
    bool six = strchr(o->host, ':') && *o->host != '[';
    args_add(&o->gateway, six ? "[%s]:%llu" : "%s:%llu", o->host, (unsigned long long)o->port);
    return 0;
}

void serve_options_free(struct serve_options *o)
{
    args_free(&o->keys);
    args_free(&o->engine);
    args_free(&o->gateway);
}

/* The engine's flags, as many a line as fit. */
static void print_engine_flags(void)
{
    size_t column = 80;
    for (size_t i = 0; i < N_FLAGS; i++) {
        if (flags[i].kind != ENGINE && flags[i].kind != ENGINE_SWITCH)
            continue;
        size_t n = strlen(flags[i].name) + 3;
        if (column + n > 78) {
            fputs(column == 80 ? " " : "\n ", stdout);
            column = 1;
        }
        printf(" --%s", flags[i].name);
        column += n;
    }
    putchar('\n');
}

void serve_options_help(void)
{
    puts("usage: llmctl [-i INSTANCE] serve MODEL | --model FILE [OPTION...]\n\n"
         "Starts the engine (llmd) and the gateway (llm-gateway) with OpenAI's API, keeps both\n"
         "running, and stops both at SIGTERM or an interrupt, after what runs has ended.\n"
         "  --model FILE          the GGUF file to serve\n"
         "  --host HOST           the address that the gateway listens on (127.0.0.1)\n"
         "  --port PORT           its port (8000)\n"
         "  --api-key KEY         a key that clients must have one of; may be given several times\n"
         "  --api-keys FILE       the same from a file, a key a line\n"
         "  --tls-cert FILE --tls-key FILE   also --ssl-certfile FILE, --ssl-keyfile FILE\n"
         "  --instance NAME       the engine's instance (that of -i)\n"
         "  --config FILE         the engine's configuration file\n"
         "  --kv-cache-dtype TYPE auto, f16, f32 or int8\n"
         "  --speculative-config JSON   vLLM's, of the method ngram: as --speculative ngram\n"
         "  --drain-timeout SECONDS   what runs may go on for so long when it is stopped (5)\n"
         "  --restarts N          how often in a row one that died is started again (5)\n"
         "Options of llmd go to it:");
    print_engine_flags();
    puts("Taken where they ask for what is so anyway:\n"
         "  --dtype auto, --quantization gguf, --load-format auto, --tensor-parallel-size 1,\n"
         "  --pipeline-parallel-size 1, --data-parallel-size 1, --device cpu, --swap-space 0,\n"
         "  --cpu-offload-gb 0, --enable-chunked-prefill, --enable-auto-tool-choice,\n"
         "  --disable-log-requests\n"
         "What the engine does not have is refused, and so is what nobody knows.");
}
