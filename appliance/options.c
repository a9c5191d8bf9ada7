/* options.c - one table names every option (options_table.h); the parser and its error sentences.
 */
#include "options.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../shm/control.h"
#include "config.h"
#include "ngram.h"
#include "options_table.h"

#define FIELD(name) offsetof(struct options, name)

enum { DAY_MS = 24 * 3600 * 1000 };

const struct option options_table[] = {
    {"model", TEXT, FIELD(model), 1, 4095, "FILE", "the GGUF file to serve", "required"},
    {"instance", INSTANCE, FIELD(instance), 0, 0, "NAME", "the name that clients connect to",
     "default"},
    {"served-model-name", TEXT, FIELD(served_model_name), 1, 127, "NAME",
     "what clients are told the model is called", "its own name"},
    {"config", TEXT, FIELD(config), 1, 4095, "FILE",
     "reads options from a file: name = value, names without dashes; the command line wins", NULL,
     true},
    {"check-config", SWITCH, FIELD(check_config), 0, 0, NULL,
     "prints the options in effect and leaves: 0 if they are right, 2 if not", NULL, true},
    {"backend", BACKEND, 0, 0, 0, "cpu|cpu-avx2|cpu-plain",
     "what computes; cpu-avx2 leaves AVX-512 alone, cpu-plain is the slow reference", "cpu"},
    {"threads", NUMBER, FIELD(threads), 1, CPUS_MAX, "N", "compute threads", "one for each CPU"},
    {"cpu-list", CPUS, FIELD(cpu_list), 0, 0, "LIST",
     "the compute threads' CPUs, in their order, as 0-1,3; memory goes to these CPUs' nodes",
     "wherever they may run"},
    {"io-cpu", NUMBER, FIELD(io_cpu), 0, 1023, "N",
     "the CPU of the thread that talks to clients, the first compute thread", "the list's first"},
    {"rt-priority", NUMBER, FIELD(rt_priority), 1, 99, "N",
     "real-time priority (SCHED_FIFO) of the compute threads", "none"},
    {"huge-pages", HUGE_PAGES, FIELD(huge_pages), 0, 0, "auto|hugetlb|thp|off",
     "the pages of weights, KV pool and workspace: hugetlbfs ones that are free, transparent ones; "
     "auto measures whether they are faster",
     "auto"},
    {"mlock", SWITCH, FIELD(mlock), 0, 0, NULL, "keeps all memory from being paged out", "no"},
    {"max-model-len", NUMBER, FIELD(max_model_len), 2, 1u << 24, "N",
     "longest prompt + output, tokens", "the model's context"},
    {"max-num-seqs", NUMBER, FIELD(max_num_seqs), 1, 4096, "N",
     "sequences that run at the same time", "64"},
    {"max-num-batched-tokens", NUMBER, FIELD(max_num_batched_tokens), 1, 65536, "N",
     "rows of one step, prompts and decodes together", "512"},
    {"prefill-chunk", NUMBER, FIELD(prefill_chunk), 0, 65536, "N",
     "prompt rows of one sequence in a step; 0: no cap of its own", "0"},
    {"activations", ACTIVATIONS, FIELD(activations), 0, 0, "int8|f32",
     "arithmetic of the linear layers", "int8 for quantized weights, else f32"},
    {"kv-cache-dtype", KV_TYPE, FIELD(kv_type), 0, 0, "f16|f32|int8",
     "how keys and values are stored", "f16"},
    {"kv-cache-memory", SIZE, FIELD(kv_cache_memory), 1, 1ull << 46, "SIZE",
     "bytes of the KV pool, as 512M or 4G",
     "the least of 4 GiB, a quarter of what is available, and what max-num-seqs sequences of "
     "max-model-len can use"},
    {"gpu-memory-utilization", SHARE, FIELD(gpu_memory_utilization), 0, 0, "SHARE",
     "the pool gets what this share of the free memory, 0 to 1, leaves beside the weights", NULL},
    {"num-kv-blocks", NUMBER, FIELD(num_kv_blocks), 1, 1u << 30, "N",
     "KV blocks of the pool, instead of a size; also --num-gpu-blocks-override", NULL},
    {"num-gpu-blocks-override", NUMBER, 0, 0, 0, "N", "the same", NULL, .same_as = "num-kv-blocks"},
    {"block-size", BLOCK_SIZE, FIELD(block_size), 1, 65536, "N", "tokens of a KV block: 16", "16"},
    {"enable-prefix-caching", SWITCH, FIELD(prefix_caching), 0, 0, NULL,
     "prompts that begin alike share what was computed for them", "yes"},
    {"speculative", SPECULATIVE, FIELD(speculative), 0, 0, "off|ngram",
     "prompt lookup: computes what repeats several tokens a step; a request may say otherwise",
     "off"},
    {"speculative-tokens", NUMBER, FIELD(speculative_tokens), 0, GPU_KV_BLOCK, "N",
     "tokens of a draft, fewer where they do not pay; 0: no request may speculate; also "
     "--num-speculative-tokens",
     "8"},
    {"num-speculative-tokens", NUMBER, 0, 0, 0, "N", "the same", NULL,
     .same_as = "speculative-tokens"},
    {"prompt-lookup-min", NUMBER, FIELD(prompt_lookup_min), 1, NGRAM_MAX, "N",
     "tokens that must stand in prompt or output as they do at its end", "2"},
    {"prompt-lookup-max", NUMBER, FIELD(prompt_lookup_max), 1, NGRAM_MAX, "N",
     "tokens by which several such places are compared", "8"},
    {"max-sessions", NUMBER, FIELD(max_sessions), 0, 65536, "N",
     "sessions that are open at the same time", "64"},
    {"session-idle-s", NUMBER, FIELD(session_idle_s), 0, 2592000, "N",
     "a session that was not used for so long is closed, seconds; 0: never", "300"},
    {"max-requests", NUMBER, FIELD(max_requests), 1, 65536, "N",
     "sequences known at the same time, waiting ones included", "1024"},
    {"max-waiting", NUMBER, FIELD(max_waiting), 1, 65536, "N", "requests in the queue",
     "--max-requests"},
    {"max-waiting-tokens", NUMBER, FIELD(max_waiting_tokens), 0, 1u << 30, "N",
     "prompt tokens in the queue; 0: any number", "0"},
    {"max-unread-tokens", NUMBER, FIELD(max_unread_tokens), 0, 1u << 30, "N",
     "a client that leaves more tokens unread loses its requests; 0: never", "65536"},
    {"max-itl-ms", NUMBER, FIELD(max_itl_ms), 0, 60000, "N",
     "promised gap between two tokens of a stream, milliseconds; 0: none", "0"},
    {"max-step-ms", NUMBER, FIELD(max_step_ms), 0, 60000, "N",
     "prompts make no step longer, so that nobody waits for a long one, milliseconds; 0: any "
     "length",
     "100"},
    {"queue-timeout-ms", NUMBER, FIELD(queue_timeout_ms), 0, DAY_MS, "N",
     "how long requests wait that state no limit themselves; 0: any time", "0"},
    {"timeout-ms", NUMBER, FIELD(timeout_ms), 0, DAY_MS, "N",
     "how long they may take in all; 0: any time", "0"},
    {"drain-timeout-ms", NUMBER, FIELD(drain_timeout_ms), 0, DAY_MS, "N",
     "how long running requests may go on after SIGTERM; also --drain-timeout, in seconds", "5000"},
    {"drain-timeout", SECONDS, FIELD(drain_timeout_ms), 0, DAY_MS / 1000, "N", "the same", NULL},
    {"max-clients", NUMBER, FIELD(max_clients), 1, 1024, "N", "connected clients", "64"},
    {"quota-clients", NUMBER, FIELD(quota_clients), 0, 1024, "N",
     "connected clients of one user; 0: no quota", "0"},
    {"quota-memory", SIZE, FIELD(quota_memory), 0, 1ull << 46, "SIZE",
     "memory shared with the clients of one user, as 64M; 0: no quota", "0"},
    {"quota-requests", NUMBER, FIELD(quota.requests), 0, 65536, "N",
     "sequences of one user, waiting ones included; 0: no quota", "0"},
    {"quota-prompt-tokens", NUMBER, FIELD(quota.prompt_tokens), 0, 1u << 30, "N",
     "prompt tokens of one user in the queue; 0: no quota", "0"},
    {"quota-kv-blocks", NUMBER, FIELD(quota.kv_blocks), 0, 1u << 30, "N",
     "KV blocks of one user; 0: no quota", "0"},
    {"quota-sessions", NUMBER, FIELD(quota.sessions), 0, 65536, "N",
     "sessions of one user; 0: no quota", "0"},
    {"quota-pinned-blocks", NUMBER, FIELD(quota.pinned_blocks), 0, 1u << 30, "N",
     "KV blocks that one user keeps resident; 0: no quota", "0"},
    {"idle-spin-us", SPIN, FIELD(idle_spin_us), 0, 1000000, "N",
     "how long to look for work before sleeping, microseconds, or forever", "50"},
    {"io", WAITER, FIELD(waiter), 0, 0, "auto|io_uring|epoll",
     "what the engine sleeps with; epoll where io_uring is forbidden", "auto"},
    {"log-level", LOG_LEVEL, FIELD(log_level), 0, 0, "error|warn|info|debug",
     "what standard error is told", "info"},
    {"log-json", SWITCH, FIELD(log_json), 0, 0, NULL, "a JSON object a line on standard error",
     "no"},
    {"help", HELP, 0, 0, 0, NULL, "this list", NULL, true},
    {"version", VERSION, 0, 0, 0, NULL, "the version", NULL, true},
};

