/* server.c - see server.h. */
#include "server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "http.h"

enum { BACKLOG = 511 };

/* One connection. Reading until its request is whole, then answering, then reading again. */
struct connection {
    struct server *server;
    struct connection *next, *before;
    int socket;
    uint64_t deadline_ns; /* 0: it is being answered */
};

struct server {
    struct gateway *gateway;
    struct MHD_Daemon *daemon;
    int socket;
    char address[160], path[108];
    pthread_mutex_t lock; /* of the list */
    struct connection *connections;
};

static int say(const char *listen, const char *what, int error)
{
    fprintf(stderr, "llm-gateway: cannot listen on %s: %s: %s\n", listen, what, strerror(error));
    return -error;
}

/* ---- connections ---- */

static void set_deadline(struct connection *c, uint64_t seconds)
{
    pthread_mutex_lock(&c->server->lock);
    c->deadline_ns = seconds ? gateway_now_ns() + seconds * 1000000000u : 0;
    pthread_mutex_unlock(&c->server->lock);
}

void connection_received(struct connection *c)
{
    if (c)
        set_deadline(c, 0);
}

void connection_answered(struct connection *c)
{
    if (c)
        set_deadline(c, (uint64_t)c->server->gateway->idle_timeout_s +
                            c->server->gateway->read_timeout_s);
}

static void add_connection(struct server *s, struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *c = info ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return;
    c->server = s;
    c->socket = info->connect_fd;
    c->deadline_ns = gateway_now_ns() + s->gateway->read_timeout_s * 1000000000ull;
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    if (c->next)
        c->next->before = c;
    s->connections = c;
    pthread_mutex_unlock(&s->lock);
    *context = c;
}

static void remove_connection(struct server *s, struct connection *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&s->lock);
    *(c->before ? &c->before->next : &s->connections) = c->next;
    if (c->next)
        c->next->before = c->before;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

/* libmicrohttpd closes the socket only after it has said CLOSED. */
static void notice_connection(void *context, struct MHD_Connection *connection, void **of_socket,
                              enum MHD_ConnectionNotificationCode what)
{
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        add_connection(context, connection, of_socket);
    else
        remove_connection(context, *of_socket);
}

void server_look(struct server *s)
{
    uint64_t now = gateway_now_ns();
    pthread_mutex_lock(&s->lock);
    for (struct connection *c = s->connections; c; c = c->next)
        if (c->deadline_ns && now > c->deadline_ns)
            shutdown(c->socket, SHUT_RDWR);
    pthread_mutex_unlock(&s->lock);
}

bool server_unread(struct server *s)
{
    bool unread = false;
    pthread_mutex_lock(&s->lock);
    for (struct connection *c = s->connections; c && !unread; c = c->next) {
        int bytes = 0;
        unread = c->deadline_ns && !ioctl(c->socket, FIONREAD, &bytes) && bytes > 0;
    }
    pthread_mutex_unlock(&s->lock);
    return unread;
}

/* ---- sockets ---- */

static int listen_unix(struct server *s, const char *listen_text, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    assert(strlen(path) < sizeof a.sun_path); /* server_address_ok */
    strcpy(a.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return say(listen_text, "socket", errno);
    /* one that a dead gateway left behind; never anything else */
    if (!lstat(path, &st) && S_ISSOCK(st.st_mode) &&
        connect(fd, (struct sockaddr *)&a, sizeof a) < 0 && errno == ECONNREFUSED)
        unlink(path);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0 || listen(fd, BACKLOG) < 0) {
        int error = errno;
        close(fd);
        return say(listen_text, "bind", error);
    }
    strcpy(s->path, path);
    snprintf(s->address, sizeof s->address, "unix:%s", path);
    s->socket = fd;
    return 0;
}

static const char *unix_path(const char *listen_text)
{
    return strncmp(listen_text, "unix:", 5) ? NULL : listen_text + 5;
}

/* 0 to 65535. */
static bool is_port(const char *text)
{
    size_t n = strlen(text);
    return n && n < 8 && strspn(text, "0123456789") == n && strtoul(text, NULL, 10) <= UINT16_MAX;
}

