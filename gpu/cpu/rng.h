/* rng.h - the counter generator of the draws: a number is a function of (seed, position, choice).
 *
 * Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011. Key: the seed, low word first. Counter: position, choice, 0, 0. No state: a sequence
 * that is preempted, resumed or moved draws what it would have drawn.
 */
#ifndef LLMD_CPU_RNG_H
#define LLMD_CPU_RNG_H

#include <stdint.h>

struct rng_block {
    uint32_t word[4];
};

static inline struct rng_block rng_philox(struct rng_block counter, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t *c = counter.word;
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u; /* golden ratio */
        k1 += 0xbb67ae85u; /* sqrt(3) - 1 */
    }
    return counter;
}

/* Uniform in [0, 1), a multiple of 2^-53: fine enough for the rarest token. */
static inline double rng_uniform(uint64_t seed, uint32_t position, uint32_t choice)
{
    struct rng_block r = rng_philox((struct rng_block){{position, choice, 0, 0}}, seed);
    uint64_t bits = (uint64_t)r.word[1] << 32 | r.word[0];
    return (double)(bits >> 11) * 0x1p-53;
}

#endif
