/* main.c - the simulator from the command line: `make sim`, `make sim SIM="--workload flood"`.
 *
 * Runs a workload under the engine's policy and under first come, first served with unbudgeted
 * prefill, on the same arrivals, and prints both. Status 1 where an invariant broke. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct arguments {
    const char *workload;
    uint32_t requests;
    uint64_t seed;
    double max_itl_ms, max_step_ms; /* < 0: the workload's */
    double machine_ms[3];           /* a step, a decode row, a prefill row; [0] < 0: the usual */
};

static int usage(FILE *out)
{
    fprintf(out, "sim [--workload NAME] [--requests N] [--seed S] [--max-itl-ms MS] "
                 "[--max-step-ms MS] [--machine STEP,DECODE,PREFILL]\nworkloads:\n");
    for (uint32_t i = 0; sim_workload_line(i); i++)
        fprintf(out, "  %s\n", sim_workload_line(i));
    return out == stdout ? 0 : 2;
}

static bool read_argument(struct arguments *a, const char *name, const char *value)
{
    char *end = "";
    if (!strcmp(name, "--workload"))
        a->workload = value;
    else if (!strcmp(name, "--requests"))
        a->requests = (uint32_t)strtoul(value, &end, 10);
    else if (!strcmp(name, "--seed"))
        a->seed = strtoull(value, &end, 10);
    else if (!strcmp(name, "--max-itl-ms"))
        a->max_itl_ms = strtod(value, &end);
    else if (!strcmp(name, "--machine"))
        return sscanf(value, "%lf,%lf,%lf", &a->machine_ms[0], &a->machine_ms[1],
                      &a->machine_ms[2]) == 3;
    else if (!strcmp(name, "--max-step-ms"))
        a->max_step_ms = strtod(value, &end);
    else
        return false;
    return !*end;
}

/* True if no invariant broke. */
static bool run(const struct sim_config *config)
{
    struct sim_result *result = malloc(sizeof *result);
    bool ok = result && !sim_run(config, result);
    if (result)
        sim_print(stdout, config, result);
    fflush(stdout);
    free(result);
    return ok;
}

int main(int argc, char **argv)
{
    struct arguments a = {"overload", 100000, 1, -1, -1, {-1, 0, 0}};
    struct sim_config config;
    for (int i = 1; i < argc; i += 2) {
        if (!strcmp(argv[i], "--help"))
            return usage(stdout);
        if (i + 1 == argc || !read_argument(&a, argv[i], argv[i + 1]))
            return usage(stderr);
    }
    sim_defaults(&config);
    config.seed = a.seed;
    if (!sim_workload(a.workload, a.requests, &config))
        return usage(stderr);
    if (a.max_itl_ms >= 0)
        config.engine.max_itl_us = (uint32_t)(a.max_itl_ms * 1000);
    if (a.machine_ms[0] >= 0) {
        config.cost.step = a.machine_ms[0] * 1e6;
        config.cost.decode_row = a.machine_ms[1] * 1e6;
        config.cost.prefill_row = a.machine_ms[2] * 1e6;
    }
    if (a.max_step_ms >= 0)
        config.engine.max_step_us = (uint32_t)(a.max_step_ms * 1000);
    sim_print_head(stdout, &config);
    bool ok = run(&config);
    config.engine.policy = ENGINE_FIRST_COME;
    config.engine.max_itl_us = 0;
    ok &= run(&config);
    return ok ? 0 : 1;
}
