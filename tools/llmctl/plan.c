/* plan.c - `plan`: what a model needs, whom it can serve, and what that costs, before anything is
 * bought. Reads the model file's description only. The arithmetic: plan.h.
 *
 * Times come from the command line, or from the board of an engine of the same model: the fastest
 * tenth of its steps stands for a step of one row, and what all its steps took beyond that, shared
 * among all further rows, for a row.
 */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/model/model.h"
#include "../../appliance/sizing.h"
#include "../../gpu/cpu/memory.h"
#include "board_view.h"
#include "plan.h"

enum {
    ROWS_ENOUGH = 64, /* further rows, below which the board does not tell */
    SEQS_MAX = 4096,  /* as llmd's --max-num-seqs and --max-num-batched-tokens */
    BATCHED_MAX = 65536
};

struct plan_options {
    const char *model;
    uint64_t memory, workspace; /* 0: not given */
    uint32_t max_model_len, max_num_seqs, max_num_batched_tokens;
    enum gpu_kv_type kv_type;
    double requests_per_s, prompt, output, step_ms, row_us; /* 0: not given */
    struct plan_cost cost;
    bool json;
};

struct plan {
    struct plan_options o;
    struct model *model;
    struct plan_memory memory;
    struct plan_load load;
    struct plan_speed speed; /* step_s 0: not known */
    struct plan_times times;
    double users_full, max_rate;
    char speed_from[160];
};

static const char *const kv_names[GPU_KV_TYPES] = {"f16", "f32", "int8"}; /* enum gpu_kv_type */

/* ---- options ---- */

enum {
    O_MEMORY = 256,
    O_WORKSPACE,
    O_LEN,
    O_SEQS,
    O_BATCHED,
    O_KV,
    O_RATE,
    O_PROMPT,
    O_OUTPUT,
    O_STEP,
    O_ROW,
    O_HOUR,
    O_HOSTED,
    O_JSON
};

static const struct option options[] = {
    {"memory", required_argument, NULL, O_MEMORY},
    {"workspace", required_argument, NULL, O_WORKSPACE},
    {"max-model-len", required_argument, NULL, O_LEN},
    {"max-num-seqs", required_argument, NULL, O_SEQS},
    {"max-num-batched-tokens", required_argument, NULL, O_BATCHED},
    {"kv-cache-dtype", required_argument, NULL, O_KV},
    {"requests/s", required_argument, NULL, O_RATE},
    {"requests-per-s", required_argument, NULL, O_RATE},
    {"prompt", required_argument, NULL, O_PROMPT},
    {"output", required_argument, NULL, O_OUTPUT},
    {"step-ms", required_argument, NULL, O_STEP},
    {"row-us", required_argument, NULL, O_ROW},
    {"gpu-hour-price", required_argument, NULL, O_HOUR},
    {"hosted-price", required_argument, NULL, O_HOSTED},
    {"json", no_argument, NULL, O_JSON},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0}};

static void help(void)
{
    puts("usage: llmctl [-i INSTANCE] plan FILE [OPTION...]\n\n"
         "What the model of a GGUF file needs, whom it can serve, and what that costs.\n\n"
         "  --memory SIZE         for weights, workspace and KV, as 24G. Without it KV gets what "
         "llmd "
         "takes on this\n"
         "                        machine by default: the least of 4 GiB, a quarter of what is "
         "free, and what\n"
         "                        --max-num-seqs sequences can use (llmd --kv-cache-memory: more)\n"
         "  --workspace SIZE      what steps work in (estimated)\n"
         "  --max-model-len N     longest prompt + answer (the model's context)\n"
         "  --kv-cache-dtype T    f16, f32 or int8 (f16)\n"
         "  --max-num-seqs N      at most so many at once (64)\n"
         "  --max-num-batched-tokens N   prompt tokens in a step (512)\n"
         "\nload and money:\n"
         "  --requests/s R        requests a second; also --requests-per-s\n"
         "  --prompt N, --output N   tokens of a request\n"
         "  --gpu-hour-price P    of the machine, an hour\n"
         "  --hosted-price P[,Q]  elsewhere, per million tokens; prompt and output tokens\n"
         "\nspeed (that of the instance's engine, if it runs and serves this model):\n"
         "  --step-ms T           a step of one token\n"
         "  --row-us T            each further token in a step\n"
         "\n  --json                the result as one JSON object");
}

