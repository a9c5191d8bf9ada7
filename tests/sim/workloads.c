/* workloads.c - the workloads that have a name, and the machine that they run on. */
#include <string.h>

#include "sim.h"

#define SECOND 1000000000ull

void sim_defaults(struct sim_config *config)
{
    *config = (struct sim_config){
        .engine = {.max_model_len = 2048,
                   .max_num_seqs = 64,
                   .max_num_batched_tokens = 512,
                   .max_requests = 1024,
                   .n_blocks = 4096,
                   .vocab = 49152,
                   .policy = ENGINE_FAIR,
                   .max_itl_us = 150000,
                   .prefix_cache = true},
        .cost = {4.5e6, 1.0e6, 0.73e6, 1000, 400, 0.02},
        .seed = 1,
        .check_every = 256,
    };
}

/* What one request costs a machine that is busy: its rows, and its share of steps of `batch`. */
static double request_ns(const struct sim_config *c, const struct sim_kind *k, double batch)
{
    double prompt = k->prompt.mean + (double)k->shared / 16, output = k->output.mean;
    double rows = prompt * c->cost.prefill_row + output * c->cost.decode_row;
    double keys = prompt * prompt / 2 * c->cost.prefill_key +
                  output * (prompt + k->shared + output / 2) * c->cost.decode_key;
    if (k->op == LLM_OP_CHOOSE)
        rows += (k->choices - 1) * output * c->cost.prefill_row;
    return rows + keys + output * c->cost.step / batch;
}

/* Kinds have their share of the requests in `count`, in percent: becomes numbers and gaps, such that
 * the machine is offered `load` times what it can do. */
static void offer(struct sim_config *c, uint32_t requests, double load)
{
    double mean_ns = 0;
    for (uint32_t i = 0; i < c->n_kinds; i++)
        mean_ns += c->kinds[i].count / 100.0 * request_ns(c, &c->kinds[i], 32);
    for (uint32_t i = 0; i < c->n_kinds; i++) {
        struct sim_kind *k = &c->kinds[i];
        k->gap_ns = (uint64_t)(mean_ns / load / (k->count / 100.0));
        k->count = (uint32_t)((uint64_t)requests * k->count / 100);
    }
}

static void add(struct sim_config *c, struct sim_kind kind)
{
    if (!kind.op)
        kind.op = LLM_OP_GENERATE;
    if (!kind.clients)
        kind.clients = 1;
    if (!kind.burst)
        kind.burst = 1;
    if (!kind.choices)
        kind.choices = 1;
    c->kinds[c->n_kinds++] = kind;
}

static void add_mixture(struct sim_config *c, uint32_t burst)
{
    add(c, (struct sim_kind){.name = "deadline",
                             .count = 25,
                             .clients = 4,
                             .prompt = {16, 48, 256},
                             .output = {4, 12, 48},
                             .deadline_us = 1000000,
                             .cancel_percent = 5});
    add(c, (struct sim_kind){.name = "chat",
                             .count = 20,
                             .clients = 4,
                             .burst = burst,
                             .prompt = {16, 96, 768},
                             .output = {8, 32, 200},
                             .shared = 64,
                             .cancel_percent = 10});
    add(c, (struct sim_kind){.name = "batch",
                             .count = 40,
                             .clients = 3,
                             .burst = burst * 4,
                             .prompt = {16, 64, 512},
                             .output = {4, 16, 64},
                             .priority = LLM_PRIORITY_LOW});
    add(c, (struct sim_kind){.name = "greedy",
                             .count = 10,
                             .burst = burst * 8,
                             .prompt = {32, 64, 128},
                             .output = {8, 24, 64}});
    add(c, (struct sim_kind){.name = "labels",
                             .count = 4,
                             .op = LLM_OP_CHOOSE,
                             .choices = 4,
                             .prompt = {16, 48, 256},
                             .output = {2, 3, 6}});
    add(c, (struct sim_kind){
               .name = "long", .count = 1, .prompt = {800, 1000, 1500}, .output = {8, 16, 64}});
}

