/* options.c - one table names every option; the parser, the help and the error sentences read it.
 */
#include "options.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../shm/control.h"

enum kind { TEXT, INSTANCE, NUMBER, SIZE, BACKEND, ACTIVATIONS, KV_TYPE, WAITER, HELP, VERSION };

struct option {
    const char *name;
    enum kind kind;
    size_t at;         /* offset of the field in struct options */
    uint64_t min, max; /* NUMBER, SIZE; TEXT: bytes */
    const char *value; /* how the help calls the value; NULL: the option takes none */
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)

static const struct option table[] = {
    {"model", TEXT, FIELD(model), 1, 4095, "FILE", "the GGUF file to serve (required)"},
    {"instance", INSTANCE, FIELD(instance), 0, 0, "NAME",
     "the name that clients connect to (default)"},
    {"served-model-name", TEXT, FIELD(served_model_name), 1, 127, "NAME",
     "what clients are told the model is called (its own name)"},
    {"backend", BACKEND, 0, 0, 0, "cpu|cpu-plain",
     "what computes; cpu-plain is the slow reference (cpu)"},
    {"threads", NUMBER, FIELD(threads), 1, 1024, "N", "compute threads (one for each CPU)"},
    {"max-model-len", NUMBER, FIELD(max_model_len), 2, 1u << 24, "N",
     "longest prompt + output, tokens (the model's context)"},
    {"max-num-seqs", NUMBER, FIELD(max_num_seqs), 1, 4096, "N",
     "sequences that run at the same time (64)"},
    {"max-num-batched-tokens", NUMBER, FIELD(max_num_batched_tokens), 1, 65536, "N",
     "rows of one step, prompts and decodes together (512)"},
    {"prefill-chunk", NUMBER, FIELD(prefill_chunk), 0, 65536, "N",
     "prompt rows of one sequence in a step; 0: no cap of its own (0)"},
    {"activations", ACTIVATIONS, 0, 0, 0, "int8|f32",
     "arithmetic of the linear layers (int8 for quantized weights, else f32)"},
    {"kv-cache-dtype", KV_TYPE, 0, 0, 0, "f16|f32", "how keys and values are stored (f16)"},
    {"kv-cache-memory", SIZE, FIELD(kv_cache_memory), 1, 1ull << 46, "SIZE",
     "bytes of the KV pool, as 512M or 4G (min(4 GiB, a quarter of what is available))"},
    {"num-kv-blocks", NUMBER, FIELD(num_kv_blocks), 1, 1u << 30, "N",
     "KV blocks of the pool, instead of a size"},
    {"max-requests", NUMBER, FIELD(max_requests), 1, 65536, "N",
     "sequences known at the same time, waiting ones included (1024)"},
    {"max-clients", NUMBER, FIELD(max_clients), 1, 1024, "N", "connected clients (64)"},
    {"idle-spin-us", NUMBER, FIELD(idle_spin_us), 0, 1000000, "N",
     "how long to look for work before sleeping, microseconds (50)"},
    {"io", WAITER, 0, 0, 0, "auto|io_uring|epoll",
     "what the engine sleeps with; epoll where io_uring is forbidden (auto)"},
    {"help", HELP, 0, 0, 0, NULL, "this list"},
    {"version", VERSION, 0, 0, 0, NULL, "the version"},
};

enum { N_OPTIONS = sizeof table / sizeof table[0], NAME_MAX_BYTES = 64 };

