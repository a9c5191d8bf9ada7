/* rope.c - rotary frequencies: every kind of scaling whose angles do not depend on the length of
 * the sequence becomes one table of radians per position and one magnitude.
 *
 *   plain     w_i = base^(-2 i / d), i < d / 2
 *   divisors  w_i / rope_freqs_i            (how GGUF files carry Llama 3's scaling)
 *   linear    w_i / factor
 *   yarn      w_i (1 - r_i) + (w_i / factor) r_i, where r_i ramps from 0 to 1 between the
 * dimensions that turn beta_fast and beta_slow times over the original context; magnitude 0.1
 * ln(factor) + 1 unless the file gives one
 *
 * Sources: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023),
 * in the form of transformers' modeling_rope_utils.py (dimensions rounded outwards, clamped to 0
 * and d - 1); the GGUF specification for the keys. All in double, rounded to f32 once at the end.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum kind { NONE, LINEAR, YARN };

struct scaling {
    enum kind kind;
    float base, factor;
    uint32_t original_context;
    float beta_fast, beta_slow;
    float magnitude; /* 0: the formula's */
};

static int read_kind(struct opened *o, struct scaling *s, struct fail *f)
{
    struct model_text t;
    char shown[64];
    int rc = gguf_text(o->file, "llama.rope.scaling.type", GGUF_OPTIONAL, &t, f);
    if (rc < 0)
        return rc;
    s->kind = LINEAR; /* a factor without a type is a linear one */
    if (rc == 0 || (t.bytes == 6 && memcmp(t.at, "linear", 6) == 0))
        return 0;
    if (t.bytes == 4 && memcmp(t.at, "none", 4) == 0)
        s->kind = NONE;
    else if (t.bytes == 4 && memcmp(t.at, "yarn", 4) == 0)
        s->kind = YARN;
    else
        return gguf_refuse(
            o->file, f, -ENOTSUP,
            "key 'llama.rope.scaling.type' is %s; this program computes none, linear "
            "and yarn, and Llama 3's by rope_freqs.weight",
            gguf_quote(shown, sizeof shown, t.at, t.bytes));
    return 0;
}

/* An optional number with bounds: low < value <= high. */
static int read_number(struct opened *o, const char *key, double low, double high, float *out,
                       struct fail *f)
{
    int rc = gguf_f32(o->file, key, GGUF_OPTIONAL, out, f);
    if (rc > 0 && !(*out > low && *out <= high))
        return gguf_refuse(
            o->file, f, -EINVAL,
            "key '%s' is %g, it must be above %g and at most %g: the file is damaged", key,
            (double)*out, low, high);
    return rc;
}

static int read_factor(struct opened *o, struct scaling *s, struct fail *f)
{
    s->factor = 1;
    int rc = gguf_f32(o->file, "llama.rope.scaling.factor", GGUF_OPTIONAL, &s->factor, f);
    if (rc == 0) /* the key's old name */
        rc = gguf_f32(o->file, "llama.rope.scale_linear", GGUF_OPTIONAL, &s->factor, f);
    if (rc < 0)
        return rc;
    if (s->factor == 0)
        s->factor = 1; /* some writers mean "none" by it */
    if (s->factor < 0 || s->factor > 1e6f)
        return gguf_refuse(
            o->file, f, -EINVAL,
            "key 'llama.rope.scaling.factor' is %g, it must be 0 to 1000000: the file "
            "is damaged",
            (double)s->factor);
    return 0;
}

/* Settings that would change YaRN in a way that is not computed. */
static int refuse_variants(struct opened *o, struct fail *f)
{
    float extrapolation = 1, log_multiplier = 0;
    int rc =
        gguf_f32(o->file, "llama.rope.scaling.yarn_ext_factor", GGUF_OPTIONAL, &extrapolation, f);
    if (rc >= 0)
        rc = gguf_f32(o->file, "llama.rope.scaling.yarn_log_multiplier", GGUF_OPTIONAL,
                      &log_multiplier, f);
    if (rc < 0)
        return rc;
    if (extrapolation != 1 || log_multiplier != 0)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key 'llama.rope.scaling.%s' is %g, which this program does not compute",
                           extrapolation != 1 ? "yarn_ext_factor" : "yarn_log_multiplier",
                           (double)(extrapolation != 1 ? extrapolation : log_multiplier));
    return 0;
}

