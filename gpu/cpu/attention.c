/* attention.c - sizes that all attention bodies share. */
#include "attention_tile.h"

size_t attn_block_bytes(const struct attn_shape *s)
{
    return (size_t)s->kv_heads * 2 * attn_tile_bytes(s);
}

/* Of the fast bodies: for each pair of a group its scaled query and its o; for each pair of a
 * register block the span's weights and o. */
size_t attn_scratch_bytes(const struct attn_shape *s)
{
    size_t group = (size_t)ATTN_GROUP_PAIRS * (ATTN_Q_STRIDE + s->head_dim);
    size_t block = (size_t)ATTN_BLOCK_PAIRS * (ATTN_SPAN + s->head_dim);
    return (group + block) * sizeof(float);
}

size_t attn_part_floats(const struct attn_shape *s)
{
    size_t floats = (size_t)(s->heads / s->kv_heads) * (s->head_dim + 2);
    return (floats + 15) / 16 * 16;
}