enum { N_OPTIONS = sizeof options_table / sizeof options_table[0], NAME_MAX_BYTES = 64 };
const size_t n_options = N_OPTIONS;
_Static_assert(N_OPTIONS <= 64, "one bit each in options.given");

static const struct option *find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strlen(options_table[i].name) == bytes && !memcmp(options_table[i].name, name, bytes))
            return options_table[i].same_as
                       ? find(options_table[i].same_as, strlen(options_table[i].same_as))
                       : &options_table[i];
    return NULL;
}

/* Levenshtein's distance; both names are shorter than NAME_MAX_BYTES. */
static size_t distance(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    size_t row[NAME_MAX_BYTES + 1];
    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_bytes; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_bytes; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_bytes];
}

/* The option whose name is closest to what was written, or NULL where none comes near. */
static const struct option *closest(const char *name, size_t bytes)
{
    if (bytes >= NAME_MAX_BYTES)
        return NULL;
    const struct option *best = NULL;
    size_t best_distance = bytes / 2 + 1;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        size_t d = distance(name, bytes, options_table[i].name, strlen(options_table[i].name));
        if (d < best_distance) {
            best_distance = d;
            best = &options_table[i];
        }
    }
    return best;
}

static int unknown(const char *argument, const char *name, size_t bytes, struct fail *f)
{
    if (strncmp(argument, "--", 2))
        return fail(f, -EINVAL,
                    "'%.128s' is not an option: options start with --, --help lists them",
                    argument);
    const struct option *near = closest(name, bytes);
    if (near)
        return fail(f, -EINVAL, "unknown option --%.*s; did you mean --%s?",
                    (int)(bytes < 128 ? bytes : 128), name, near->name);
    return fail(f, -EINVAL, "unknown option --%.*s; --help lists the options",
                (int)(bytes < 128 ? bytes : 128), name);
}

