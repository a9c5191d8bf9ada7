/* bench_rings.c - the path itself: round trips of a NOP through the engine beside bare ones
 * (bare.h), taken in turns in one run; and the submit call alone.
 *
 *   bench_rings MODEL
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../client/llmclient.h"
#include "../support/support.h"
#include "bare.h"
#include "roof.h"

enum { ROUNDS = 7, TRIPS = 20000, TRIPS_ASLEEP = 4000, WARM = 2000 };

static double samples[TRIPS], submits[TRIPS];

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* p50 of a round trip in microseconds; *submit: of the call of llm_submit alone. */
static double nop_p50(struct llm_client *c, int trips, double *submit)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_NOP;
    struct llm_event e;
    bare_pin(0);
    for (int i = 0; i < trips + WARM; i++) {
        uint64_t t0 = bench_now_ns();
        if (llm_submit(c, &r, NULL) < 0)
            die(llm_errmsg(c));
        uint64_t t1 = bench_now_ns();
        if (llm_wait(c, &e, 5000) != 1)
            die(llm_errmsg(c));
        if (i < WARM)
            continue;
        samples[i - WARM] = (double)(bench_now_ns() - t0) * 1e-3;
        submits[i - WARM] = (double)(t1 - t0) * 1e-3;
    }
    *submit = bench_median(submits, trips);
    return bench_median(samples, trips);
}

static struct llm_client *connect_to(const struct engine_process *e, uint32_t spin_us)
{
    struct llm_options o = LLM_OPTIONS_INIT;
    struct llm_client *c;
    o.spin_us = spin_us;
    if (llm_connect(&c, e->instance, &o) < 0)
        die(llm_connect_error());
    return c;
}

/* An engine on the CPU that the other side of the bare ones has too. */
static struct llm_client *start(struct engine_process *e, const char *model, const char *spin_us,
                                uint32_t client_spin_us)
{
    char cpu[16];
    snprintf(cpu, sizeof cpu, "%d", bare_cpu(1) >= 0 ? bare_cpu(1) : bare_cpu(0));
    engine_start(e, model, "--threads", "1", "--max-model-len", "256", "--idle-spin-us", spin_us,
                 "--io-cpu", cpu, NULL);
    return connect_to(e, client_spin_us);
}

static void both_spin(const char *model)
{
    struct engine_process e = {0};
    struct llm_client *c = start(&e, model, "1000000", UINT32_MAX);
    double word[ROUNDS], ring[ROUNDS], nop[ROUNDS], submit[ROUNDS], to_ring[ROUNDS],
        to_word[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        kill(e.pid, SIGSTOP); /* or it would spin on a core that the bare pair needs */
        word[i] = bare_word(TRIPS);
        ring[i] = bare_ring(TRIPS);
        kill(e.pid, SIGCONT);
        nop[i] = nop_p50(c, TRIPS, &submit[i]);
        to_ring[i] = nop[i] / ring[i];
        to_word[i] = nop[i] / word[i];
    }
    llm_close(c);
    engine_stop(&e);
    printf("round trips, p50 of %d, median of %d rounds in turns:\n", TRIPS, ROUNDS);
    printf("  bare word ping-pong                    %8.3f us\n", bench_median(word, ROUNDS));
    printf("  bare ring, 128- and 64-byte entries    %8.3f us\n", bench_median(ring, ROUNDS));
    printf("  NOP through the engine, both spinning  %8.3f us   %.2f x the bare ring, %.2f x the "
           "bare word\n",
           bench_median(nop, ROUNDS), bench_median(to_ring, ROUNDS), bench_median(to_word, ROUNDS));
    printf("  of it the call of llm_submit           %8.3f us\n", bench_median(submit, ROUNDS));
}

static void both_sleep(const char *model)
{
    struct engine_process e = {0};
    struct llm_client *c = start(&e, model, "0", 0);
    double bare[ROUNDS], unix_socket[ROUNDS], http[ROUNDS], nop[ROUNDS], submit, ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        bare[i] = bare_futex(TRIPS_ASLEEP);
        nop[i] = nop_p50(c, TRIPS_ASLEEP, &submit);
        unix_socket[i] = bare_unix(TRIPS_ASLEEP);
        http[i] = bare_http(TRIPS_ASLEEP);
        ratio[i] = nop[i] / bare[i];
    }
    llm_close(c);
    engine_stop(&e);
    double p50 = bench_median(nop, ROUNDS);
    printf("round trips, p50 of %d, median of %d rounds in turns:\n", TRIPS_ASLEEP, ROUNDS);
    printf("  bare futex ping-pong, both asleep      %8.3f us\n", bench_median(bare, ROUNDS));
    printf("  NOP through the engine, both asleep    %8.3f us   %.2f x the bare futex\n", p50,
           bench_median(ratio, ROUNDS));
    printf("  Unix stream socket, 128 and 64 bytes   %8.3f us   %.2f x the NOP\n",
           bench_median(unix_socket, ROUNDS), bench_median(unix_socket, ROUNDS) / p50);
    printf("  HTTP over loopback, kept alive         %8.3f us   %.2f x the NOP\n",
           bench_median(http, ROUNDS), bench_median(http, ROUNDS) / p50);
}

int main(int argc, char **argv)
{
    if (argc != 2 || *argv[1] == '-')
        die("usage: bench_rings MODEL");
    both_spin(argv[1]);
    both_sleep(argv[1]);
    return 0;
}
