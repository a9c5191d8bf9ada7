/* serve_process.c - see serve.h.
 *
 * Descriptors of processes (pidfd) wake the supervisor's poll and cannot come to mean another
 * process. PR_SET_PDEATHSIG is what remains when this program is killed and can do nothing more:
 * the engine drains then, and the gateway ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "serve.h"

static void *must(void *memory)
{
    if (!memory) {
        ctl_error("out of memory for the command lines");
        exit(1);
    }
    return memory;
}

void args_add(struct args *w, const char *format, ...)
{
    if (w->n + 2 > w->room) {
        w->room = w->room ? 2 * w->room : 32;
        w->w = must(realloc(w->w, w->room * sizeof *w->w));
    }
    va_list args;
    va_start(args, format);
    char *text;
    if (vasprintf(&text, format, args) < 0)
        text = NULL;
    va_end(args);
    w->w[w->n++] = must(text);
    w->w[w->n] = NULL;
}

void args_free(struct args *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->w[i]);
    free(w->w);
    *w = (struct args){0};
}

uint64_t serve_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* ---- the child's side ---- */

static void leave(const char *name, const char *what)
{
    dprintf(STDERR_FILENO, "llmctl: %s: %s: %s\n", name, what, strerror(errno));
    _exit(127);
}

static void try_beside_us(const char *name, char **argv)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0 || n == (ssize_t)sizeof path - 1)
        return;
    path[n] = 0;
    char *end = strrchr(path, '/') + 1;
    if (strlen(name) >= sizeof path - (size_t)(end - path))
        return;
    strcpy(end, name);
    execv(path, argv);
    if (errno != ENOENT)
        leave(path, "cannot be run");
}

__attribute__((noreturn)) static void become(const struct serve_process *p, int parent, char **argv)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent)
        _exit(127); /* our parent has ended already */
    setpgid(0, 0);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        leave(p->name, "cannot have its standard streams");
    if (p->keep_fd >= 0 && fcntl(p->keep_fd, F_SETFD, 0))
        leave(p->name, "cannot be handed its keys");
    try_beside_us(p->name, argv);
    execvp(p->name, argv);
    leave(p->name, "is neither beside llmctl nor in PATH, or cannot be run");
    __builtin_unreachable();
}

/* ---- ours ---- */

static int give_up(struct serve_process *p, const char *what)
{
    int error = errno;
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
    p->pid = 0;
    return ctl_error("%s cannot be started: %s: %s", p->name, what, strerror(error));
}

int serve_process_start(struct serve_process *p)
{
    char **argv = must(calloc(p->arguments->n + 2, sizeof *argv));
    argv[0] = (char *)p->name;
    if (p->arguments->n)
        memcpy(argv + 1, p->arguments->w, p->arguments->n * sizeof *argv);
    int parent = getpid();
    p->started_ms = serve_now_ms();
    p->pid = fork();
    if (!p->pid)
        become(p, parent, argv);
    free(argv);
    if (p->pid < 0)
        return give_up(p, "fork");
    p->fd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    return p->fd < 0 ? give_up(p, "pidfd_open") : 0;
}

void serve_process_signal(const struct serve_process *p, int number)
{
    if (p->pid)
        syscall(SYS_pidfd_send_signal, p->fd, number, NULL, 0);
}

bool serve_process_ended(struct serve_process *p, int *status)
{
    int how;
    if (!p->pid || waitpid(p->pid, &how, WNOHANG) != p->pid)
        return false;
    *status = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
    close(p->fd);
    p->pid = 0;
    p->fd = -1;
    return true;
}