/* Decimal digits only: no sign, no blank, no base prefix. */
static int digits(const char **text, uint64_t *out)
{
    const char *p = *text;
    uint64_t v = 0;
    if (*p < '0' || *p > '9')
        return -EINVAL;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return -ERANGE;
    *text = p;
    *out = v;
    return 0;
}

int options_size(const char *text, uint64_t *bytes)
{
    static const char units[] = "KMGT";
    uint64_t v;
    int rc = digits(&text, &v);
    if (rc < 0)
        return rc;
    unsigned shift = 0;
    const char *unit = *text ? strchr(units, *text >= 'a' ? *text - 32 : *text) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        text++;
        if (*text == 'i' && text[1] == 'B')
            text++;
    }
    if (*text == 'B')
        text++;
    if (*text)
        return -EINVAL;
    if (v > UINT64_MAX >> shift)
        return -ERANGE;
    *bytes = v << shift;
    return 0;
}

/* `also`: what else the option takes, for the sentences. */
static int set_number_or(const struct option *opt, void *field, const char *value, const char *also,
                         struct fail *f)
{
    const char *end = value;
    uint64_t v;
    int rc = digits(&end, &v);
    if (rc == -EINVAL || (!rc && *end))
        return fail(f, -EINVAL, "--%s takes a whole number from %llu to %llu%s, not '%.64s'",
                    opt->name, (unsigned long long)opt->min, (unsigned long long)opt->max, also,
                    value);
    if (rc < 0 || v < opt->min || v > opt->max)
        return fail(f, -EINVAL, "--%s %.64s is out of range: %llu to %llu%s", opt->name, value,
                    (unsigned long long)opt->min, (unsigned long long)opt->max, also);
    *(uint32_t *)field = (uint32_t)v;
    return 0;
}

