/* engine_wish.c - see engine_rig.h: option maps, and what their stop strings mean, by the plainest
 * definition. */
#include "../../appliance/token_text.h"

#include "engine_rig.h"

#include <string.h>

/* ---- the map ---- */

static uint8_t *put_key(uint8_t *at, const char *key)
{
    *at++ = (uint8_t)(0xa0 | strlen(key));
    memcpy(at, key, strlen(key));
    return at + strlen(key);
}

static uint8_t *put_stops(uint8_t *at, const struct rig_wish *w)
{
    at = put_key(at, "stop");
    *at++ = (uint8_t)(0x90 | w->n_stops);
    for (uint32_t i = 0; i < w->n_stops; i++)
        at = put_key(at, w->stops[i]);
    return at;
}

static uint8_t *put_biases(uint8_t *at, const struct rig_wish *w)
{
    at = put_key(at, "logit_bias");
    *at++ = 0xc4; /* bin 8 */
    *at++ = (uint8_t)(w->n_biases * 8);
    for (uint32_t i = 0; i < w->n_biases; i++, at += 8) {
        memcpy(at, &w->biases[i].token, 4);
        memcpy(at + 4, &w->biases[i].bias, 4);
    }
    return at;
}

uint32_t rig_wish(struct rig *r, const struct rig_wish *wish)
{
    uint8_t *at = r->options;
    r->wish = *wish;
    if (!wish->top && !wish->n_biases && !wish->n_stops)
        return 0;
    *at++ = 0x83;
    at = put_stops(at, wish);
    at = put_biases(at, wish);
    at = put_key(at, "top_logprobs");
    *at++ = (uint8_t)wish->top;
    return (uint32_t)(at - r->options);
}

/* ---- stop strings ---- */

struct output_text {
    char bytes[RIG_TOKENS * 4];
    uint32_t n;
    uint32_t end[2 * RIG_TOKENS]; /* of each token */
};

static void lay_out(const struct rig *r, const int32_t *output, uint32_t n, struct output_text *t)
{
    t->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct token_text *all = r->config.text;
        uint32_t bytes = 0;
        const char *text =
            (uint32_t)output[i] < all->n ? token_text_of(all, output[i], &bytes) : "";
        assert_true(t->n + bytes <= sizeof t->bytes);
        memcpy(t->bytes + t->n, text, bytes);
        t->end[i] = t->n += bytes;
    }
}

/* Which string ends behind the first n bytes: the longest, from 1; 0: none. */
static uint32_t complete(const struct rig_wish *w, const char *text, uint32_t n)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < w->n_stops; i++) {
        size_t bytes = strlen(w->stops[i]);
        bool ends = bytes <= n && !memcmp(text + n - bytes, w->stops[i], bytes);
        if (ends && (!found || bytes > strlen(w->stops[found - 1])))
            found = i + 1;
    }
    return found;
}

bool rig_stops(const struct rig *r, const struct rig_wish *wish, const int32_t *output, uint32_t n,
               uint32_t given, struct rig_stop *stop)
{
    static struct output_text t;
    uint32_t end = 0;
    if (!wish->n_stops)
        return false;
    lay_out(r, output, n, &t);
    for (*stop = (struct rig_stop){0}; !stop->which && end < t.n;)
        stop->which = complete(wish, t.bytes, ++end);
    if (!stop->which)
        return false;
    uint32_t begin = end - (uint32_t)strlen(wish->stops[stop->which - 1]);
    while (t.end[stop->n++] < end)
        ;
    if (stop->n < given) /* all of it was known before */
        stop->n = given;
    while (stop->deliver < stop->n && t.end[stop->deliver] <= begin)
        stop->deliver++;
    if ((stop->deliver ? t.end[stop->deliver - 1] : 0) < begin) /* it begins inside of a token */
        stop->deliver++;
    if (stop->deliver < given)
        stop->deliver = given;
    uint32_t delivered = stop->deliver ? t.end[stop->deliver - 1] : 0;
    stop->cut = delivered > begin ? delivered - begin : 0;
    return true;
}
