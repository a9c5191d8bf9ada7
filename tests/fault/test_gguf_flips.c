/* test_gguf_flips.c - a good model file with a bit turned over, or cut off: it is refused with a
 * sentence or it loads, and what it loads can be fetched and made into a checked vocabulary image.
 * It never crashes, and takes no memory that its size does not justify.
 *
 * The flips are deterministic: a third of them in the header and the tables, where they tell most.
 */
#include "../../appliance/model/model.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../appliance/model/gguf.h"
#include "../../shm/vocab.h"

enum { FLIPS = 1000, CUTS = 200, MEMORY_BYTES = 256 << 20 };

struct sample {
    char *bytes; /* of the good file */
    size_t n;
    size_t meta_bytes, data_at;
    int fd; /* memfd with the spoilt one */
    char path[64];
    unsigned loaded, refused;
};

static void write_all(struct sample *s, const char *bytes, size_t n)
{
    assert_int_equal(ftruncate(s->fd, (off_t)n), 0);
    assert_int_equal(pwrite(s->fd, bytes, n, 0), (ssize_t)n);
}

static int setup(void **state)
{
    struct sample *s = calloc(1, sizeof *s);
    struct gguf *g;
    const char *path = golden_path("tiny_gguf/llama.Q4_0.gguf");
    s->bytes = golden_read("tiny_gguf/llama.Q4_0.gguf", &s->n);
    s->fd = memfd_create("flips", MFD_CLOEXEC);
    snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->fd);
    if (s->fd < 0 || gguf_open(&g, path, GGUF_ALL, NULL) < 0)
        return -1;
    s->meta_bytes = g->meta_bytes;
    s->data_at = g->data_at;
    gguf_close(g);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct sample *s = *state;
    close(s->fd);
    free(s->bytes);
    free(s);
    return 0;
}

/* ---- loading whatever it is ---- */

static void fetch_one(struct gpu_source *source, const struct gpu_tensor *t)
{
    struct fail f = {0};
    if (!t)
        return;
    void *dst = aligned_alloc(64, (t->bytes + 63) & ~(size_t)63);
    assert_non_null(dst);
    if (source->fetch(source->context, t, dst, &f) < 0)
        fail_msg("%s", f.text);
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
    if (model_vocab_image(m, &image, &bytes, &f) < 0)
        fail_msg("%s", f.text);
    assert_int_equal(llm_vocab_check(image, bytes), 0);
    free(image);
}

static bool refused_with_a_sentence(int rc, const struct fail *f)
{
    return rc < 0 && f->code == rc && strlen(f->text) > 20 && strchr(f->text, ':') &&
           !strchr(f->text, '\n');
}

static void try_it(struct sample *s, const char *what, size_t where)
{
    struct fail f = {0}, vf = {0};
    struct model *m;
    int rc = model_open(&m, s->path, &f);
    if (rc == 0) {
        fetch_net(m);
        check_image(m);
        model_close(m);
        s->loaded++;
    } else if (refused_with_a_sentence(rc, &f)) {
        s->refused++;
    } else {
        fail_msg("%s %zu: code %d, '%s'", what, where, rc, f.text);
    }
    rc = model_open_vocab(&m, s->path, &vf);
    if (rc == 0) {
        check_image(m);
        model_close(m);
    } else if (!refused_with_a_sentence(rc, &vf)) {
        fail_msg("%s %zu, vocabulary: code %d, '%s'", what, where, rc, vf.text);
    }
}

/* ---- the faults ---- */

static size_t flip_place(const struct sample *s, struct rnd *r, int flip)
{
    switch (flip % 3) {
    case 0:
        return rnd_below(r, 1024); /* header, hyperparameters */
    case 1:
        return rnd_below(r, (uint32_t)s->data_at); /* tokenizer, tensor table */
    default:
        return rnd_below(r, (uint32_t)s->n);
    }
}

static void flips(void **state)
{
    struct sample *s = *state;
    struct rnd r = {7};
    s->loaded = s->refused = 0;
    write_all(s, s->bytes, s->n);
    for (int flip = 0; flip < FLIPS; flip++) {
        size_t at = flip_place(s, &r, flip);
        char spoilt = (char)(s->bytes[at] ^ 1 << rnd_below(&r, 8));
        assert_int_equal(pwrite(s->fd, &spoilt, 1, (off_t)at), 1);
        try_it(s, "flip at byte", at);
        assert_int_equal(pwrite(s->fd, &s->bytes[at], 1, (off_t)at), 1);
    }
    assert_true(s->loaded > 100 && s->refused > 100); /* the flips tell something */
    try_it(s, "untouched", 0);
}

static void expect_cut_refused(struct sample *s, size_t n)
{
    unsigned refused = s->refused;
    write_all(s, s->bytes, n);
    try_it(s, "cut to", n);
    if (s->refused != refused + 1)
        fail_msg("cut to %zu of %zu bytes, it loads", n, s->n);
}

/* At the borders of the sections, and a byte to either side. */
static void cuts_at_borders(void **state)
{
    struct sample *s = *state;
    struct gguf *g;
    expect_cut_refused(s, 0);
    const size_t fixed[] = {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25};
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
        expect_cut_refused(s, fixed[i]);
    assert_int_equal(gguf_open(&g, golden_path("tiny_gguf/llama.Q4_0.gguf"), GGUF_ALL, NULL), 0);
    for (uint32_t i = 0; i < g->n_keys; i++)
        for (int side = -1; side <= 1; side++) {
            expect_cut_refused(s, g->keys[i].name_at - 8 + (size_t)side);
            expect_cut_refused(s, g->keys[i].name_at + g->keys[i].name_bytes + (size_t)side);
            expect_cut_refused(s, g->keys[i].value_at + (size_t)side);
        }
    for (int side = -1; side <= 1; side++) {
        expect_cut_refused(s, s->meta_bytes + (size_t)side);
        expect_cut_refused(s, s->data_at + (size_t)side);
        for (uint32_t i = 0; i < g->n_tensors; i++)
            expect_cut_refused(s, g->tensors[i].offset + (size_t)side);
    }
    expect_cut_refused(s, s->n - 1);
    gguf_close(g);
}

static void cuts_at_random(void **state)
{
    struct sample *s = *state;
    struct rnd r = {11};
    for (int i = 0; i < CUTS; i++)
        expect_cut_refused(s, rnd_below(&r, (uint32_t)s->n));
}

int main(void)
{
    /* A claim that is believed before it is checked would ask for more than this. (Sanitizers need
     * the address space for themselves.) */
    const struct rlimit memory = {MEMORY_BYTES, MEMORY_BYTES};
    if (!test_sanitized() && setrlimit(RLIMIT_AS, &memory) < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flips),
        cmocka_unit_test(cuts_at_borders),
        cmocka_unit_test(cuts_at_random),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