static int set_number(const struct option *opt, void *field, const char *value, struct fail *f)
{
    return set_number_or(opt, field, value, "", f);
}

static int set_seconds(const struct option *opt, uint32_t *field, const char *value, struct fail *f)
{
    int rc = set_number(opt, field, value, f);
    if (!rc)
        *field *= 1000;
    return rc;
}

static int set_size(const struct option *opt, void *field, const char *value, struct fail *f)
{
    uint64_t v;
    int rc = options_size(value, &v);
    if (rc == -EINVAL)
        return fail(f, -EINVAL, "--%s takes a size such as 512M or 4G, not '%.64s'", opt->name,
                    value);
    if (rc < 0 || v < opt->min || v > opt->max)
        return fail(f, -EINVAL, "--%s %.64s is out of range: %s to 64 TiB", opt->name, value,
                    opt->min ? "1 byte" : "0");
    *(uint64_t *)field = v;
    return 0;
}

static int set_share(const struct option *opt, double *field, const char *value, struct fail *f)
{
    char *end;
    bool plain = strspn(value, "0123456789.") == strlen(value); /* no sign, exponent, nan */
    double v = strtod(value, &end);
    if (!plain || end == value || *end || !(v > 0 && v <= 1))
        return fail(f, -EINVAL, "--%s takes a share above 0 and up to 1, as 0.9, not '%.64s'",
                    opt->name, value);
    *field = v;
    return 0;
}

static int set_spin(const struct option *opt, uint32_t *field, const char *value, struct fail *f)
{
    if (strcmp(value, "forever") && strcmp(value, "-1"))
        return set_number_or(opt, field, value, ", or forever", f);
    *field = OPTIONS_FOREVER;
    return 0;
}

static int set_block_size(const struct option *opt, uint32_t *field, const char *value,
                          struct fail *f)
{
    uint32_t v;
    int rc = set_number(opt, &v, value, f);
    if (rc < 0)
        return rc;
    if (v != GPU_KV_BLOCK)
        return fail(f, -EINVAL,
                    "--%s %u cannot be had: KV blocks of this engine have %d tokens; leave the "
                    "option away",
                    opt->name, v, GPU_KV_BLOCK);
    *field = v;
    return 0;
}

static int set_text(const struct option *opt, void *field, const char *value, struct fail *f)
{
    size_t bytes = strlen(value);
    if (bytes < opt->min || bytes > opt->max)
        return fail(f, -EINVAL, "--%s takes a text of %llu to %llu bytes, not of %zu", opt->name,
                    (unsigned long long)opt->min, (unsigned long long)opt->max, bytes);
    *(const char **)field = value;
    return 0;
}

static int set_instance(void *field, const char *value, struct fail *f)
{
    if (!llm_instance_ok(value))
        return fail(f, -EINVAL,
                    "--instance '%.64s' is not a name: 1 to %d letters, digits, '.', '_' or '-', "
                    "not starting with a dot",
                    value, LLM_INSTANCE_MAX);
    *(const char **)field = value;
    return 0;
}

/* One of the words that the help shows as "a|b". Returns its place, or -EINVAL. */
static int set_word(const struct option *opt, const char *value, struct fail *f)
{
    const char *word = opt->value;
    for (int i = 0;; i++) {
        size_t bytes = strcspn(word, "|");
        if (strlen(value) == bytes && !memcmp(word, value, bytes))
            return i;
        if (!word[bytes])
            return fail(f, -EINVAL, "--%s is one of %s, not '%.64s'", opt->name, opt->value, value);
        word += bytes + 1;
    }
}

