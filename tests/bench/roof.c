/* roof.c - see roof.h. */
#include "roof.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum {
    READ_BYTES = 256 << 20,
    DOT_ROUNDS = 1000000,
    DOT_LANES = 6,
    FMA_LANES = 12,
    MAX_THREADS = 64
};

static uint8_t *memory;
static pthread_barrier_t start_line;

struct share {
    unsigned thread, threads;
    double seconds;
};

uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_quantile(double *sorted, int n, double q)
{
    int rank = (int)ceil(q * n);
    return sorted[rank > 0 ? rank - 1 : 0];
}

double bench_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, bench_by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read_share(const uint8_t *from, size_t bytes)
{
    const __m256i *p = (const __m256i *)(const void *)from, *end = p + bytes / 32;
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
                    _mm256_setzero_si256()};
    for (; p < end; p += 8)
        for (int i = 0; i < 4; i++)
            s[i] = _mm256_add_epi64(s[i], _mm256_add_epi64(p[i], p[i + 4]));
    __asm__ volatile("" ::"x"(s[0]), "x"(s[1]), "x"(s[2]), "x"(s[3]));
}

__attribute__((target("avx2"))) static void dot_share(void)
{
    __m256i one = _mm256_set1_epi16(1), w = _mm256_set1_epi8(3), u = _mm256_set1_epi8(5),
            a[DOT_LANES];
    for (int i = 0; i < DOT_LANES; i++)
        a[i] = _mm256_setzero_si256();
    for (long r = 0; r < DOT_ROUNDS; r++)
#pragma GCC unroll 6
        for (int i = 0; i < DOT_LANES; i++) {
            __asm__ volatile("" : "+x"(u)); /* so that no product is taken out of the loop */
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(u, w), one));
            __asm__ volatile("" : "+x"(a[i]));
        }
}

/* twelve chains: each instruction waits four cycles for the one before it, two start in a cycle */
__attribute__((target("avx2,fma"))) static void fma_share(void)
{
    __m256 w = _mm256_set1_ps(0.5f), x = _mm256_set1_ps(1.0f), a = x, b = x, c = x, d = x, e = x,
           f = x, g = x, h = x, i = x, j = x, k = x, l = x;
    /* not to be taken for one and the same */
    __asm__("" : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f));
    __asm__("" : "+x"(g), "+x"(h), "+x"(i), "+x"(j), "+x"(k), "+x"(l));
    for (long r = 0; r < DOT_ROUNDS; r++) {
        a = _mm256_fmadd_ps(a, w, x), b = _mm256_fmadd_ps(b, w, x), c = _mm256_fmadd_ps(c, w, x);
        d = _mm256_fmadd_ps(d, w, x), e = _mm256_fmadd_ps(e, w, x), f = _mm256_fmadd_ps(f, w, x);
        g = _mm256_fmadd_ps(g, w, x), h = _mm256_fmadd_ps(h, w, x), i = _mm256_fmadd_ps(i, w, x);
        j = _mm256_fmadd_ps(j, w, x), k = _mm256_fmadd_ps(k, w, x), l = _mm256_fmadd_ps(l, w, x);
    }
    __asm__ volatile("" ::"x"(a), "x"(b), "x"(c), "x"(d), "x"(e), "x"(f), "x"(g), "x"(h), "x"(i),
                     "x"(j), "x"(k), "x"(l));
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
static void read_share(const uint8_t *from, size_t bytes)
{
    uint64_t s = 0;
    for (size_t i = 0; i < bytes; i += 8)
        s += *(const uint64_t *)(const void *)(from + i);
    __asm__ volatile("" ::"r"(s));
}
static void dot_share(void) {}
static void fma_share(void) {}
static bool have_avx2(void)
{
    return false;
}
#endif

static void *read_thread(void *argument)
{
    struct share *s = argument;
    size_t part = READ_BYTES / s->threads / 4096 * 4096;
    pthread_barrier_wait(&start_line);
    uint64_t t0 = bench_now_ns();
    read_share(memory + part * s->thread, part);
    s->seconds = (double)(bench_now_ns() - t0) * 1e-9;
    return NULL;
}

static void *dot_thread(void *argument)
{
    struct share *s = argument;
    pthread_barrier_wait(&start_line);
    uint64_t t0 = bench_now_ns();
    dot_share();
    s->seconds = (double)(bench_now_ns() - t0) * 1e-9;
    return NULL;
}

static void *fma_thread(void *argument)
{
    struct share *s = argument;
    pthread_barrier_wait(&start_line);
    uint64_t t0 = bench_now_ns();
    fma_share();
    s->seconds = (double)(bench_now_ns() - t0) * 1e-9;
    return NULL;
}

/* Runs the job on every CPU; returns the threads' number and the longest time. */
static unsigned run(void *(*job)(void *), double *seconds)
{
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    unsigned n = (unsigned)CPU_COUNT(&set);
    n = n > MAX_THREADS ? MAX_THREADS : n;
    pthread_t threads[MAX_THREADS];
    struct share shares[MAX_THREADS];
    pthread_barrier_init(&start_line, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        shares[i] = (struct share){i, n, 0};
        if (pthread_create(&threads[i], NULL, job, &shares[i])) {
            fprintf(stderr, "bench: cannot start a thread\n");
            exit(1);
        }
    }
    *seconds = 0;
    for (unsigned i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        *seconds = shares[i].seconds > *seconds ? shares[i].seconds : *seconds;
    }
    pthread_barrier_destroy(&start_line);
    return n;
}

double roof_read_bytes_per_s(void)
{
    if (!memory) {
        memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            perror("bench: 256 MiB");
            exit(1);
        }
        madvise(memory, READ_BYTES, MADV_HUGEPAGE);
        for (size_t i = 0; i < READ_BYTES; i++)
            memory[i] = (uint8_t)i;
    }
    double seconds;
    run(read_thread, &seconds);
    return READ_BYTES / seconds;
}

double roof_int8_ops_per_s(void)
{
    if (!have_avx2())
        return 0;
    double seconds;
    unsigned n = run(dot_thread, &seconds);
    return (double)n * DOT_ROUNDS * DOT_LANES * 64 /
           seconds; /* 32 products and 32 additions an instruction */
}

double roof_f32_ops_per_s(void)
{
    if (!have_avx2())
        return 0;
    double seconds;
    unsigned n = run(fma_thread, &seconds);
    return (double)n * DOT_ROUNDS * FMA_LANES * 16 / seconds;
}
