/* penalty.c - what changes logits before a token is drawn: biases, then repetition, then presence
 * and frequency, as gpu.h, struct gpu_sampling, defines them.
 *
 * The history is counted anew for each draw, in time linear in it and without a pass over the
 * vocabulary: `seen` is set for the tokens of the history only, so it needs no clearing. Nothing is
 * kept between draws: a sequence that is preempted, resumed or moved draws what it would have drawn.
 */
#include <assert.h>
#include <string.h>

#include "sample_pass.h"

static const uint32_t done = UINT32_MAX; /* of a token that was dealt with */

static float repetition_of(const struct gpu_sampling *s)
{
    return s->repetition > 0.0f ? s->repetition : 1.0f;
}

static bool looks_at_history(const struct gpu_output *out)
{
    const struct gpu_sampling *s = &out->sampling;
    bool wanted = repetition_of(s) != 1.0f || s->presence != 0.0f || s->frequency != 0.0f;
    return wanted && out->history && out->n_history;
}

bool penalty_needed(const struct gpu_output *out)
{
    return out->sampling.n_biases || looks_at_history(out);
}

size_t penalty_scratch_bytes(uint32_t vocab)
{
    return (size_t)vocab * sizeof(uint32_t);
}

/* seen[t]: how often t stands in the output, for each t of the history. */
static void count(const struct gpu_output *out, uint32_t *seen)
{
    for (uint32_t i = 0; i < out->n_history; i++)
        seen[out->history[i]] = 0;
    for (uint32_t i = out->n_prompt; i < out->n_history; i++)
        seen[out->history[i]]++;
}

static float penalized(float x, uint32_t n, const struct gpu_sampling *s)
{
    float repetition = repetition_of(s);
    if (repetition != 1.0f)
        x = x > 0.0f ? x / repetition : x * repetition;
    return n ? x - ((float)n * s->frequency + s->presence) : x;
}

static void penalize(const struct gpu_output *out, float *x, uint32_t *seen)
{
    assert(out->n_prompt <= out->n_history);
    count(out, seen);
    for (uint32_t i = 0; i < out->n_history; i++) {
        uint32_t t = (uint32_t)out->history[i];
        if (seen[t] != done)
            x[t] = penalized(sample_clean(x[t]), seen[t], &out->sampling);
        seen[t] = done;
    }
}

void penalty_apply(const struct gpu_output *out, const float *logits, uint32_t vocab, float *x,
                   void *seen)
{
    memcpy(x, logits, vocab * sizeof *x);
    for (uint32_t i = 0; i < out->sampling.n_biases; i++) {
        const struct gpu_bias *b = &out->sampling.biases[i];
        assert((uint32_t)b->token < vocab);
        x[b->token] = sample_clean(x[b->token]) + b->bias;
    }
    if (looks_at_history(out))
        penalize(out, x, seen);
}
