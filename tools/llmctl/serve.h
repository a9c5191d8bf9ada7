/* serve.h - what `serve` is told, and the two processes that it keeps. */
#ifndef LLMCTL_SERVE_H
#define LLMCTL_SERVE_H

#include "llmctl.h"

/* A list of strings that is NULL-terminated at any time, as execv takes it. */
struct args {
    char **w; /* malloc'ed, and so is each */
    size_t n, room;
};

/* Ends the program after a message where memory runs out. */
__attribute__((format(printf, 2, 3))) void args_add(struct args *w, const char *format, ...);
void args_free(struct args *w);

/* ---- serve_options.c: vLLM's flags and llmd's, made into two command lines ---- */

struct serve_options {
    const char *model; /* NULL: --config names it */
    const char *host;  /* "127.0.0.1" */
    uint64_t port;     /* 8000 */
    bool config, help;
    double drain_s;          /* 5 */
    uint64_t restarts;       /* 5: in a row */
    struct args keys;        /* of --api-key */
    struct args engine;      /* llmd's arguments, without its name */
    struct args gateway;     /* llm-gateway's */
    const char *instance;    /* as ctl_instance */
    const char *certificate; /* with it the address begins with https */
};

/* 0, or 2 after a message: no flag is ignored. The strings of argv outlive it. */
int serve_options_parse(struct serve_options *o, int argc, char **argv);
void serve_options_free(struct serve_options *o);
void serve_options_help(void);

/* ---- serve_process.c: one process ---- */

/*   idle --serve_process_start--> running --(it ends)--> ended, see serve_process_ended */
struct serve_process {
    const char *name; /* of the program */
    const struct args *arguments;
    int keep_fd; /* >= 0: stays open in it; -1: none */
    int pid;     /* 0: does not run */
    int fd;      /* its pidfd: readable once it has ended; -1 */
    uint64_t started_ms;
    unsigned failures; /* ends in a row that nobody asked for */
};

/* The program lies beside this one, else in PATH. It gets SIGTERM when this process ends, however
 * that happens; no signal of the terminal reaches it; its standard output is our standard error.
 * 0, or 1 after a message. */
int serve_process_start(struct serve_process *p);
void serve_process_signal(const struct serve_process *p, int number);
/* Takes its exit status if it has ended: true once for each start. *status is as the shell has it:
 * 128 and more, a signal. */
bool serve_process_ended(struct serve_process *p, int *status);
uint64_t serve_now_ms(void);

#endif
