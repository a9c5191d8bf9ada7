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
                         const msgpack_object *o)
{
    if (!o->via.map.size) {
        DEMAND(!m->n_labels);
        return;
    }
    DEMAND(o->via.map.size == 1);
    const msgpack_object *key = &o->via.map.ptr[0].key, *value = &o->via.map.ptr[0].val;
    DEMAND(key->type == MSGPACK_OBJECT_STR && key->via.str.size == 6);
    DEMAND(!memcmp(key->via.str.ptr, "labels", 6));
    DEMAND(value->type == MSGPACK_OBJECT_ARRAY && value->via.array.size == m->n_labels);
    DEMAND(m->n_labels >= 1 && m->n_labels <= LLM_CHOICES_MAX);
    for (uint32_t i = 0; i < m->n_labels; i++)
        check_label(map, bytes, &m->labels[i], &value->via.array.ptr[i]);
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
    check_labels(data, bytes, &m, &whole.data);
    msgpack_unpacked_destroy(&whole);
    return 0;
}
