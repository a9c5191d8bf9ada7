/* cpus.c - see cpus.h. */
#define _GNU_SOURCE
#include "cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>

/* A number below CPU_SETSIZE at *text, which moves past it. */
static bool take_number(const char **text, uint32_t *out)
{
    const char *p = *text;
    uint32_t n = 0;
    for (; *p >= '0' && *p <= '9' && n < CPU_SETSIZE; p++)
        n = 10 * n + (uint32_t)(*p - '0');
    bool found = p > *text && n < CPU_SETSIZE;
    *text = p;
    *out = n;
    return found;
}

static bool has(const struct cpus *list, uint32_t cpu)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (list->at[i] == cpu)
            return true;
    return false;
}

static int add(struct cpus *list, const char *what, uint32_t cpu, struct fail *f)
{
    if (has(list, cpu))
        return fail(f, -EINVAL, "%s names CPU %u twice", what, cpu);
    if (list->n == CPUS_MAX)
        return fail(f, -EINVAL, "%s names more than %d CPUs", what, CPUS_MAX);
    list->at[list->n++] = cpu;
    return 0;
}

int cpus_parse(struct cpus *out, const char *what, const char *text, struct fail *f)
{
    const char *at = text;
    *out = (struct cpus){0};
    for (;;) {
        uint32_t from, to;
        bool good = take_number(&at, &from);
        to = from;
        if (good && *at == '-') {
            at++;
            good = take_number(&at, &to) && from <= to;
        }
        if (!good || (*at && *at != ','))
            return fail(f, -EINVAL,
                        "%s takes CPU numbers below %d and ranges of them, as 0-3,8, not '%.64s'",
                        what, CPU_SETSIZE, text);
        for (uint32_t cpu = from; cpu <= to; cpu++) {
            int rc = add(out, what, cpu, f);
            if (rc < 0)
                return rc;
        }
        if (!*at++)
            return 0;
    }
}

void cpus_print(const struct cpus *list, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0, end; i < list->n && used < bytes; i = end) {
        for (end = i + 1; end < list->n && list->at[end] == list->at[end - 1] + 1;)
            end++;
        const char *comma = i ? "," : "";
        used +=
            (size_t)(end == i + 1 ? snprintf(out + used, bytes - used, "%s%u", comma, list->at[i])
                                  : snprintf(out + used, bytes - used, "%s%u-%u", comma,
                                             list->at[i], list->at[end - 1]));
    }
}

void cpus_put_first(struct cpus *list, uint32_t cpu)
{
    uint32_t place = 0;
    while (place < list->n && list->at[place] != cpu)
        place++;
    if (place == list->n && list->n < CPUS_MAX)
        list->n++;
    if (place == CPUS_MAX)
        place--; /* full: the last one gives way */
    memmove(list->at + 1, list->at, place * sizeof *list->at);
    list->at[0] = cpu;
}

void cpus_allowed(struct cpus *out)
{
    cpu_set_t set;
    *out = (struct cpus){0};
    if (sched_getaffinity(0, sizeof set, &set))
        return;
    for (uint32_t cpu = 0; cpu < CPU_SETSIZE && out->n < CPUS_MAX; cpu++)
        if (CPU_ISSET(cpu, &set))
            out->at[out->n++] = cpu;
}
