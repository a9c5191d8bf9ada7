/* bare.c - see bare.h */
#include "bare.h"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../shm/order.h"
#include "roof.h"

enum { WARM = 1000, ENTRIES = 256, TRIPS_MAX = 20000 };

static double samples[TRIPS_MAX];

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static const cpu_set_t *all_cpus(void)
{
    static cpu_set_t all;
    if (!CPU_COUNT(&all))
        sched_getaffinity(0, sizeof all, &all);
    return &all;
}

int bare_cpu(int n)
{
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, all_cpus()) && n-- == 0)
            return i;
    return -1;
}

void bare_pin(int n)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    if (bare_cpu(n) < 0)
        return;
    CPU_SET(bare_cpu(n), &one);
    sched_setaffinity(0, sizeof one, &one);
}

void bare_unpin(void)
{
    sched_setaffinity(0, sizeof(cpu_set_t), all_cpus());
}

/* What the two processes have in common. */
struct bare {
    _Alignas(64) order_u32 there;
    _Alignas(64) order_u32 back;
    _Alignas(64) uint8_t up[ENTRIES][128];
    _Alignas(64) uint8_t down[ENTRIES][64];
    int ours, theirs; /* sockets */
    uint64_t woken_ns;
};

/* ---- in memory ---- */

static void echo_words(struct bare *b)
{
    for (uint32_t i = 1;; i++) {
        while (order_acquire(&b->there) != i)
            pause_cpu();
        order_release(&b->back, i);
    }
}

static void trip_word(struct bare *b, uint32_t i)
{
    order_release(&b->there, i);
    while (order_acquire(&b->back) != i)
        pause_cpu();
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

/* ---- asleep ---- */

static void wake(order_u32 *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void sleep_until(order_u32 *word, uint32_t value)
{
    while (order_acquire(word) != value)
        syscall(SYS_futex, word, FUTEX_WAIT, value - 1, NULL, NULL, 0);
}

static void echo_asleep(struct bare *b)
{
    for (uint32_t i = 1;; i++) {
        sleep_until(&b->there, i);
        order_release(&b->back, i);
        wake(&b->back);
    }
}

static void trip_asleep(struct bare *b, uint32_t i)
{
    order_release(&b->there, i);
    wake(&b->there);
    sleep_until(&b->back, i);
}

static void echo_woken(struct bare *b)
{
    for (uint32_t i = 1;; i++) {
        sleep_until(&b->there, i);
        b->woken_ns = bench_now_ns();
        order_release(&b->back, i); /* the time before; pairs with trip_swept */
    }
}

static void read_all(const uint8_t *memory, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes; i += 64)
        sum += memory[i];
    __asm__ volatile("" ::"r"(sum));
}

static void trip_swept(struct bare *b, uint32_t i, double *call, double *back)
{
    uint64_t t0 = bench_now_ns();
    order_release(&b->there, i);
    wake(&b->there);
    *call = (double)(bench_now_ns() - t0) * 1e-3;
    do
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); /* by then it sleeps again */
    while (order_acquire(&b->back) != i);
    *back = (double)(b->woken_ns - t0) * 1e-3;
}

/* ---- sockets ---- */

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void send_whole(int fd, const void *data, size_t bytes)
{
    if (send(fd, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        give_up("send");
}

static void receive_whole(int fd, void *data, size_t bytes)
{
    if (recv(fd, data, bytes, MSG_WAITALL) != (ssize_t)bytes)
        give_up("recv");
}

static void echo_unix(struct bare *b)
{
    uint8_t entry[128];
    for (;;) {
        receive_whole(b->theirs, entry, sizeof entry);
        send_whole(b->theirs, entry, 64);
    }
}

static void trip_unix(struct bare *b, uint32_t i)
{
    uint8_t entry[128];
    memset(entry, (int)i, sizeof entry);
    send_whole(b->ours, entry, sizeof entry);
    receive_whole(b->ours, entry, 64);
}

static const char request[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                              "Content-Type: application/json\r\nContent-Length: 45\r\n\r\n"
                              "{\"model\":\"m\",\"prompt\":\"Hello\",\"max_tokens\":1}";
static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                             "Connection: keep-alive\r\nContent-Length: 39\r\n\r\n"
                             "{\"choices\":[{\"index\":0,\"text\":\" you\"}]}";

/* Reads a message by its headers, as any server has to. */
static void receive_http(int fd)
{
    char text[1024];
    size_t n = 0, whole = SIZE_MAX;
    while (n < whole) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0)
            give_up("recv");
        n += (size_t)got;
        text[n] = 0;
        const char *body = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
        if (body && length)
            whole = (size_t)(body + 4 - text) + strtoul(length + 16, NULL, 10);
    }
}

static void echo_http(struct bare *b)
{
    for (;;) {
        receive_http(b->theirs);
        send_whole(b->theirs, answer, sizeof answer - 1);
    }
}

static void trip_http(struct bare *b, uint32_t i)
{
    (void)i;
    send_whole(b->ours, request, sizeof request - 1);
    receive_http(b->ours);
}

static void connect_unix(struct bare *b)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0)
        give_up("socketpair");
    b->ours = pair[0];
    b->theirs = pair[1];
}

