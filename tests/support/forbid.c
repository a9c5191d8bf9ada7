/* forbid.c - see forbid.h. Sources: seccomp(2), bpf of <linux/filter.h>; struct seccomp_data. */
#include "forbid.h"

#include "support.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOAD(field)         BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field)
#define UNLESS(value, skip) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(value), 0, skip)
#define RETURN(what)        BPF_STMT(BPF_RET | BPF_K, what)

static void install(struct sock_filter *code, unsigned short n)
{
    struct sock_fprog program = {.len = n, .filter = code};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

void forbid_call(long call, int error)
{
    struct sock_filter code[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        UNLESS(call, 1),
        RETURN(SECCOMP_RET_ERRNO | (uint32_t)error),
        RETURN(SECCOMP_RET_ALLOW),
    };
    install(code, sizeof code / sizeof *code);
}

/* The low half of an argument comes first: little endian. */
void forbid_call_with(long call, unsigned argument, uint32_t value, int error)
{
    struct sock_filter code[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        UNLESS(call, 3),
        LOAD((uint32_t)(offsetof(struct seccomp_data, args) + 8 * argument)),
        UNLESS(value, 1),
        RETURN(SECCOMP_RET_ERRNO | (uint32_t)error),
        RETURN(SECCOMP_RET_ALLOW),
    };
    install(code, sizeof code / sizeof *code);
}

void forbid_io_uring(void)
{
    forbid_call(SYS_io_uring_setup, EPERM);
    assert_int_equal(syscall(SYS_io_uring_setup, 1, NULL), -1);
    assert_int_equal(errno, EPERM);
}

void forbid_futex_waitv(void)
{
    forbid_call(SYS_futex_waitv, EPERM);
    assert_int_equal(syscall(SYS_futex_waitv, NULL, 0, 0, NULL, 0), -1);
    assert_int_equal(errno, EPERM);
}

void forbid_io_uring_futexes(void)
{
    forbid_call_with(SYS_io_uring_register, 1, IORING_REGISTER_PROBE, EINVAL);
}

/* The C library takes clone where there is no clone3, and its flags can be seen. */
void forbid_threads(void)
{
    struct sock_filter code[] = {
        LOAD(offsetof(struct seccomp_data, nr)),
        UNLESS(SYS_clone, 3),
        LOAD(offsetof(struct seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
        RETURN(SECCOMP_RET_ERRNO | EAGAIN),
        RETURN(SECCOMP_RET_ALLOW),
    };
    forbid_call(SYS_clone3, ENOSYS);
    install(code, sizeof code / sizeof *code);
}

pid_t start_a_process(int (*run)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        exit(run());
    return pid;
}

int end_of_process(pid_t pid)
{
    int status;
    if (pid < 0)
        return 255;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 255;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int in_a_process(int (*run)(void))
{
    return end_of_process(start_a_process(run));
}
