/* seeds.c - random seeds: one key from the kernel for each handle, then a counter through a mixing
 * function, so that no request makes a system call.
 *
 * The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
 * Generators, 2014), applied twice with a key before each. Seeds need to differ, not to be secret.
 */
#include <errno.h>
#include <sys/random.h>

#include "handle.h"

int seeds_init(struct seeds *s)
{
    ssize_t n;
    do
        n = getrandom(s->key, sizeof s->key, 0);
    while (n < 0 && errno == EINTR);
    s->counter = 0;
    return n == (ssize_t)sizeof s->key ? 0 : n < 0 ? -errno : -EIO;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

uint64_t seeds_next(struct seeds *s)
{
    uint64_t x = s->key[0] + ++s->counter * 0x9E3779B97F4A7C15ull;
    return mix(mix(x) ^ s->key[1]);
}