static void connect_tcp(struct bare *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int door = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    b->ours = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(door, (struct sockaddr *)&at, bytes) < 0 || listen(door, 1) < 0 ||
        getsockname(door, (struct sockaddr *)&at, &bytes) < 0 ||
        connect(b->ours, (struct sockaddr *)&at, bytes) < 0)
        give_up("loopback");
    b->theirs = accept(door, NULL, NULL);
    setsockopt(b->ours, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(b->theirs, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(door);
}

/* ---- measuring ---- */

/* A process of its own on the n-th CPU, or, with -1, on any. */
static pid_t start(struct bare *b, int cpu, void (*echo)(struct bare *))
{
    pid_t child = fork();
    if (child)
        return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (cpu >= 0)
        bare_pin(cpu);
    else
        bare_unpin();
    echo(b);
    _exit(1); /* none returns */
}

void bare_end(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static double p50(int trips, void (*prepare)(struct bare *), void (*echo)(struct bare *),
                  void (*trip)(struct bare *, uint32_t))
{
    struct bare *b =
        mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        give_up("mmap");
    b->ours = b->theirs = -1;
    if (prepare)
        prepare(b);
    pid_t child = start(b, 1, echo);
    bare_pin(0);
    trips = trips < TRIPS_MAX ? trips : (int)TRIPS_MAX;
    for (int i = 1; i <= trips + WARM; i++) {
        uint64_t t0 = bench_now_ns();
        trip(b, (uint32_t)i);
        if (i > WARM)
            samples[i - WARM - 1] = (double)(bench_now_ns() - t0) * 1e-3;
    }
    bare_end(child);
    if (b->ours >= 0)
        close(b->ours), close(b->theirs);
    munmap(b, sizeof *b);
    return bench_median(samples, trips);
}

static void spin(struct bare *b)
{
    (void)b;
    for (;;)
        pause_cpu();
}

pid_t bare_spin(int n)
{
    return start(NULL, n, spin);
}

struct bare_wake bare_wake_swept(int trips, size_t bytes, unsigned busy)
{
    enum { BUSY_MAX = 64, TRIPS = 2000 };
    static double call[TRIPS], back[TRIPS];
    pid_t spinners[BUSY_MAX];
    size_t whole = bytes + sizeof(struct bare);
    struct bare *b = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        give_up("mmap");
    memset(b + 1, 1, bytes);
    trips = trips < TRIPS ? trips : TRIPS;
    busy = busy < BUSY_MAX ? busy : BUSY_MAX;
    pid_t sleeper = start(b, -1, echo_woken);
    for (unsigned i = 1; i < busy; i++)
        spinners[i] = bare_spin((int)i);
    bare_pin(0);
    for (int i = 0; i < trips; i++) {
        read_all((const uint8_t *)(b + 1), bytes);
        trip_swept(b, (uint32_t)i + 1, &call[i], &back[i]);
    }
    bare_unpin();
    for (unsigned i = 1; i < busy; i++)
        bare_end(spinners[i]);
    bare_end(sleeper);
    munmap(b, whole);
    return (struct bare_wake){bench_median(call, trips), bench_median(back, trips)};
}

double bare_word(int trips)
{
    return p50(trips, NULL, echo_words, trip_word);
}

double bare_ring(int trips)
{
    return p50(trips, NULL, echo_entries, trip_entries);
}

double bare_futex(int trips)
{
    return p50(trips, NULL, echo_asleep, trip_asleep);
}

double bare_unix(int trips)
{
    return p50(trips, connect_unix, echo_unix, trip_unix);
}

double bare_http(int trips)
{
    return p50(trips, connect_tcp, echo_http, trip_http);
}
