/* attention.c - sizes that both attention bodies share. */
#include "attention_tile.h"

size_t attn_block_bytes(const struct attn_shape *s)
{
    return (size_t)s->kv_heads * 2 * attn_tile_bytes(s);
}

/* Of the larger body (AVX2): for each pair of a group its scaled query, o, m and l; for each pair
 * of a register block the span's weights and o. */
size_t attn_scratch_bytes(const struct attn_shape *s)
{
    size_t group = (size_t)ATTN_GROUP_PAIRS * (2 * s->head_dim + 2);
    size_t block = (size_t)ATTN_BLOCK_PAIRS * (ATTN_SPAN + s->head_dim);
    return (group + block) * sizeof(float);
}
