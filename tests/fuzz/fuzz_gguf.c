/* fuzz_gguf.c - libFuzzer: any bytes as a model file. What loads is fetched whole, its vocabulary
 * image is built and checked, and the backend computes with it, whatever numbers its weights are: a
 * shape is refused, or tokens come out that the vocabulary has. The vocabulary alone is opened too.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../appliance/model/model.h"
#include "../../shm/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(int condition)
{
    if (!condition)
        abort();
}

static void fetch_one(struct gpu_source *source, const struct gpu_tensor *t)
{
    struct fail f = {0};
    if (!t)
        return;
    void *dst = aligned_alloc(64, (t->bytes + 63) & ~(size_t)63);
    demand(dst != NULL && source->fetch(source->context, t, dst, &f) == 0);
    free(dst);
}

static void fetch_net(struct model *m)
{
    struct gpu_source source = model_source(m);
    uint8_t digest[16];
    fetch_one(&source, m->net.embedding);
    fetch_one(&source, m->net.output_norm);
    fetch_one(&source, m->net.output);
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        const struct gpu_layer *l = &m->net.layers[i];
        const struct gpu_tensor *all[] = {l->attn_norm, l->q,      l->k,   l->v,      l->q_bias,
                                          l->k_bias,    l->v_bias, l->o,   l->o_bias, l->ffn_norm,
                                          l->gate,      l->up,     l->down};
        for (size_t t = 0; t < sizeof all / sizeof all[0]; t++)
            fetch_one(&source, all[t]);
    }
    model_digest(m, digest);
}

static void check_image(const struct model *m)
{
    struct fail f = {0};
    void *image;
    size_t bytes;
    uint8_t digest[16];
    demand(model_vocab_image(m, &image, &bytes, &f) == 0);
    demand(llm_vocab_check(image, bytes) == 0);
    model_vocab_digest(m, digest);
    free(image);
}

/* Greedy, drawn, and scored: three rows of one sequence. */
static void run_step(const struct gpu_ops *ops, struct gpu *g, uint32_t vocab)
{
    const uint32_t block = 0;
    const int32_t tokens[] = {0, (int32_t)vocab - 1, (int32_t)vocab / 2};
    const struct gpu_seq seq = {.blocks = &block, .n_rows = 3, .rope_len = 4};
    struct gpu_output outputs[3];
    struct gpu_result results[3];
    for (uint32_t i = 0; i < 3; i++)
        outputs[i] = (struct gpu_output){.row = i, .target = -1, .position = i + 1};
    outputs[1].sampling = (struct gpu_sampling){
        .temperature = 0.7f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 5, .seed = 1};
    outputs[2].target = 0;
    const struct gpu_step step = {.n_rows = 3,
                                  .n_seqs = 1,
                                  .n_outputs = 3,
                                  .tokens = tokens,
                                  .seqs = &seq,
                                  .outputs = outputs,
                                  .results = results};
    demand(!ops->submit(g, &step) && !ops->wait(g));
    for (uint32_t i = 0; i < 3; i++)
        demand(results[i].token >= 0 && (uint32_t)results[i].token < vocab);
}

static void compute(struct model *m, bool plain)
{
    const struct gpu_ops *ops = gpu_cpu_ops();
    const struct gpu_config config = {
        .threads = 1, .max_rows = 3, .max_seqs = 1, .max_outputs = 3, .max_len = 4, .plain = plain};
    struct gpu_source source = model_source(m);
    struct fail f = {0};
    struct gpu *g = NULL;
    demand(ops->open(&g, &config, &f) == 0);
    if (ops->load(g, &m->net, &source, &f) == 0) {
        demand(ops->pool(g, 1, &f) == 0);
        run_step(ops, g, m->net.vocab);
    } else {
        demand(f.code < 0 && f.text[0]);
    }
    ops->close(g);
}

static void try_it(const char *path, bool plain)
{
    struct fail f = {0}, vf = {0};
    struct model *m;
    if (model_open(&m, path, &f) == 0) {
        fetch_net(m);
        check_image(m);
        compute(m, plain);
        model_close(m);
    } else {
        demand(f.code < 0 && f.text[0]);
    }
    if (model_open_vocab(&m, path, &vf) == 0) {
        check_image(m);
        model_close(m);
    } else {
        demand(vf.code < 0 && vf.text[0]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    demand(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    try_it(path, size & 1);
    close(fd);
    return 0;
}