const int *options_values(enum option_kind kind)
{
    static const int activations[] = {GPU_ACT_INT8, GPU_ACT_F32};
    static const int kv_types[] = {GPU_KV_F16, GPU_KV_F32, GPU_KV_INT8};
    static const int huge_pages[] = {GPU_HUGE_PAGES_AUTO, GPU_HUGE_PAGES_HUGETLB,
                                     GPU_HUGE_PAGES_THP, GPU_HUGE_PAGES_OFF};
    static const int waiters[] = {WAITER_AUTO, WAITER_URING, WAITER_EPOLL};
    static const int log_levels[] = {LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO,
                                     LOG_LEVEL_DEBUG};
    static const int speculative[] = {SPECULATIVE_OFF, SPECULATIVE_NGRAM};
    return kind == ACTIVATIONS   ? activations
           : kind == KV_TYPE     ? kv_types
           : kind == HUGE_PAGES  ? huge_pages
           : kind == WAITER      ? waiters
           : kind == SPECULATIVE ? speculative
                                 : log_levels;
}
_Static_assert(sizeof(enum gpu_activations) == sizeof(int) && sizeof(enum gpu_kv_type) == 4 &&
                   sizeof(enum gpu_huge_pages) == 4 && sizeof(enum waiter_kind) == 4 &&
                   sizeof(enum log_level) == 4 && sizeof(enum options_speculative) == 4,
               "words are stored as int");

static int set_value(const struct option *opt, void *field, const char *value, struct fail *f)
{
    int word = set_word(opt, value, f);
    if (word >= 0)
        memcpy(field, &options_values(opt->kind)[word], sizeof(int));
    return word < 0 ? word : 0;
}

/* 0 or 1 for a word that says no or yes, else -1. */
static int yes_or_no(const char *word)
{
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++)
        if (!strcmp(word, words[i]))
            return i % 2;
    return -1;
}

static int set_switch(const struct option *opt, bool *field, const char *value, struct fail *f)
{
    int is = yes_or_no(value);
    if (is < 0)
        return fail(f, -EINVAL, "--%s is yes or no, not '%.64s'", opt->name, value);
    *field = is;
    return 0;
}

static int set_cpus(const struct option *opt, struct cpus *field, const char *value, struct fail *f)
{
    char what[NAME_MAX_BYTES + 4];
    snprintf(what, sizeof what, "--%s", opt->name);
    return cpus_parse(field, what, value, f);
}

static int set_field(struct options *o, const struct option *opt, const char *value, struct fail *f)
{
    void *field = (char *)o + opt->at;
    int word;
    switch (opt->kind) {
    case TEXT:
        return set_text(opt, field, value, f);
    case INSTANCE:
        return set_instance(field, value, f);
    case NUMBER:
        return set_number(opt, field, value, f);
    case SECONDS:
        return set_seconds(opt, field, value, f);
    case SIZE:
        return set_size(opt, field, value, f);
    case SWITCH:
        return set_switch(opt, field, value, f);
    case SHARE:
        return set_share(opt, field, value, f);
    case SPIN:
        return set_spin(opt, field, value, f);
    case BLOCK_SIZE:
        return set_block_size(opt, field, value, f);
    case CPUS:
        return set_cpus(opt, field, value, f);
    case BACKEND:
        word = set_word(opt, value, f);
        o->avx2 = word == 1;
        o->plain = word == 2;
        return word < 0 ? word : 0;
    case ACTIVATIONS:
    case KV_TYPE:
    case HUGE_PAGES:
    case WAITER:
    case LOG_LEVEL:
    case SPECULATIVE:
        return set_value(opt, field, value, f);
    case HELP:
    case VERSION:
        break;
    }
    return 0;
}

static int set(struct options *o, const struct option *opt, const char *value, struct fail *f)
{
    int rc = set_field(o, opt, value, f);
    if (rc)
        return rc;
    o->given |= 1ull << (opt - options_table);
    o->line[opt - options_table] = 0;
    return 0;
}

/* ---- a file's ---- */

/* A copy that lives as long as the options; NULL: the text of one file is bounded, so is its
 * memory. */
static const char *keep(struct options *o, const char *value)
{
    size_t bytes = strlen(value) + 1;
    if (bytes > sizeof o->text - o->text_bytes)
        return NULL;
    char *to = o->text + o->text_bytes;
    memcpy(to, value, bytes);
    o->text_bytes += (uint32_t)bytes;
    return to;
}

static int unknown_in_file(const char *name, struct fail *f)
{
    const struct option *near = closest(name, strlen(name));
    if (near && !near->command_line)
        return fail(f, -ENOENT, "unknown option '%.64s'; did you mean '%s'?", name, near->name);
    return fail(f, -ENOENT, "unknown option '%.64s'; llmd --help lists them, without dashes here",
                name);
}