/* "24G", "1.5GiB", "900M": powers of 1024. */
static int parse_size(const char *what, const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (end != text && unit) {
        v *= ldexp(1, 10 * (int)(unit - units + 1));
        end += end[1] == 'i' && end[2] == 'B' ? 3 : end[1] == 'B' ? 2 : 1;
    }
    if (end == text || *end || !(v >= 1 && v < 1e18))
        return ctl_usage("%s: \"%s\" is no size (24G, 900M)", what, text);
    *out = (uint64_t)v;
    return 0;
}

static int parse_u32(const char *what, const char *text, uint32_t max, uint32_t *out)
{
    uint64_t v = 0;
    int rc = ctl_parse_uint(what, text, 1, max, &v);
    *out = (uint32_t)v;
    return rc;
}

static int parse_kv(const char *text, enum gpu_kv_type *out)
{
    for (int i = 0; i < GPU_KV_TYPES; i++)
        if (!strcmp(text, kv_names[i])) {
            *out = (enum gpu_kv_type)i;
            return 0;
        }
    return ctl_usage("--kv-cache-dtype: \"%s\" is none of f16, f32, int8", text);
}

static int parse_hosted(const char *text, struct plan_cost *c)
{
    char first[64];
    const char *comma = strchr(text, ',');
    snprintf(first, sizeof first, "%.*s", comma ? (int)(comma - text) : 63, text);
    int rc = ctl_parse_amount("--hosted-price", first, &c->hosted_in);
    c->hosted_out = c->hosted_in;
    return rc || !comma ? rc : ctl_parse_amount("--hosted-price", comma + 1, &c->hosted_out);
}

static int take_option(int c, struct plan_options *o)
{
    switch (c) {
    case O_MEMORY:
        return parse_size("--memory", optarg, &o->memory);
    case O_WORKSPACE:
        return parse_size("--workspace", optarg, &o->workspace);
    case O_LEN:
        return parse_u32("--max-model-len", optarg, UINT32_MAX, &o->max_model_len);
    case O_SEQS:
        return parse_u32("--max-num-seqs", optarg, SEQS_MAX, &o->max_num_seqs);
    case O_BATCHED:
        return parse_u32("--max-num-batched-tokens", optarg, BATCHED_MAX,
                         &o->max_num_batched_tokens);
    case O_KV:
        return parse_kv(optarg, &o->kv_type);
    case O_RATE:
        return ctl_parse_amount("--requests/s", optarg, &o->requests_per_s);
    case O_PROMPT:
        return ctl_parse_amount("--prompt", optarg, &o->prompt);
    case O_OUTPUT:
        return ctl_parse_amount("--output", optarg, &o->output);
    case O_STEP:
        return ctl_parse_amount("--step-ms", optarg, &o->step_ms);
    case O_ROW:
        return ctl_parse_amount("--row-us", optarg, &o->row_us);
    case O_HOUR:
        return ctl_parse_amount("--gpu-hour-price", optarg, &o->cost.per_hour);
    case O_HOSTED:
        return parse_hosted(optarg, &o->cost);
    case O_JSON:
        o->json = true;
        return 0;
    }
    return 2;
}

static int check(const struct plan_options *o)
{
    bool load = o->requests_per_s > 0, tokens = o->prompt >= 1 && o->output >= 1;
    if (!o->model)
        return ctl_usage("which model? Give its GGUF file");
    if (load && !tokens)
        return ctl_usage("--requests/s needs --prompt and --output, tokens of a request, each at "
                         "least 1");
    if ((o->prompt > 0 || o->output > 0) && !tokens)
        return ctl_usage("--prompt and --output go together, each at least 1");
    if (o->cost.hosted_in + o->cost.hosted_out > 0 && !tokens)
        return ctl_usage("--hosted-price needs --prompt and --output, tokens of a request, each at "
                         "least 1");
    if (!(o->step_ms > 0) != !(o->row_us > 0))
        return ctl_usage("--step-ms and --row-us go together");
    return 0;
}

/* 0, an exit status, or -1 after --help */
static int parse(int argc, char **argv, struct plan_options *o)
{
    *o = (struct plan_options){.max_num_seqs = 64, .max_num_batched_tokens = 512};
    int c, rc;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1) {
        if (c == 'h') {
            help();
            return -1;
        }
        if ((rc = take_option(c, o)))
            return rc;
    }
    if (optind < argc)
        o->model = argv[optind++];
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\"", argv[optind]);
    return check(o);
}

/* ---- memory ---- */

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static double blocks_for(double tokens)
{
    return ceil(tokens / GPU_KV_BLOCK);
}