static void calm(struct sim_config *c, uint32_t requests)
{
    add_mixture(c, 1);
    offer(c, requests, 0.5);
}

static void overload(struct sim_config *c, uint32_t requests)
{
    add_mixture(c, 1);
    offer(c, requests, 1.2);
}

static void bursts(struct sim_config *c, uint32_t requests)
{
    add_mixture(c, 8);
    offer(c, requests, 0.85);
}

/* One client floods, another sends the like once a second. */
static void flood(struct sim_config *c, uint32_t requests)
{
    struct sim_length prompt = {64, 64, 64}, output = {32, 32, 32};
    add(c, (struct sim_kind){.name = "modest",
                             .count = 40,
                             .gap_ns = SECOND,
                             .start_ns = SECOND / 2,
                             .regular = true,
                             .prompt = prompt,
                             .output = output});
    if (requests)
        add(c, (struct sim_kind){.name = "flood",
                                 .count = requests,
                                 .start_ns = SECOND / 3,
                                 .regular = true,
                                 .burst = requests,
                                 .prompt = prompt,
                                 .output = output});
}

/* A prompt of 6,000 tokens beside four streams; with `requests` 1 it is alone. */
static void long_prompt(struct sim_config *c, uint32_t requests)
{
    c->engine.max_model_len = 8192;
    c->engine.max_itl_us = 50000;
    add(c, (struct sim_kind){.name = "long",
                             .count = 1,
                             .start_ns = 2 * SECOND,
                             .regular = true,
                             .prompt = {6000, 6000, 6000},
                             .output = {8, 8, 8}});
    if (requests > 1)
        add(c, (struct sim_kind){.name = "streams",
                                 .count = 4,
                                 .clients = 4,
                                 .regular = true,
                                 .burst = 4,
                                 .prompt = {64, 64, 64},
                                 .output = {1500, 1500, 1500}});
}

/* Ten times what 64 blocks hold, all the time. */
static void pressure(struct sim_config *c, uint32_t requests)
{
    c->engine.n_blocks = 64;
    c->engine.max_model_len = 512;
    add(c, (struct sim_kind){.name = "streams",
                             .count = 80,
                             .clients = 4,
                             .prompt = {16, 64, 256},
                             .output = {16, 48, 200},
                             .cancel_percent = 3});
    add(c, (struct sim_kind){.name = "low",
                             .count = 20,
                             .clients = 2,
                             .burst = 8,
                             .prompt = {16, 128, 300},
                             .output = {16, 48, 200},
                             .priority = LLM_PRIORITY_LOW});
    offer(c, requests, 1.5);
}

static const struct workload {
    const char *name, *line;
    void (*fill)(struct sim_config *c, uint32_t requests);
} workloads[] = {
    {"overload", "overload - six kinds of traffic at 1.2 times what the machine can do", overload},
    {"calm", "calm - the same at half of it", calm},
    {"bursts", "bursts - the same at 0.85, in bursts", bursts},
    {"flood", "flood - one client floods, another sends one request a second", flood},
    {"long", "long - a prompt of 6,000 tokens beside four streams", long_prompt},
    {"pressure", "pressure - a pool of 64 blocks under ten times its capacity", pressure},
};

enum { WORKLOADS = sizeof workloads / sizeof *workloads };

const char *sim_workload_line(uint32_t i)
{
    return i < WORKLOADS ? workloads[i].line : NULL;
}

bool sim_workload(const char *name, uint32_t requests, struct sim_config *config)
{
    for (uint32_t i = 0; i < WORKLOADS; i++) {
        if (strcmp(name, workloads[i].name))
            continue;
        config->workload = workloads[i].name;
        config->n_kinds = 0;
        workloads[i].fill(config, requests);
        return true;
    }
    return false;
}
