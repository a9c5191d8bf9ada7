/* option_map.h - the option map of a submission: a msgpack map, for what is rare or of variable
 * length. Foreign bytes: read from the engine's own copy, bounded, without allocation or recursion.
 *
 *   key        value                                                       of
 *   "labels"   array of 1 .. LLM_CHOICES_MAX bin, each s32 token ids       CHOOSE (required)
 *              (little endian, at least one)
 *   "stop"     array of 0 .. LLM_STOPS_MAX bin or str, each 1 ..           GENERATE
 *              LLM_STOP_BYTES_MAX bytes
 *   "logit_bias"  bin of up to LLM_BIASES_MAX pairs s32 token, f32 bias    GENERATE
 *              (little endian; finite, in [-100, 100])
 *   "top_logprobs"  integer 0 .. LLM_TOP_MAX                               GENERATE
 *
 * Keys are strings, in any order, none twice. An unknown key is an error: what the client asks for
 * is never ignored. Format: the msgpack specification (all its families are understood: where a value
 * of another type stands, the error names key and type).
 */
#ifndef LLMD_OPTION_MAP_H
#define LLMD_OPTION_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "../shm/llm_abi.h"

struct option_label {
    uint32_t at;       /* byte offset of the tokens in the map; not aligned */
    uint32_t n_tokens; /* at least 1 */
};

struct option_stop {
    uint32_t at, bytes; /* in the map */
};

struct option_map {
    uint32_t given;    /* bit of enum option_key: it stands in the map */
    uint32_t n_labels; /* 0: not given */
    struct option_label labels[LLM_CHOICES_MAX];
    uint32_t n_stops;
    struct option_stop stops[LLM_STOPS_MAX];
    uint32_t biases_at, n_biases; /* pairs of s32 and f32, not aligned */
    uint32_t top;                 /* candidates */
};

enum option_key { OPTION_LABELS, OPTION_STOP, OPTION_BIAS, OPTION_TOP, OPTION_KEYS };

/* 0; or LLM_EPARAM with *why a sentence (static). `bytes` <= LLM_OPTIONS_MAX. Token ids are not
 * judged here. `out` is meaningless after a failure. */
int option_map_read(struct option_map *out, const uint8_t *map, size_t bytes, const char **why);

/* Bias i: 0, or LLM_EPARAM where it is out of its range. The token is not judged. */
int option_bias(const uint8_t *map, const struct option_map *m, uint32_t i, int32_t *token,
                float *bias);

/* Copies the label's tokens. */
void option_label_tokens(const uint8_t *map, const struct option_label *label, int32_t *tokens);

#endif