/* All of --memory beside weights and workspace. */
static int pool_of_memory(struct plan *p)
{
    const struct plan_options *o = &p->o;
    struct plan_memory *m = &p->memory;
    p->users_full = (double)m->blocks / blocks_for(o->max_model_len);
    if (p->users_full >= 1)
        return 0;
    return ctl_error("the %.1f MiB that are left for KV hold %llu tokens, less than one request of "
                     "%u: pass --max-model-len %llu or less, or --kv-cache-dtype int8",
                     mib(m->blocks * m->block_bytes), (unsigned long long)m->blocks * GPU_KV_BLOCK,
                     o->max_model_len, (unsigned long long)m->blocks * GPU_KV_BLOCK);
}

/* What llmd takes on this machine if nothing is said. */
static int pool_by_default(struct plan *p)
{
    struct plan_memory *m = &p->memory;
    struct gpu_memory memory = {.weights_bytes = m->weights_bytes,
                                .workspace_bytes = m->workspace_bytes,
                                .block_bytes = m->block_bytes,
                                .available_bytes = m->memory_bytes - m->weights_bytes};
    struct sizing_wish wish = {.max_model_len = p->o.max_model_len,
                               .max_num_seqs = p->o.max_num_seqs,
                               .own_bytes = sizing_own_bytes(p->model->net.vocab)};
    struct sizing sizing;
    struct fail f = {0};
    if (sizing_plan(&sizing, &wish, &memory, &f) < 0)
        return ctl_error("%s", f.text);
    m->blocks = sizing.n_blocks;
    p->users_full = (double)m->blocks / blocks_for(p->o.max_model_len);
    return 0;
}

static int plan_memory(struct plan *p)
{
    const struct plan_options *o = &p->o;
    const struct gpu_model *net = &p->model->net;
    struct plan_memory *m = &p->memory;
    uint32_t rows = o->max_num_batched_tokens + o->max_num_seqs;
    m->memory_bytes = o->memory ? o->memory : memory_available("");
    m->weights_bytes = p->model->weights_bytes;
    m->workspace_bytes =
        o->workspace ? o->workspace : plan_workspace_bytes(net, rows, o->max_model_len);
    m->block_bytes = plan_block_bytes(net, o->kv_type);
    if (!plan_pool(m))
        return ctl_error(
            "weights of %.1f MiB and a workspace of %.1f MiB do not fit into %.1f MiB: "
            "that is the floor, and KV comes on top",
            mib(m->weights_bytes), mib(m->workspace_bytes), mib(m->memory_bytes));
    return o->memory ? pool_of_memory(p) : pool_by_default(p);
}

/* ---- speed ---- */

static bool same_model(const struct llm_board *b, const struct model *m)
{
    uint8_t vocab[16];
    model_vocab_digest(m, vocab);
    return !memcmp(vocab, b->vocab_digest, sizeof vocab) && b->vocab == m->net.vocab &&
           !strncmp(b->quantization, m->quantization, sizeof b->quantization);
}

static bool speed_of_board(struct plan *p, const struct board_view *v)
{
    struct histogram h;
    histogram_between(&h, &v->board.step, NULL);
    double rows = (double)order_read64(&v->board.rows), further = rows - (double)h.count;
    if (!h.count || further < ROWS_ENOUGH)
        return false;
    p->speed.step_s = histogram_floor_us(&h, 0.1) * 1e-6;
    double rest = (double)h.sum_ns * 1e-9 - p->speed.step_s * (double)h.count;
    p->speed.row_s = rest > 0 ? rest / further : 0;
    return p->speed.step_s > 0;
}

static void find_speed(struct plan *p)
{
    if (p->o.step_ms > 0) {
        p->speed = (struct plan_speed){p->o.step_ms * 1e-3, p->o.row_us * 1e-6};
        snprintf(p->speed_from, sizeof p->speed_from, "--step-ms and --row-us");
        return;
    }
    struct board_view *v = board_view_create();
    bool serves = v && !board_view_read_quiet(v) && same_model(&v->board, p->model);
    if (serves && speed_of_board(p, v))
        snprintf(p->speed_from, sizeof p->speed_from, "%llu steps of the engine \"%.48s\" (%.31s)",
                 (unsigned long long)order_read64(&v->board.steps), ctl_instance,
                 v->board.numerics);
    else if (serves)
        snprintf(p->speed_from, sizeof p->speed_from,
                 "the engine \"%.48s\" has computed too little: let it read some prompts",
                 ctl_instance);
    else
        snprintf(p->speed_from, sizeof p->speed_from,
                 "no engine \"%.48s\" with this model: name one that has it with llmctl -i, or "
                 "pass --step-ms and --row-us",
                 ctl_instance);
    free(v);
}

/* ---- load ---- */

