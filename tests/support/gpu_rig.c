/* gpu_rig.c - see gpu_rig.h. */
#include "gpu_rig.h"

#include <stdlib.h>
#include <string.h>

#include "support.h"

void gpu_rig_open(struct gpu_rig *r, const struct gpu_config *config, const struct gpu_model *m,
                  const struct gpu_source *source, uint32_t n_blocks)
{
    struct fail f = {0};
    *r = (struct gpu_rig){.ops = gpu_cpu_ops(), .config = *config, .vocab = m->vocab};
    if (r->ops->open(&r->gpu, config, &f) || r->ops->load(r->gpu, m, source, &f) ||
        r->ops->pool(r->gpu, n_blocks, &f))
        fail_msg("backend: %s (%d)", f.text, f.code);
}

void gpu_rig_close(struct gpu_rig *r)
{
    r->ops->close(r->gpu);
    r->gpu = NULL;
}

void gpu_rig_step(struct gpu_rig *r, const struct gpu_step *step)
{
    assert_int_equal(r->ops->submit(r->gpu, step), 0);
    assert_int_equal(r->ops->wait(r->gpu), 0);
}

static void feed_chunk(struct gpu_rig *r, const uint32_t *blocks, uint32_t pos, const int32_t *ids,
                       uint32_t n, float *logits)
{
    struct gpu_seq seq = {.blocks = blocks, .pos = pos, .n_rows = n};
    struct gpu_output *outputs = calloc(n, sizeof *outputs);
    struct gpu_result *results = calloc(n, sizeof *results);
    assert_non_null(outputs);
    assert_non_null(results);
    for (uint32_t i = 0; i < n && logits; i++)
        outputs[i] = (struct gpu_output){
            .row = i, .target = -1, .position = pos + i + 1, .logits = logits + i * r->vocab};
    struct gpu_step step = {.n_rows = n,
                            .n_seqs = 1,
                            .n_outputs = logits ? n : 0,
                            .tokens = ids,
                            .seqs = &seq,
                            .outputs = outputs,
                            .results = results};
    gpu_rig_step(r, &step);
    free(outputs);
    free(results);
}

void gpu_rig_feed(struct gpu_rig *r, const uint32_t *blocks, uint32_t pos, const int32_t *ids,
                  uint32_t n, uint32_t chunk, float *logits)
{
    uint32_t most = r->config.max_rows;
    if (logits && r->config.max_outputs < most)
        most = r->config.max_outputs;
    if (chunk == 0 || chunk > most)
        chunk = most;
    for (uint32_t i = 0; i < n; i += chunk) {
        uint32_t m = n - i < chunk ? n - i : chunk;
        feed_chunk(r, blocks, pos + i, ids + i, m, logits ? logits + (size_t)i * r->vocab : NULL);
    }
}
