/* random.h - the simulator's random numbers: the same ones for the same seed, everywhere. */
#ifndef LLMD_TESTS_SIM_RANDOM_H
#define LLMD_TESTS_SIM_RANDOM_H

#include <math.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

/* A well mixed number of x. */
static inline uint64_t random_mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u;
    x ^= x >> 29;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static inline uint64_t random_next(struct random *r)
{
    r->state += 0x9e3779b97f4a7c15u;
    return random_mix(r->state);
}

static inline uint32_t random_below(struct random *r, uint32_t n)
{
    return (uint32_t)((random_next(r) >> 32) * n >> 32);
}

/* (0, 1] */
static inline double random_unit(struct random *r)
{
    return (double)((random_next(r) >> 11) + 1) * 0x1p-53;
}

static inline double random_exponential(struct random *r, double mean)
{
    return -mean * log(random_unit(r));
}

#endif