static const struct option *find(const char *name, size_t bytes)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strlen(table[i].name) == bytes && !memcmp(table[i].name, name, bytes))
            return &table[i];
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
        size_t d = distance(name, bytes, table[i].name, strlen(table[i].name));
        if (d < best_distance) {
            best_distance = d;
            best = &table[i];
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

static int set_number(const struct option *opt, void *field, const char *value, struct fail *f)
{
    const char *end = value;
    uint64_t v;
    int rc = digits(&end, &v);
    if (rc == -EINVAL || (!rc && *end))
        return fail(f, -EINVAL, "--%s takes a whole number from %llu to %llu, not '%.64s'",
                    opt->name, (unsigned long long)opt->min, (unsigned long long)opt->max, value);
    if (rc < 0 || v < opt->min || v > opt->max)
        return fail(f, -EINVAL, "--%s %.64s is out of range: %llu to %llu", opt->name, value,
                    (unsigned long long)opt->min, (unsigned long long)opt->max);
    *(uint32_t *)field = (uint32_t)v;
    return 0;
}

static int set_size(const struct option *opt, void *field, const char *value, struct fail *f)
{
    uint64_t v;
    int rc = options_size(value, &v);
    if (rc == -EINVAL)
        return fail(f, -EINVAL, "--%s takes a size such as 512M or 4G, not '%.64s'", opt->name,
                    value);
    if (rc < 0 || v < opt->min || v > opt->max)
        return fail(f, -EINVAL, "--%s %.64s is out of range: 1 byte to 64 TiB", opt->name, value);
    *(uint64_t *)field = v;
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

static int set(struct options *o, const struct option *opt, const char *value, struct fail *f)
{
    void *field = (char *)o + opt->at;
    int word = 0;
    switch (opt->kind) {
    case TEXT:
        return set_text(opt, field, value, f);
    case INSTANCE:
        return set_instance(field, value, f);
    case NUMBER:
        return set_number(opt, field, value, f);
    case SIZE:
        return set_size(opt, field, value, f);
    case BACKEND:
        word = set_word(opt, value, f);
        o->plain = word == 1;
        break;
    case ACTIVATIONS:
        word = set_word(opt, value, f);
        o->activations = word == 1 ? GPU_ACT_F32 : GPU_ACT_INT8;
        break;
    case KV_TYPE:
        word = set_word(opt, value, f);
        o->kv_type = word == 1 ? GPU_KV_F32 : GPU_KV_F16;
        break;
    case WAITER:
        word = set_word(opt, value, f);
        o->waiter = word == 1 ? WAITER_URING : word == 2 ? WAITER_EPOLL : WAITER_AUTO;
        break;
    case HELP:
    case VERSION:
        break;
    }
    return word < 0 ? word : 0;
}

static int check_whole(const struct options *o, struct fail *f)
{
    if (!o->model)
        return fail(f, -EINVAL, "--model FILE is required: the GGUF file to serve");
    if (o->num_kv_blocks && o->kv_cache_memory)
        return fail(f, -EINVAL,
                    "--num-kv-blocks and --kv-cache-memory both size the KV pool: give one");
    return 0;
}

int options_parse(struct options *o, int argc, char **argv, struct fail *f)
{
    *o = (struct options){.instance = "default",
                          .activations = GPU_ACT_AUTO,
                          .kv_type = GPU_KV_F16,
                          .max_num_seqs = 64,
                          .max_num_batched_tokens = 512,
                          .max_requests = 1024,
                          .max_clients = 64,
                          .idle_spin_us = 50};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i] + (strncmp(argv[i], "--", 2) ? 0 : 2);
        size_t bytes = strcspn(name, "=");
        const char *value = name[bytes] ? name + bytes + 1 : NULL;
        const struct option *opt = name == argv[i] ? NULL : find(name, bytes);
        if (!opt)
            return unknown(argv[i], name, bytes, f);
        if (!opt->value && value)
            return fail(f, -EINVAL, "--%s takes no value", opt->name);
        if (opt->kind == HELP)
            return OPTIONS_HELP;
        if (opt->kind == VERSION)
            return OPTIONS_VERSION;
        if (!value && ++i < argc)
            value = argv[i];
        if (!value)
            return fail(f, -EINVAL, "--%s needs a value: --%s %s", opt->name, opt->name,
                        opt->value);
        int rc = set(o, opt, value, f);
        if (rc < 0)
            return rc;
    }
    return check_whole(o, f);
}

void options_help(FILE *out)
{
    fputs("llmd - serves one language model to the programs of this machine, through shared "
          "memory\n\n"
          "usage: llmd --model FILE [--instance NAME] [OPTION VALUE | --OPTION=VALUE ...]\n\n",
          out);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s %s", table[i].name, table[i].value ? table[i].value : "");
        fprintf(out, "  %-30s %s\n", left, table[i].help);
    }
    fputs("\nA line with the word 'ready' on standard output says that clients may connect.\n"
          "SIGTERM, SIGINT or SIGHUP ends the running requests and leaves. Exit status: 0, 1 for a "
          "failure, 2 for a wrong command line.\n",
          out);
}