/* "HOST:PORT", "[HOST]:PORT" or ":PORT" in two. */
static int split(const char *text, char host[64], char port[8])
{
    const char *colon = strrchr(text, ':');
    bool v6 = text[0] == '[';
    if (!colon || (v6 && (colon == text || colon[-1] != ']')))
        return -1;
    size_t n = (size_t)(colon - text) - (v6 ? 2 : 0);
    if (n >= 64 || !is_port(colon + 1))
        return -1;
    memcpy(host, text + v6, n);
    host[n] = 0;
    strcpy(port, colon + 1);
    return 0;
}

bool server_address_ok(const char *listen_text)
{
    char host[64], port[8];
    const char *path = unix_path(listen_text);
    if (!path)
        return !split(listen_text, host, port);
    return *path && strlen(path) < sizeof((struct sockaddr_un *)0)->sun_path;
}

static int bind_address(const struct addrinfo *a)
{
    int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG))
        return fd;
    int error = errno;
    close(fd);
    return -error;
}

static void name_address(struct server *s)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[64] = "?", port[8] = "?";
    if (!getsockname(s->socket, (struct sockaddr *)&a, &n))
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool v6 = strchr(host, ':') != NULL;
    snprintf(s->address, sizeof s->address, "%s://%s%s%s:%s",
             s->gateway->tls_cert ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

static int listen_tcp(struct server *s, const char *listen_text)
{
    char host[64], port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found;
    if (split(listen_text, host, port))
        return -EINVAL; /* never, after server_address_ok */
    int rc = getaddrinfo(*host ? host : NULL, port, &hints, &found);
    if (rc) {
        fprintf(stderr, "llm-gateway: cannot listen on %s: %s\n", listen_text, gai_strerror(rc));
        return -EINVAL;
    }
    s->socket = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = found; a && s->socket < 0; a = a->ai_next)
        s->socket = bind_address(a);
    freeaddrinfo(found);
    if (s->socket < 0)
        return say(listen_text, "bind", -s->socket);
    name_address(s);
    return 0;
}

/* ---- libmicrohttpd ---- */

static void log_nothing(void *context, const char *format, va_list args)
{
    /* what it has to say is about single clients: that they hung up, sent no HTTP, ... */
    (void)context, (void)format, (void)args;
}

static int start_daemon(struct server *s)
{
    struct gateway *g = s->gateway;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (g->tls_cert ? MHD_USE_TLS : 0);
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)g->tls_cert},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)g->tls_key},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, http_request, g, MHD_OPTION_EXTERNAL_LOGGER, log_nothing, NULL,
        MHD_OPTION_LISTEN_SOCKET, s->socket, MHD_OPTION_THREAD_POOL_SIZE, (unsigned)g->threads,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)g->max_connections,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)g->header_bytes, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)g->idle_timeout_s, MHD_OPTION_NOTIFY_COMPLETED, http_completed, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, notice_connection, s, MHD_OPTION_ARRAY,
        g->tls_cert ? tls : none, MHD_OPTION_END);
    return s->daemon ? 0 : -1;
}

int server_start(struct server **out, struct gateway *g, const char *listen_text)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->gateway = g;
    s->socket = -1;
    pthread_mutex_init(&s->lock, NULL);
    const char *path = unix_path(listen_text);
    int rc = path ? listen_unix(s, listen_text, path) : listen_tcp(s, listen_text);
    if (!rc && start_daemon(s)) {
        fprintf(stderr, "llm-gateway: the HTTP server cannot start on %s%s\n", listen_text,
                g->tls_cert ? ": are certificate and key right?" : "");
        rc = -EINVAL;
    }
    *out = s;
    if (rc)
        server_stop(s);
    return rc;
}

const char *server_address(const struct server *s)
{
    return s->address;
}

void server_quiesce(struct server *s)
{
    int fd = MHD_quiesce_daemon(s->daemon);
    if (fd >= 0)
        close(fd);
    s->socket = -1;
    if (s->path[0])
        unlink(s->path);
    s->path[0] = 0;
}

void server_stop(struct server *s)
{
    if (s->daemon)
        MHD_stop_daemon(s->daemon); /* closes the socket, if it still listens */
    else if (s->socket >= 0)
        close(s->socket);
    if (s->path[0])
        unlink(s->path);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