static int plan_load(struct plan *p)
{
    const struct plan_options *o = &p->o;
    double users = 0;
    if (o->prompt + o->output > o->max_model_len)
        return ctl_error("%.0f prompt and %.0f output tokens exceed --max-model-len %u", o->prompt,
                         o->output, o->max_model_len);
    if (o->prompt > 0)
        users = floor((double)p->memory.blocks / blocks_for(o->prompt + o->output));
    if (users > o->max_num_seqs)
        users = o->max_num_seqs;
    p->load = (struct plan_load){o->requests_per_s, o->prompt, o->output, o->max_num_batched_tokens,
                                 users};
    if (o->prompt > 0 && p->speed.step_s > 0) {
        p->max_rate = plan_max_rate(&p->speed, &p->load);
        plan_times(&p->times, &p->speed, &p->load);
    }
    plan_cost(&p->o.cost, &p->load);
    return 0;
}

/* ---- for people ---- */

/* llmd does not take all that there is unless it is told to. */
static void print_pool_rule(const struct plan *p)
{
    if (!p->o.memory)
        puts("                 llmd's default here: the least of 4 GiB, a quarter of what is free, "
             "and what\n"
             "                 --max-num-seqs sequences can use; --memory SIZE plans with all of "
             "it");
    else
        printf(
            "                 llmd takes so much with --num-kv-blocks %llu; by default at most 4 "
            "GiB\n",
            (unsigned long long)p->memory.blocks);
}

static void print_memory(const struct plan *p)
{
    const struct plan_memory *m = &p->memory;
    const struct gpu_model *net = &p->model->net;
    printf("model            %s (%s)\n", p->model->name, p->model->quantization);
    printf("memory           %.1f MiB%s\n", mib(m->memory_bytes),
           p->o.memory ? " (--memory)" : " (free on this machine)");
    printf("weights          %.1f MiB, the floor: read once a step, whoever is served\n",
           mib(m->weights_bytes));
    printf("workspace        %.1f MiB%s\n", mib(m->workspace_bytes),
           p->o.workspace ? "" : " (estimated)");
    printf("KV               %.1f MiB, %llu tokens of %.3f KiB (%s, %u layers, %u KV heads of "
           "%u)\n",
           mib(m->blocks * m->block_bytes), (unsigned long long)m->blocks * GPU_KV_BLOCK,
           m->token_bytes / 1024, kv_names[p->o.kv_type], net->n_layers, net->kv_heads,
           net->head_dim);
    print_pool_rule(p);
    printf("users            %.2f at once of %u tokens", p->users_full, p->o.max_model_len);
    if (p->o.prompt > 0)
        printf("; %.0f of %.0f + %.0f tokens (--max-num-seqs %u)", p->load.users, p->o.prompt,
               p->o.output, p->o.max_num_seqs);
    printf("\n");
}

static void print_times(const struct plan *p)
{
    const struct plan_times *t = &p->times;
    if (p->speed.step_s <= 0) {
        printf("speed            not known: %s\n", p->speed_from);
        return;
    }
    printf("speed            %.3f ms a step of one row, %.1f us each further row\n",
           p->speed.step_s * 1e3, p->speed.row_s * 1e6);
    printf("                 from %s\n", p->speed_from);
    if (p->o.prompt <= 0)
        return;
    printf("most             %.3f requests/s of this kind\n", p->max_rate);
    if (p->o.requests_per_s <= 0)
        return;
    if (!t->holds) {
        printf("at load          %.3f requests/s are more than that: the queue grows without end\n",
               p->o.requests_per_s);
        return;
    }
    printf("at load          %.3f requests/s: %.2f running, prompts are read %.1f %% of the time\n",
           p->o.requests_per_s, t->running, t->reading * 100);
    printf("TTFT             %.1f ms on average, %.1f ms p95 (M/D/1, see llmctl(1))\n",
           t->ttft_s * 1e3, t->ttft_p95_s * 1e3);
    printf("between tokens   %.2f ms; %.2f ms while a prompt is read\n", t->gap_s * 1e3,
           t->gap_beside_prompt_s * 1e3);
}

static void print_cost(const struct plan *p)
{
    const struct plan_cost *c = &p->o.cost;
    if (c->per_million > 0)
        printf("cost             %.4f per million tokens at %.3f requests/s\n", c->per_million,
               p->o.requests_per_s);
    if (c->hosted_per_million > 0)
        printf("hosted           %.4f per million tokens\n", c->hosted_per_million);
    if (c->break_even_requests_per_s <= 0)
        return;
    printf("break-even       %.4f requests/s", c->break_even_requests_per_s);
    if (p->max_rate > 0)
        printf(c->break_even_requests_per_s <= p->max_rate ? ", which this machine serves"
                                                           : ", more than this machine serves");
    printf("\n");
}

