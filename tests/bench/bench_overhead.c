/* bench_overhead.c - the engine's own part of a step: from the end of one step of the backend to the
 * start of the next, at 1, 64 and 256 sequences.
 *
 *   bench_overhead MODEL [SEQUENCES STEPS]
 *
 * As the engine itself measured it, from its histogram on the board. All sequences begin and end
 * together, round by round: the worst case, since their blocks are full in the same step, too. The
 * histogram is read while all run: `steady` are the steps in between, `begin and end` are the rest,
 * in which requests are taken, admitted, prefilled and ended. No step is left out.
 *
 * A figure is the upper edge of its bucket (8 an octave).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../../client/llmclient.h"
#include "../../shm/board.h"
#include "../support/support.h"
#include "bare.h"
#include "roof.h"

enum {
    SEQUENCES_MAX = 256,
    PROMPT = 4,
    ROUND = 250, /* steady steps of a round, at most */
    MARGIN = 4   /* steps at both ends of a round that are not counted as steady */
};

/* A copy of one histogram of the board. */
struct counts {
    uint64_t n, bucket[LLM_HIST_BUCKETS];
};

struct overhead {
    struct counts steady, all;
};

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static const struct llm_board *map_board(const struct engine_process *e)
{
    char name[64];
    snprintf(name, sizeof name, "/llmd.%s", e->instance);
    int fd = shm_open(name, O_RDONLY | O_CLOEXEC, 0);
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        die("the board cannot be mapped");
    close(fd);
    return at;
}

static struct counts counts_now(const struct llm_board *b)
{
    struct counts c = {0};
    for (int i = 0; i < LLM_HIST_BUCKETS; i++)
        c.n += c.bucket[i] = order_read64(&b->overhead.bucket[i]);
    return c;
}

static void add(struct counts *to, const struct counts *c, const struct counts *minus)
{
    to->n += c->n - minus->n;
    for (int i = 0; i < LLM_HIST_BUCKETS; i++)
        to->bucket[i] += c->bucket[i] - minus->bucket[i];
}

static double quantile_us(const struct counts *c, double q)
{
    uint64_t rank = (uint64_t)(q * (double)c->n), sum = 0;
    if (rank == c->n)
        rank--; /* the largest */
    uint32_t i = 0;
    while (i < LLM_HIST_BUCKETS - 1 && (sum += c->bucket[i]) <= rank)
        i++;
    return c->n ? (double)llm_histogram_edge(i + 1) * 1e-3 : 0;
}

/* ---- load ---- */

/* What a round has brought so far, by request. */
struct round {
    uint32_t n, tokens_each, tokens[SEQUENCES_MAX + 1];
};

static struct llm_client *connect_to(const struct engine_process *e)
{
    struct llm_client *c;
    struct llm_options o = LLM_OPTIONS_INIT;
    o.max_inflight = SEQUENCES_MAX;
    o.cq_entries = 64 * SEQUENCES_MAX;
    if (llm_connect(&c, e->instance, &o) < 0)
        die(llm_connect_error());
    return c;
}

static void submit_round(struct llm_client *c, struct rnd *r, const struct round *round)
{
    for (uint32_t i = 1; i <= round->n; i++) {
        int32_t ids[PROMPT];
        struct llm_request q = LLM_REQUEST_INIT;
        for (int k = 0; k < PROMPT; k++)
            ids[k] = (int32_t)(1000 + rnd_below(r, 40000));
        q.tokens = ids, q.n_tokens = PROMPT, q.max_tokens = round->tokens_each;
        q.flags = LLM_SQE_IGNORE_EOS;
        q.user_data = i;
        if (llm_submit(c, &q, NULL) < 0)
            die(llm_errmsg(c));
    }
}

static void note(struct round *round, const struct llm_event *e)
{
    if (e->type == LLM_EVENT_ERROR)
        die("a request failed");
    if (e->type == LLM_EVENT_TOKENS)
        round->tokens[e->id] += e->n_tokens;
}

