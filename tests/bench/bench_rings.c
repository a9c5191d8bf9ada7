/* bench_rings.c - the path itself: round trips of a NOP through the engine, of the same 128- and
 * 64-byte entries through a bare two-process ring, and of one word between two processes; taken in
 * turns in one run.
 *
 *   bench_rings MODEL
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../client/llmclient.h"
#include "../../shm/order.h"
#include "../support/support.h"
#include "roof.h"

enum { ROUNDS = 7, TRIPS = 20000, WARM = 2000, ENTRIES = 256 };

static double samples[TRIPS];

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* The n-th CPU that this process was started with. */
static int cpu_at(int n)
{
    static cpu_set_t all;
    if (!CPU_COUNT(&all))
        sched_getaffinity(0, sizeof all, &all);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && n-- == 0)
            return i;
    return -1; /* fewer CPUs than that: stay where we are */
}

static void pin(int n)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (cpu_at(n) < 0)
        return;
    CPU_SET(cpu_at(n), &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* ---- the bare ones ---- */

struct bare {
    _Alignas(64) order_u32 there;
    _Alignas(64) order_u32 back;
    _Alignas(64) uint8_t up[ENTRIES][128];
    _Alignas(64) uint8_t down[ENTRIES][64];
};

static void echo_words(struct bare *b)
{
    for (uint32_t i = 1;; i++) {
        while (order_acquire(&b->there) != i)
            pause_cpu();
        order_release(&b->back, i);
    }
}

static void echo_entries(struct bare *b)
{
    uint8_t copy[128];
    for (uint32_t i = 1;; i++) {
        while (order_acquire(&b->there) != i)
            pause_cpu();
        memcpy(copy, b->up[i % ENTRIES], sizeof copy);
        memcpy(b->down[i % ENTRIES], copy, 64);
        order_release(&b->back, i);
    }
}

static void trip_word(struct bare *b, uint32_t i)
{
    order_release(&b->there, i);
    while (order_acquire(&b->back) != i)
        pause_cpu();
}

static void trip_entries(struct bare *b, uint32_t i)
{
    uint8_t copy[64];
    memset(b->up[i % ENTRIES], (int)i, 128);
    order_release(&b->there, i);
    while (order_acquire(&b->back) != i)
        pause_cpu();
    memcpy(copy, b->down[i % ENTRIES], sizeof copy);
    __asm__ volatile("" ::"r"(copy) : "memory");
}

/* p50 of a round trip in microseconds */
static double bare_p50(void (*echo)(struct bare *), void (*trip)(struct bare *, uint32_t))
{
    struct bare *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fork();
    if (!child) {
        pin(1);
        echo(b);
    }
    pin(0);
    for (uint32_t i = 1; i <= TRIPS + WARM; i++) {
        uint64_t t0 = bench_now_ns();
        trip(b, i);
        if (i > WARM)
            samples[i - WARM - 1] = (double)(bench_now_ns() - t0) * 1e-3;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    munmap(b, sizeof *b);
    return bench_median(samples, TRIPS);
}

/* ---- through the engine ---- */

static void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static double nop_p50(struct llm_client *c, int trips)
{
    struct llm_request r = LLM_REQUEST_INIT;
    r.op = LLM_OP_NOP;
    struct llm_event e;
    pin(0);
    for (int i = 0; i < trips + WARM; i++) {
        uint64_t t0 = bench_now_ns();
        if (llm_submit(c, &r, NULL) < 0 || llm_wait(c, &e, 5000) != 1)
            die(llm_errmsg(c));
        if (i >= WARM)
            samples[i - WARM] = (double)(bench_now_ns() - t0) * 1e-3;
    }
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

int main(int argc, char **argv)
{
    if (argc != 2)
        die("usage: bench_rings MODEL");
    struct engine_process spinning = {0}, sleeping = {0};
    char other_cpu[16];
    snprintf(other_cpu, sizeof other_cpu, "%d", cpu_at(1) >= 0 ? cpu_at(1) : cpu_at(0));
    engine_start(&spinning, argv[1], "--threads", "1", "--max-model-len", "256", "--idle-spin-us",
                 "1000000", "--io-cpu", other_cpu, NULL);
    struct llm_client *c = connect_to(&spinning, UINT32_MAX);
    double word[ROUNDS], ring[ROUNDS], nop[ROUNDS], to_ring[ROUNDS], to_word[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        kill(spinning.pid, SIGSTOP); /* or it would spin on a core that the bare pair needs */
        word[i] = bare_p50(echo_words, trip_word);
        ring[i] = bare_p50(echo_entries, trip_entries);
        kill(spinning.pid, SIGCONT);
        nop[i] = nop_p50(c, TRIPS);
        to_ring[i] = nop[i] / ring[i];
        to_word[i] = nop[i] / word[i];
    }
    llm_close(c);
    engine_stop(&spinning);
    engine_start(&sleeping, argv[1], "--threads", "1", "--max-model-len", "256", "--idle-spin-us",
                 "0", NULL);
    c = connect_to(&sleeping, 0);
    double asleep = nop_p50(c, 4000);
    llm_close(c);
    engine_stop(&sleeping);
    printf("round trips, p50 of %d, median of %d rounds in turns:\n", TRIPS, ROUNDS);
    printf("  bare word ping-pong                    %8.3f us\n", bench_median(word, ROUNDS));
    printf("  bare ring, 128- and 64-byte entries    %8.3f us\n", bench_median(ring, ROUNDS));
    printf("  NOP through the engine, both spinning  %8.3f us   %.2f x the bare ring, %.2f x the "
           "bare word\n",
           bench_median(nop, ROUNDS), bench_median(to_ring, ROUNDS), bench_median(to_word, ROUNDS));
    printf("  NOP through the engine, both asleep    %8.3f us\n", asleep);
    return 0;
}
