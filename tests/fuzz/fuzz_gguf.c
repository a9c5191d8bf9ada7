/* fuzz_gguf.c - libFuzzer: any bytes as a model file. What loads is fetched whole, and its
 * vocabulary image is built and checked; the vocabulary alone is opened too.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... tests/fuzz/fuzz_gguf.c
 *     ./fuzz_gguf -max_len=200000 corpus/     (seed it with tests/golden/tiny_gguf/llama.Q4_0.gguf)
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

static void try_it(const char *path)
{
    struct fail f = {0}, vf = {0};
    struct model *m;
    if (model_open(&m, path, &f) == 0) {
        fetch_net(m);
        check_image(m);
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
    try_it(path);
    close(fd);
    return 0;
}