/* Takes what is there: woken by each step, or every few milliseconds, so that nobody has to be. */
static void take(struct llm_client *c, struct round *round, bool woken)
{
    struct llm_event e;
    if (woken && llm_wait(c, &e, 60000) == 1)
        note(round, &e);
    while (llm_poll(c, &e) == 1)
        note(round, &e);
    if (!woken)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static uint32_t fewest(const struct round *round)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 1; i <= round->n; i++)
        least = round->tokens[i] < least ? round->tokens[i] : least;
    return least;
}

static uint32_t most(const struct round *round)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i <= round->n; i++)
        best = round->tokens[i] > best ? round->tokens[i] : best;
    return best;
}

/* Steady from the moment that all have drawn a few tokens, until one is near its end. */
static void run_round(struct llm_client *c, const struct llm_board *b, struct rnd *r,
                      struct round *round, bool woken, struct counts *steady)
{
    struct counts from, to;
    memset(round->tokens, 0, sizeof round->tokens);
    submit_round(c, r, round);
    while (fewest(round) < MARGIN)
        take(c, round, woken);
    from = to = counts_now(b);
    while (llm_inflight(c)) {
        take(c, round, woken);
        if (most(round) + MARGIN <= round->tokens_each)
            to = counts_now(b);
    }
    add(steady, &to, &from);
}

static struct overhead overhead_of(const char *model, uint32_t n, uint32_t steps, bool woken)
{
    static struct round round;
    struct engine_process e = {0};
    struct overhead o = {0};
    struct rnd r = {3};
    char cpu[16];
    snprintf(cpu, sizeof cpu, "%d", bare_cpu(1) >= 0 ? bare_cpu(1) : bare_cpu(0));
    engine_start(&e, model, "--max-num-seqs", "256", "--max-model-len", "512", "--threads", "1",
                 "--io-cpu", cpu, NULL);
    struct llm_client *c = connect_to(&e);
    const struct llm_board *b = map_board(&e);
    bare_pin(0);
    round.n = n;
    for (uint32_t left = steps; left; left -= left < ROUND ? left : ROUND) {
        round.tokens_each = (left < ROUND ? left : ROUND) + 2 * MARGIN;
        run_round(c, b, &r, &round, woken, &o.steady);
    }
    struct counts end = counts_now(b);
    add(&o.all, &end, &(struct counts){0});
    llm_close(c);
    munmap((void *)(uintptr_t)b, LLM_BOARD_BYTES);
    engine_stop(&e);
    bare_unpin();
    return o;
}

/* ---- tables ---- */

static void print_counts(const char *what, const struct counts *c)
{
    printf("    %-14s %5llu steps  p50 %6.1f  p90 %6.1f  p99 %6.1f  max %6.1f us\n", what,
           (unsigned long long)c->n, quantile_us(c, 0.5), quantile_us(c, 0.9), quantile_us(c, 0.99),
           quantile_us(c, 1));
}

static void print_overhead(const char *model, uint32_t n, uint32_t steps, bool woken)
{
    struct overhead o = overhead_of(model, n, steps, woken);
    struct counts rest = {0};
    add(&rest, &o.all, &o.steady);
    printf("  %u sequences, %s\n", n,
           woken ? "a client that each step wakes" : "nobody to be woken");
    print_counts("steady", &o.steady);
    print_counts("begin and end", &rest);
    print_counts("all", &o.all);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const struct {
        uint32_t n, steps;
    } cases[] = {{1, 1000}, {64, 1000}, {256, 250}};
    if (argc < 2 || *argv[1] == '-')
        die("usage: bench_overhead MODEL [SEQUENCES STEPS]");
    printf("the engine's own part of a step (one thread, the client on another CPU)\n");
    if (argc > 3) {
        uint32_t n = (uint32_t)atoi(argv[2]);
        if (!n || n > SEQUENCES_MAX)
            die("1 to 256 sequences");
        print_overhead(argv[1], n, (uint32_t)atoi(argv[3]), argc > 4);
        return 0;
    }
    for (int woken = 0; woken < 2; woken++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            print_overhead(argv[1], cases[i].n, cases[i].steps, woken);
    return 0;
}
