/* server.c - see server.h. */
#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "roof.h"

enum { READY_TRIES = 600, READY_PAUSE_NS = 100000000, HEALTH_S = 10, POST_S = 300 };

int server_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, bytes) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &bytes) < 0)
        bench_die("no port of loopback is free");
    close(fd);
    return ntohs(at.sin_port);
}

pid_t server_spawn(const char *const argv[])
{
    pid_t bench = getpid(), pid = fork();
    if (pid < 0)
        bench_die("no process for %s", argv[0]);
    if (pid)
        return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != bench)
        _exit(125);
    int null = open("/dev/null", O_RDWR);
    dup2(null, 1);
    dup2(null, 2);
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

void server_end(pid_t pid)
{
    if (pid <= 0)
        return;
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

int server_connect(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof at) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* Sends a request that closes the connection, reads to its end. The HTTP status, or -1. */
static int ask(int port, const char *request, size_t bytes, int seconds, char *answer, size_t size)
{
    struct timeval limit = {.tv_sec = seconds};
    size_t used = 0;
    int fd = server_connect(port);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (send(fd, request, bytes, MSG_NOSIGNAL) == (ssize_t)bytes)
        for (ssize_t got;
             used + 1 < size && (got = recv(fd, answer + used, size - 1 - used, 0)) > 0;)
            used += (size_t)got;
    close(fd);
    answer[used] = 0;
    return used > 12 && !strncmp(answer, "HTTP/1.", 7) ? atoi(answer + 9) : -1;
}

int server_post(int port, const char *path, const char *body, char *answer, size_t size)
{
    size_t room = strlen(path) + strlen(body) + 256;
    char *request = malloc(room);
    if (!request)
        return -1;
    int n = snprintf(request, room,
                     "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     path, strlen(body), body);
    int status = ask(port, request, (size_t)n, POST_S, answer, size);
    free(request);
    return status;
}

bool server_ready(pid_t pid, int port)
{
    static const char health[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    for (int i = 0; i < READY_TRIES; i++) {
        char answer[1024];
        siginfo_t info = {0};
        if (ask(port, health, sizeof health - 1, HEALTH_S, answer, sizeof answer) == 200)
            return true;
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid)
            return false;
        nanosleep(&(struct timespec){0, READY_PAUSE_NS}, NULL);
    }
    return false;
}