/* The turns of the ramp's ends are written under two names each, the newer with "yarn_". */
static int read_yarn(struct opened *o, struct scaling *s, struct fail *f)
{
    const struct {
        const char *key;
        float *out;
    } numbers[] = {
        {"llama.rope.scaling.beta_fast", &s->beta_fast},
        {"llama.rope.scaling.yarn_beta_fast", &s->beta_fast},
        {"llama.rope.scaling.beta_slow", &s->beta_slow},
        {"llama.rope.scaling.yarn_beta_slow", &s->beta_slow},
        {"llama.rope.scaling.yarn_attn_factor", &s->magnitude},
        {"llama.rope.scaling.attn_factor", &s->magnitude},
    };
    s->beta_fast = 32;
    s->beta_slow = 1;
    s->original_context = o->m.net.context;
    int rc = gguf_u32(o->file, "llama.rope.scaling.original_context_length", 1, 1u << 30,
                      GGUF_OPTIONAL, &s->original_context, f);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && rc >= 0; i++)
        rc = read_number(o, numbers[i].key, 0, 1e6, numbers[i].out, f);
    if (rc < 0)
        return rc;
    if (s->beta_fast < s->beta_slow)
        return gguf_refuse(o->file, f, -EINVAL,
                           "YaRN's beta_fast %g is below its beta_slow %g: the file is damaged",
                           (double)s->beta_fast, (double)s->beta_slow);
    return refuse_variants(o, f);
}

static int read_scaling(struct opened *o, struct scaling *s, struct fail *f)
{
    *s = (struct scaling){.base = 10000};
    int rc = read_number(o, "llama.rope.freq_base", 1, 1e12, &s->base, f);
    if (rc >= 0)
        rc = read_kind(o, s, f);
    if (rc >= 0)
        rc = read_factor(o, s, f);
    if (rc >= 0 && s->kind == YARN)
        rc = read_yarn(o, s, f);
    return rc < 0 ? rc : 0;
}

/* ---- the formulas ---- */

/* The (fractional) pair that turns so many times over the original context. */
static double pair_of_turns(const struct scaling *s, uint32_t dim, double turns)
{
    return dim * log(s->original_context / (turns * 2 * M_PI)) / (2 * log((double)s->base));
}

/* How far pair i is interpolated: 0 not at all, 1 by the whole factor. */
static double yarn_ramp(const struct scaling *s, uint32_t dim, uint32_t i)
{
    double low = fmax(floor(pair_of_turns(s, dim, (double)s->beta_fast)), 0);
    double high = fmin(ceil(pair_of_turns(s, dim, (double)s->beta_slow)), dim - 1.0);
    if (low == high)
        high += 0.001; /* a step */
    double r = (i - low) / (high - low);
    return fmin(fmax(r, 0), 1);
}

static double frequency(const struct scaling *s, uint32_t dim, uint32_t i, double divisor)
{
    double w = pow((double)s->base, -2.0 * i / dim) / divisor;
    double r = s->kind == NONE ? 0 : s->kind == LINEAR ? 1 : yarn_ramp(s, dim, i);
    return w * (1 - r) + w / (double)s->factor * r;
}

static float magnitude(const struct scaling *s)
{
    if (s->kind != YARN)
        return 1;
    if (s->magnitude > 0)
        return s->magnitude;
    return s->factor <= 1 ? 1 : (float)(0.1 * log((double)s->factor) + 1);
}

int rope_read(struct opened *o, const float *divisors, struct fail *f)
{
    struct gpu_model *n = &o->m.net;
    struct scaling s;
    int rc = read_scaling(o, &s, f);
    if (rc < 0)
        return rc;
    o->rope_freq = calloc(n->rope_dim / 2, sizeof(float));
    if (!o->rope_freq)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for its rotary frequencies");
    n->rope_freq = o->rope_freq;
    n->rope_magnitude = magnitude(&s);
    for (uint32_t i = 0; i < n->rope_dim / 2; i++) {
        double divisor = divisors ? (double)divisors[i] : 1;
        if (!(divisor > 0) || isinf(divisor))
            return gguf_refuse(o->file, f, -EINVAL,
                               "tensor 'rope_freqs.weight': element %" PRIu32 " is %g, it must be "
                               "above 0: the file is damaged",
                               i, divisor);
        double w = frequency(&s, n->rope_dim, i, divisor);
        if (!(w <= 1e6))
            return gguf_refuse(o->file, f, -EINVAL,
                               "rotary frequency %" PRIu32 " comes out as %g radians per position: "
                               "the file's RoPE settings are damaged",
                               i, w);
        o->rope_freq[i] = (float)w;
    }
    return 0;
}
