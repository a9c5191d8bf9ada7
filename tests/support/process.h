/* process.h - what a running engine holds, as the kernel counts it. */
#ifndef LLMD_TESTS_PROCESS_H
#define LLMD_TESTS_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

struct held {
    uint32_t descriptors, maps, threads;
    uint64_t rss_kib;
    uint64_t sleeps; /* voluntary context switches of all its threads, so far */
};

/* Fails the test if the process is not there. */
struct held process_held(pid_t pid);

#endif
