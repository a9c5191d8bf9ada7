/* fuzz_option_map.c - libFuzzer: any bytes as the option map of a submission. It is refused with a
 * sentence, or msgpack-c reads the same out of it: another reader of the format, which allocates and
 * recurses. The map stands in a block of exactly its size.
 */
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/option_map.h"
#include "tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_label(const uint8_t *map, size_t bytes, const struct option_label *l,
                        const msgpack_object *o)
{
    DEMAND(o->type == MSGPACK_OBJECT_BIN && l->n_tokens);
    DEMAND(o->via.bin.size == l->n_tokens * sizeof(int32_t));
    DEMAND(l->at <= bytes && o->via.bin.size <= bytes - l->at);
    int32_t *tokens = malloc(o->via.bin.size);
    DEMAND(tokens);
    option_label_tokens(map, l, tokens);
    DEMAND(!memcmp(tokens, o->via.bin.ptr, o->via.bin.size));
    free(tokens);
}

static void check_labels(const uint8_t *map, size_t bytes, const struct option_map *m,
                         const msgpack_object *value)
{
    DEMAND(value->type == MSGPACK_OBJECT_ARRAY && value->via.array.size == m->n_labels);
    DEMAND(m->n_labels >= 1 && m->n_labels <= LLM_CHOICES_MAX);
    for (uint32_t i = 0; i < m->n_labels; i++)
        check_label(map, bytes, &m->labels[i], &value->via.array.ptr[i]);
}

static void check_stops(const uint8_t *map, size_t bytes, const struct option_map *m,
                        const msgpack_object *value)
{
    DEMAND(value->type == MSGPACK_OBJECT_ARRAY && value->via.array.size == m->n_stops);
    DEMAND(m->n_stops <= LLM_STOPS_MAX);
    for (uint32_t i = 0; i < m->n_stops; i++) {
        const struct option_stop *s = &m->stops[i];
        const msgpack_object *o = &value->via.array.ptr[i];
        DEMAND(o->type == MSGPACK_OBJECT_BIN || o->type == MSGPACK_OBJECT_STR);
        DEMAND(o->via.bin.size == s->bytes && s->bytes >= 1 && s->bytes <= LLM_STOP_BYTES_MAX);
        DEMAND(s->at <= bytes && s->bytes <= bytes - s->at);
        DEMAND(!memcmp(map + s->at, o->via.bin.ptr, s->bytes));
    }
}

static void check_biases(const uint8_t *map, size_t bytes, const struct option_map *m,
                         const msgpack_object *value)
{
    (void)bytes;
    DEMAND(value->type == MSGPACK_OBJECT_BIN && value->via.bin.size == m->n_biases * 8ull);
    DEMAND(m->n_biases <= LLM_BIASES_MAX);
    for (uint32_t i = 0; i < m->n_biases; i++) {
        int32_t token, want;
        float bias;
        DEMAND(!option_bias(map, m, i, &token, &bias));
        DEMAND(bias >= -100.0f && bias <= 100.0f);
        memcpy(&want, value->via.bin.ptr + 8ull * i, 4);
        DEMAND(token == want && !memcmp(value->via.bin.ptr + 8ull * i + 4, &bias, 4));
    }
}

static void check_top(const uint8_t *map, size_t bytes, const struct option_map *m,
                      const msgpack_object *value)
{
    (void)map, (void)bytes;
    DEMAND(value->type == MSGPACK_OBJECT_POSITIVE_INTEGER && value->via.u64 == m->top);
    DEMAND(m->top <= LLM_TOP_MAX);
}

static const struct {
    const char *name;
    void (*check)(const uint8_t *map, size_t bytes, const struct option_map *m,
                  const msgpack_object *value);
} keys[OPTION_KEYS] = {{"labels", check_labels},
                       {"stop", check_stops},
                       {"logit_bias", check_biases},
                       {"top_logprobs", check_top}};

static void check_map(const uint8_t *map, size_t bytes, const struct option_map *m,
                      const msgpack_object *o)
{
    uint32_t given = 0;
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object *key = &o->via.map.ptr[i].key, *value = &o->via.map.ptr[i].val;
        uint32_t k = 0;
        DEMAND(key->type == MSGPACK_OBJECT_STR);
        while (k < OPTION_KEYS && (strlen(keys[k].name) != key->via.str.size ||
                                   memcmp(keys[k].name, key->via.str.ptr, key->via.str.size)))
            k++;
        DEMAND(k < OPTION_KEYS && !(given >> k & 1));
        given |= 1u << k;
        keys[k].check(map, bytes, m, value);
    }
    DEMAND(given == m->given);
    DEMAND(given & 1 || !m->n_labels);
    DEMAND(given & 2 || !m->n_stops);
    DEMAND(given & 4 || !m->n_biases);
    DEMAND(given & 8 || !m->top);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct option_map m;
    const char *why = NULL;
    int e = option_map_read(&m, data, bytes, &why);
    DEMAND((e == 0 && !why) || (e == LLM_EPARAM && why && *why));
    if (e)
        return 0;
    msgpack_unpacked whole;
    size_t at = 0;
    msgpack_unpacked_init(&whole);
    int read = msgpack_unpack_next(&whole, (const char *)data, bytes, &at);
    DEMAND(read == MSGPACK_UNPACK_SUCCESS && at == bytes);
    DEMAND(whole.data.type == MSGPACK_OBJECT_MAP);
    check_map(data, bytes, &m, &whole.data);
    msgpack_unpacked_destroy(&whole);
    return 0;
}
