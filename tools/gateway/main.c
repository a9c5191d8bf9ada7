/* main.c - llm-gateway: beginning, waiting for signals, end.
 *
 *   instances -> listeners -> signals ... -> no new connections -> running calls end, or are cancelled
 *             -> instances -> listeners
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "options.h"
#include "server.h"

static struct server *servers[GATEWAY_LISTENERS_MAX];
static unsigned n_servers;

/* A whole file with NUL behind it; NULL after a message. */
static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = NULL;
    size_t room = 0;
    ssize_t n = f ? getdelim(&text, &room, 0, f) : -1;
    if (n <= 0) {
        fprintf(stderr, "llm-gateway: cannot read %s: %s\n", path,
                f && !ferror(f) ? "it is empty" : strerror(errno));
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    return text;
}

/* Descriptors for all connections, and some that these cannot take: with none left for its board an
 * engine would seem to be gone. */
static int make_room(struct gateway *g, const struct options *o)
{
    struct rlimit limit;
    rlim_t own = 64 + 16 * o->n_instances + o->n_listen * (8 + 4 * (rlim_t)o->threads),
           want = own + o->n_listen * (rlim_t)o->max_connections;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
        return 0;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= want)
        return 0;
    rlim_t left = limit.rlim_cur > own ? (limit.rlim_cur - own) / o->n_listen : 0;
    if (left < OPTIONS_CONNECTIONS_MIN) {
        fprintf(stderr,
                "llm-gateway: this process may open %llu files (ulimit -n): at least %llu are "
                "needed\n",
                (unsigned long long)limit.rlim_cur,
                (unsigned long long)(own + o->n_listen * OPTIONS_CONNECTIONS_MIN));
        return -1;
    }
    g->max_connections = (uint32_t)left;
    fprintf(stderr,
            "llm-gateway: at most %u connections at the same time: this process may open %llu "
            "files (ulimit -n), %u connections need %llu\n",
            g->max_connections, (unsigned long long)limit.rlim_cur, o->max_connections,
            (unsigned long long)want);
    return 0;
}

static int prepare(struct gateway *g, const struct options *o)
{
    g->threads = o->threads;
    g->max_body_bytes = o->body_bytes;
    g->max_answer_bytes = o->answer_bytes;
    g->header_bytes = o->header_bytes;
    g->max_connections = o->max_connections;
    g->idle_timeout_s = o->idle_timeout_s;
    g->read_timeout_s = o->read_timeout_s;
    g->started = (int64_t)time(NULL);
    if (make_room(g, o))
        return -1;
    if (o->keys_file && !(g->keys = keys_load(o->keys_file)))
        return -1;
    if (o->tls_cert_file && (!(g->tls_cert = read_file(o->tls_cert_file)) ||
                             !(g->tls_key = read_file(o->tls_key_file))))
        return -1;
    return 0;
}

static int start(struct gateway *g, const struct options *o)
{
    for (unsigned i = 0; i < o->n_instances; i++) {
        int rc = instance_start(&g->instances[i], o->instances[i], o->resume_timeout_s * 1000);
        if (rc) {
            fprintf(stderr, "llm-gateway: instance \"%s\" cannot be started: %s\n", o->instances[i],
                    strerror(-rc));
            return rc;
        }
        g->n_instances++;
    }
    for (unsigned i = 0; i < o->n_listen; i++) {
        int rc = server_start(&servers[n_servers], g, o->listen[i]);
        if (rc)
            return rc;
        n_servers++;
    }
    for (unsigned i = 0; i < n_servers; i++)
        printf("llm-gateway ready: listens on %s\n", server_address(servers[i]));
    fflush(stdout);
    return 0;
}

/* Waits so long for one of the signals; true: it came. */
static bool wait_signal(const sigset_t *signals, long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    return sigtimedwait(signals, NULL, &t) > 0;
}

static void look(void)
{
    for (unsigned i = 0; i < n_servers; i++)
        server_look(servers[i]);
}

/* Requests that are being answered, or were sent before their clients could know better. */
static bool owes_answers(struct gateway *g)
{
    bool owes = atomic_load(&g->exchanges);
    for (unsigned i = 0; i < n_servers && !owes; i++)
        owes = server_unread(servers[i]);
    return owes || atomic_load(&g->exchanges);
}

/* Until every answer has been sent, or so long. A signal ends the waiting. */
static void wait_for_answers(struct gateway *g, uint32_t seconds, const sigset_t *signals)
{
    uint64_t until = gateway_now_ns() + seconds * 1000000000ull;
    while (owes_answers(g) && gateway_now_ns() < until && !wait_signal(signals, 10))
        ;
}

static void drain(struct gateway *g, const struct options *o, const sigset_t *signals)
{
    atomic_store(&g->draining, true);
    for (unsigned i = 0; i < n_servers; i++)
        server_quiesce(servers[i]);
    for (unsigned i = 0; i < g->n_instances; i++)
        instance_drain(g->instances[i]);
    wait_for_answers(g, o->drain_timeout_s, signals);
}

/* What still runs is told so before its connection ends. */
static void stop(struct gateway *g, const sigset_t *signals)
{
    for (unsigned i = 0; i < g->n_instances; i++)
        instance_stop(g->instances[i]);
    wait_for_answers(g, 1, signals);
    for (unsigned i = 0; i < n_servers; i++)
        server_stop(servers[i]);
    for (unsigned i = 0; i < g->n_instances; i++)
        instance_free(g->instances[i]);
}

static void run(struct gateway *g, const struct options *o, const sigset_t *signals)
{
    while (!wait_signal(signals, 1000))
        look();
    drain(g, o, signals);
}

int main(int argc, char **argv)
{
    static struct gateway g;
    struct options o;
    sigset_t signals;
    int rc = options_read(&o, argc, argv);
    if (rc)
        return rc == 1 ? 0 : rc;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* before there are threads */
    signal(SIGPIPE, SIG_IGN);
    rc = prepare(&g, &o) || start(&g, &o) ? 1 : 0;
    if (!rc)
        run(&g, &o, &signals);
    stop(&g, &signals);
    keys_free(g.keys);
    free((char *)g.tls_cert);
    if (g.tls_key)
        explicit_bzero((char *)g.tls_key, strlen(g.tls_key));
    free((char *)g.tls_key);
    return rc;
}
