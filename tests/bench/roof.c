/* roof.c - see roof.h. */
#include "roof.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
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
    MAX_THREADS = 64,
    PASSES = 5
};

static uint8_t *memory;
static pthread_barrier_t start_line;

struct share {
    unsigned thread, threads;
    double seconds;
};

void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

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

/* as many chains, of one instruction each: AVX-512's dot products of four bytes */
__attribute__((target("avx512f,avx512vnni"))) static void vnni_share(void)
{
    __m512i u = _mm512_set1_epi8(5), w = _mm512_set1_epi8(3), a = u, b = u, c = u, d = u, e = u,
            f = u, g = u, h = u, i = u, j = u, k = u, l = u;
    __asm__("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));
    __asm__("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));
    for (long r = 0; r < DOT_ROUNDS; r++) {
        a = _mm512_dpbusd_epi32(a, u, w), b = _mm512_dpbusd_epi32(b, u, w);
        c = _mm512_dpbusd_epi32(c, u, w), d = _mm512_dpbusd_epi32(d, u, w);
        e = _mm512_dpbusd_epi32(e, u, w), f = _mm512_dpbusd_epi32(f, u, w);
        g = _mm512_dpbusd_epi32(g, u, w), h = _mm512_dpbusd_epi32(h, u, w);
        i = _mm512_dpbusd_epi32(i, u, w), j = _mm512_dpbusd_epi32(j, u, w);
        k = _mm512_dpbusd_epi32(k, u, w), l = _mm512_dpbusd_epi32(l, u, w);
    }
    __asm__ volatile("" ::"v"(a), "v"(b), "v"(c), "v"(d), "v"(e), "v"(f), "v"(g), "v"(h), "v"(i),
                     "v"(j), "v"(k), "v"(l));
}

/* what the backend asks for, too */
static bool have_vnni(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

bool roof_has_avx2(void)
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
static void vnni_share(void) {}
static bool have_vnni(void)
{
    return false;
}
bool roof_has_avx2(void)
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

static void *vnni_thread(void *argument)
{
    struct share *s = argument;
    pthread_barrier_wait(&start_line);
    uint64_t t0 = bench_now_ns();
    vnni_share();
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

unsigned roof_threads(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    unsigned n = (unsigned)CPU_COUNT(&set);
    return n > MAX_THREADS ? MAX_THREADS : n;
}

/* Runs the job on every CPU; the longest time. */
static double run_once(void *(*job)(void *))
{
    unsigned n = roof_threads();
    pthread_t threads[MAX_THREADS];
    struct share shares[MAX_THREADS];
    pthread_barrier_init(&start_line, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        shares[i] = (struct share){i, n, 0};
        if (pthread_create(&threads[i], NULL, job, &shares[i]))
            bench_die("cannot start a thread");
    }
    double seconds = 0;
    for (unsigned i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        seconds = fmax(seconds, shares[i].seconds);
    }
    pthread_barrier_destroy(&start_line);
    return seconds;
}

static double run(void *(*job)(void *))
{
    double best = run_once(job);
    for (int i = 1; i < PASSES; i++)
        best = fmin(best, run_once(job));
    return best;
}

double roof_read_bytes_per_s(void)
{
    if (!memory) {
        memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            bench_die("no memory for a buffer of 256 MiB");
        madvise(memory, READ_BYTES, MADV_HUGEPAGE);
        for (size_t i = 0; i < READ_BYTES; i++)
            memory[i] = (uint8_t)i;
    }
    return READ_BYTES / run(read_thread);
}

const char *roof_int8_name(bool only_avx2)
{
    return !only_avx2 && have_vnni() ? "AVX-512 VNNI" : "AVX2";
}

/* An instruction, or three of AVX2, multiplies and adds every byte of a vector. */
double roof_int8_ops_per_s(bool only_avx2)
{
    double rounds = (double)roof_threads() * DOT_ROUNDS;
    if (!roof_has_avx2())
        return 0;
    return !only_avx2 && have_vnni() ? rounds * FMA_LANES * 2 * 64 / run(vnni_thread)
                                     : rounds * DOT_LANES * 2 * 32 / run(dot_thread);
}

double roof_f32_ops_per_s(void)
{
    if (!roof_has_avx2())
        return 0;
    return (double)roof_threads() * DOT_ROUNDS * FMA_LANES * 16 / run(fma_thread);
}