int options_set_from_file(struct options *o, const char *name, const char *value, unsigned *known,
                          struct fail *f)
{
    const struct option *opt = find(name, strlen(name));
    if (!opt)
        return unknown_in_file(name, f);
    if (opt->command_line)
        return fail(f, -EINVAL, "%s belongs on the command line", opt->name);
    *known = (unsigned)(opt - options_table);
    const char *kept = opt->kind == TEXT || opt->kind == INSTANCE ? keep(o, value) : value;
    struct fail inner = {0};
    int rc =
        kept ? set(o, opt, kept, &inner) : fail(&inner, -EINVAL, "--%s is too long", opt->name);
    /* the sentences name options as the command line does */
    return rc < 0 ? fail(f, rc, "%s", inner.text + (strncmp(inner.text, "--", 2) ? 0 : 2)) : 0;
}

/* ---- the whole ---- */

/* `--switch`, `--switch=no`, `--switch no`. */
static int take_switch(struct options *o, const struct option *opt, const char *value,
                       const char *next, int *i, struct fail *f)
{
    if (!value && next && yes_or_no(next) >= 0) {
        value = next;
        ++*i;
    }
    return set(o, opt, value ? value : "yes", f);
}

/* The switch that `no-NAME` turns off, or NULL. */
static const struct option *turned_off(const char *name, size_t bytes)
{
    const struct option *opt =
        bytes > 3 && !memcmp(name, "no-", 3) ? find(name + 3, bytes - 3) : NULL;
    return opt && opt->kind == SWITCH ? opt : NULL;
}

/* One argument, or two, from argv[*i]: *i becomes the last one. */
static int take_argument(struct options *o, int argc, char **argv, int *i, struct fail *f)
{
    const char *argument = argv[*i];
    const char *name = argument + (strncmp(argument, "--", 2) ? 0 : 2);
    size_t bytes = strcspn(name, "=");
    const char *value = name[bytes] ? name + bytes + 1 : NULL;
    const struct option *opt = name == argument ? NULL : find(name, bytes);
    if (!opt && name != argument && !value && (opt = turned_off(name, bytes)))
        return set(o, opt, "no", f);
    if (!opt)
        return unknown(argument, name, bytes, f);
    if (opt->kind == SWITCH)
        return take_switch(o, opt, value, *i + 1 < argc ? argv[*i + 1] : NULL, i, f);
    if (!opt->value && value)
        return fail(f, -EINVAL, "--%s takes no value", opt->name);
    if (opt->kind == HELP)
        return OPTIONS_HELP;
    if (opt->kind == VERSION)
        return OPTIONS_VERSION;
    if (!value && ++*i < argc)
        value = argv[*i];
    if (!value)
        return fail(f, -EINVAL, "--%s needs a value: --%s %s", opt->name, opt->name, opt->value);
    return set(o, opt, value, f);
}

static int take_arguments(struct options *o, int argc, char **argv, struct fail *f)
{
    int rc = 0;
    for (int i = 1; i < argc && !rc; i++)
        rc = take_argument(o, argc, argv, &i, f);
    return rc;
}

static void set_defaults(struct options *o)
{
    *o = (struct options){.instance = "default",
                          .activations = GPU_ACT_AUTO,
                          .kv_type = GPU_KV_F16,
                          .huge_pages = GPU_HUGE_PAGES_AUTO,
                          .waiter = WAITER_AUTO,
                          .max_num_seqs = 64,
                          .max_num_batched_tokens = 512,
                          .max_requests = 1024,
                          .max_clients = 64,
                          .idle_spin_us = 50,
                          .block_size = GPU_KV_BLOCK,
                          .max_unread_tokens = 65536,
                          .drain_timeout_ms = 5000,
                          .prefix_caching = true,
                          .speculative_tokens = 8,
                          .prompt_lookup_min = 2,
                          .prompt_lookup_max = 8,
                          .max_sessions = 64,
                          .session_idle_s = 300,
                          .max_step_ms = 100,
                          .io_cpu = OPTIONS_NO_CPU,
                          .log_level = LOG_LEVEL_INFO};
}

int options_parse(struct options *o, int argc, char **argv, struct fail *f)
{
    set_defaults(o);
    int rc = take_arguments(o, argc, argv, f);
    if (!rc && o->config) {
        const char *path = o->config;
        set_defaults(o);
        rc = config_read(o, path, f);
        if (!rc)
            rc = take_arguments(o, argc, argv, f); /* again: they win */
    }
    if (!rc)
        rc = options_check(o, f);
    return rc ? rc : o->check_config ? OPTIONS_CHECK : OPTIONS_RUN;
}