/* ---- JSON ---- */

static void set_real(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, ctl_number(v));
}

static json_t *memory_json(const struct plan *p)
{
    const struct plan_memory *m = &p->memory;
    json_t *o =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "model", p->model->name,
                  "quantization", p->model->quantization, "memory_bytes",
                  (json_int_t)m->memory_bytes, "weights_bytes", (json_int_t)m->weights_bytes,
                  "workspace_bytes", (json_int_t)m->workspace_bytes, "kv_cache_dtype",
                  kv_names[p->o.kv_type], "kv_block_bytes", (json_int_t)m->block_bytes, "kv_blocks",
                  (json_int_t)m->blocks, "kv_bytes", (json_int_t)(m->blocks * m->block_bytes),
                  "kv_tokens", (json_int_t)(m->blocks * GPU_KV_BLOCK));
    json_object_set_new(o, "kv_sized_by", json_string(p->o.memory ? "--memory" : "llmd's default"));
    set_real(o, "kv_bytes_per_token", m->token_bytes);
    json_object_set_new(o, "max_model_len", json_integer(p->o.max_model_len));
    set_real(o, "users_full_length", p->users_full);
    if (p->o.prompt > 0)
        set_real(o, "users_at_load", p->load.users);
    return o;
}

static json_t *speed_json(const struct plan *p)
{
    bool known = p->speed.step_s > 0;
    json_t *o = json_pack("{s:s}", "source", p->speed_from);
    json_object_set_new(o, "step_us", known ? ctl_number(p->speed.step_s * 1e6) : json_null());
    json_object_set_new(o, "row_us", known ? ctl_number(p->speed.row_s * 1e6) : json_null());
    return o;
}

static json_t *load_json(const struct plan *p)
{
    const struct plan_times *t = &p->times;
    json_t *o = json_object();
    set_real(o, "requests_per_s", p->o.requests_per_s);
    set_real(o, "prompt_tokens", p->o.prompt);
    set_real(o, "output_tokens", p->o.output);
    if (p->speed.step_s <= 0)
        return o;
    set_real(o, "max_requests_per_s", p->max_rate);
    if (p->o.requests_per_s <= 0)
        return o;
    json_object_set_new(o, "holds", json_boolean(t->holds));
    if (!t->holds)
        return o;
    set_real(o, "running", t->running);
    set_real(o, "reading", t->reading);
    json_object_set_new(
        o, "ttft_us", json_pack("{s:f, s:f}", "mean", t->ttft_s * 1e6, "p95", t->ttft_p95_s * 1e6));
    set_real(o, "itl_us", t->gap_s * 1e6);
    set_real(o, "itl_beside_prompt_us", t->gap_beside_prompt_s * 1e6);
    return o;
}

static json_t *cost_json(const struct plan_cost *c)
{
    json_t *o = json_object();
    set_real(o, "per_hour", c->per_hour);
    json_object_set_new(o, "per_million_tokens",
                        c->per_million > 0 ? ctl_number(c->per_million) : json_null());
    json_object_set_new(o, "hosted_per_million_tokens",
                        c->hosted_per_million > 0 ? ctl_number(c->hosted_per_million)
                                                  : json_null());
    json_object_set_new(o, "break_even_requests_per_s",
                        c->break_even_requests_per_s > 0 ? ctl_number(c->break_even_requests_per_s)
                                                         : json_null());
    return o;
}

static int print(const struct plan *p)
{
    if (p->o.json) {
        json_t *o = memory_json(p);
        json_object_set_new(o, "speed", speed_json(p));
        if (p->o.prompt > 0)
            json_object_set_new(o, "load", load_json(p));
        json_object_set_new(o, "cost", cost_json(&p->o.cost));
        return ctl_print_json(o);
    }
    print_memory(p);
    print_times(p);
    print_cost(p);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

int cmd_plan(int argc, char **argv)
{
    struct plan p = {0};
    struct fail f = {0};
    int rc = parse(argc, argv, &p.o);
    if (rc)
        return rc < 0 ? 0 : rc;
    if (model_open(&p.model, p.o.model, &f) < 0)
        return ctl_error("%s", f.text);
    if (sizing_length(&p.o.max_model_len, p.o.max_model_len, p.model->net.context, &f) < 0)
        rc = ctl_usage("%s", f.text);
    rc = rc ? rc : plan_memory(&p);
    if (!rc)
        find_speed(&p);
    rc = rc ? rc : plan_load(&p);
    rc = rc ? rc : print(&p);
    model_close(p.model);
    return rc;
}
