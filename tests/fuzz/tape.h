/* tape.h - what the fuzzers of the rings share: the input read as a sequence of commands, and pages
 * of exactly the size that was asked for, so that ASan sees every access behind their end. */
#ifndef LLMD_TESTS_FUZZ_TAPE_H
#define LLMD_TESTS_FUZZ_TAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not assert(): a broken promise ends the run, whatever NDEBUG says. */
#define DEMAND(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct tape {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t tape_u8(struct tape *t)
{
    if (!t->left)
        return 0;
    t->left--;
    return *t->at++;
}

static inline uint16_t tape_u16(struct tape *t)
{
    uint16_t low = tape_u8(t);
    return (uint16_t)(low | tape_u8(t) << 8);
}

static inline uint32_t tape_u32(struct tape *t)
{
    uint32_t low = tape_u16(t);
    return low | (uint32_t)tape_u16(t) << 16;
}

/* Zeroed, page-aligned, no byte longer than asked for. */
static inline void *exact_pages(uint64_t bytes)
{
    void *p;
    DEMAND(!posix_memalign(&p, 4096, (size_t)bytes));
    return memset(p, 0, (size_t)bytes);
}

#endif
