/* speed.c - see speed.h. */
#include "speed.h"

#include <assert.h>
#include <math.h>

#include "roof.h"

void speed_add(struct speed_series *s, double v)
{
    assert(s->n < SPEED_ROUNDS_MAX);
    s->v[s->n++] = v;
}

static int those_there(const struct speed_series *s, double *out)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (!isnan(s->v[i]))
            out[n++] = s->v[i];
    return n;
}

double speed_median(const struct speed_series *s)
{
    double v[SPEED_ROUNDS_MAX];
    int n = those_there(s, v);
    return n ? bench_median(v, n) : NAN;
}

double speed_least(const struct speed_series *s)
{
    double least = NAN;
    for (int i = 0; i < s->n; i++)
        least = fmin(least, s->v[i]); /* of a number and NAN: the number */
    return least;
}

double speed_most(const struct speed_series *s)
{
    double most = NAN;
    for (int i = 0; i < s->n; i++)
        most = fmax(most, s->v[i]);
    return most;
}
