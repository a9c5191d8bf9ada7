/* test_model.c - model files that are right: the golden llama files open with the shapes that they
 * were made with, each tensor's bytes arrive as they stand in the file, the digest does not depend
 * on the order of the fetches, and the tokenizer's data are those of the file.
 */
#include "../../appliance/model/model.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_doc.h"

static const char *const golden_files[] = {
    "llama.F32",
    "llama.F16",
    "llama.Q8_0",
    "llama.Q4_0",
    "llama.Q4_1",
    "llama.Q5_0",
    "llama.Q5_1",
    "llama_rope_llama3.BF16",
    "llama_rope_linear.F16",
    "llama_rope_yarn.F16",
};

enum { GOLDEN_FILES = sizeof golden_files / sizeof golden_files[0] };

static struct model *open_path(const char *path)
{
    struct fail f = {0};
    struct model *m;
    if (model_open(&m, path, &f) < 0)
        fail_msg("%s", f.text);
    return m;
}

static const char *golden_model(const char *name)
{
    char relative[128];
    snprintf(relative, sizeof relative, "tiny_gguf/%s.gguf", name);
    return golden_path(relative);
}

/* ---- tensors ---- */

enum { TENSORS_MAX = 512 };

/* Every tensor of the net, each once. */
static size_t all_tensors(const struct model *m, const struct gpu_tensor *out[TENSORS_MAX])
{
    size_t n = 0;
    out[n++] = m->net.embedding;
    out[n++] = m->net.output_norm;
    if (m->net.output != m->net.embedding)
        out[n++] = m->net.output;
    for (uint32_t i = 0; i < m->net.n_layers; i++) {
        const struct gpu_layer *l = &m->net.layers[i];
        const struct gpu_tensor *some[] = {l->attn_norm, l->q,      l->k,   l->v,      l->q_bias,
                                           l->k_bias,    l->v_bias, l->o,   l->o_bias, l->ffn_norm,
                                           l->gate,      l->up,     l->down};
        for (size_t t = 0; t < sizeof some / sizeof some[0]; t++)
            if (some[t])
                out[n++] = some[t];
    }
    assert_true(n <= TENSORS_MAX);
    return n;
}

static void fetch(struct model *m, const struct gpu_tensor *t, bool compare)
{
    struct fail f = {0};
    struct gpu_source source = model_source(m);
    size_t room = (t->bytes + 127) & ~(size_t)63; /* with at least 64 bytes behind */
    uint8_t *got = aligned_alloc(64, room);
    memset(got, 0xa5, room);
    if (source.fetch(source.context, t, got, &f) < 0)
        fail_msg("%s", f.text);
    for (size_t i = t->bytes; i < room; i++)
        assert_int_equal(got[i], 0xa5);
    if (compare) {
        uint8_t *want = malloc(t->bytes);
        int fd = open(m->path, O_RDONLY);
        assert_int_equal(pread(fd, want, t->bytes, (off_t)t->offset), t->bytes);
        close(fd);
        assert_memory_equal(got, want, t->bytes);
        free(want);
    }
    free(got);
}

static void each_tensor_arrives_as_it_stands_in_the_file(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN_FILES; i++) {
        const struct gpu_tensor *tensors[TENSORS_MAX];
        struct model *m = open_path(golden_model(golden_files[i]));
        size_t n = all_tensors(m, tensors);
        assert_int_equal(n, 21);
        for (size_t t = 0; t < n; t++)
            fetch(m, tensors[t], true);
        model_close(m);
    }
}

/* ---- descriptions ---- */

static void the_files_are_described_as_they_were_made(void **state)
{
    (void)state;
    json_t *index = golden_json("tiny_gguf/index.json"), *entry;
    size_t k, seen = 0;
    json_array_foreach(json_object_get(index, "files"), k, entry)
    {
        const char *gguf = json_string_value(json_object_get(entry, "gguf"));
        for (int i = 0; i < GOLDEN_FILES; i++) {
            size_t stem = strlen(golden_files[i]);
            if (strncmp(gguf, golden_files[i], stem) || strcmp(gguf + stem, ".gguf"))
                continue;
            struct model *m = open_path(golden_model(golden_files[i]));
            assert_int_equal(m->file_bytes, json_integer_value(json_object_get(entry, "bytes")));
            assert_string_equal(m->quantization, strrchr(golden_files[i], '.') + 1);
            assert_string_equal(m->architecture, "llama");
            assert_memory_equal(m->name, golden_files[i], strlen(m->name));
            assert_int_equal(m->net.vocab, 384);
            assert_int_equal(m->net.hidden, 64);
            assert_int_equal(m->net.n_layers, 2);
            assert_int_equal(m->net.heads, 4);
            assert_int_equal(m->net.kv_heads, 2);
            assert_int_equal(m->net.head_dim, 16);
            assert_int_equal(m->net.ffn, 128);
            assert_int_equal(m->net.rope, GPU_ROPE_PAIRS);
            assert_int_equal(m->net.rope_dim, 16);
            assert_true(m->net.attn_scale == 0.25f);
            assert_true(m->net.rms_eps == 1e-5f);
            assert_int_equal(m->net.context, strstr(gguf, "yarn") ? 128 : 256);
            model_close(m);
            seen++;
        }
    }
    assert_int_equal(seen, GOLDEN_FILES);
    json_decref(index);
}

static void tokenizer_data(void **state)
{
    (void)state;
    struct model *m = open_path(golden_model("llama.Q4_0"));
    const struct model_vocab *v = &m->vocab;
    assert_int_equal(v->tokenizer, MODEL_TOKENIZER_BPE);
    assert_string_equal(v->pre, "llama-bpe");
    assert_int_equal(v->n_tokens, 384);
    assert_int_equal(v->texts[0].bytes, 1);
    assert_int_equal(v->texts[0].at[0], '!');
    assert_int_equal(v->types[0], MODEL_TOKEN_NORMAL);
    assert_int_equal(v->types[376], MODEL_TOKEN_CONTROL);
    assert_null(v->scores);
    assert_int_equal(v->n_merges, 120);
    assert_memory_equal(v->merges[1].at, "- -", 3);
    assert_int_equal(v->bos, 376);
    assert_int_equal(v->eos, 377);
    assert_int_equal(v->pad, 380);
    assert_int_equal(v->unk, -1);
    assert_int_equal(v->eot, -1);
    assert_int_equal(v->eom, -1);
    assert_false(v->add_bos); /* the file says so, against the habit of llama-bpe */
    assert_false(v->add_eos);
    assert_false(v->add_space_prefix);
    assert_int_equal(v->n_eog, 2); /* eos, and <|im_end|> by its text */
    assert_int_equal(v->eog[0], 377);
    assert_int_equal(v->eog[1], 379);
    assert_memory_equal(v->texts[379].at, "<|im_end|>", 10);
    assert_memory_equal(v->chat_template.at, "{% for m in messages %}", 23);
    model_close(m);
}

/* ---- rotary frequencies ---- */

static void expect_frequency(const struct model *m, uint32_t i, double want)
{
    if (fabs((double)m->net.rope_freq[i] - want) > want * 1e-7)
        fail_msg("%s: frequency %u is %.9g, not %.9g", m->name, i, (double)m->net.rope_freq[i],
                 want);
}

/* Against the closed forms, with the numbers of the files: base 10000, 16 dimensions, factor 4. For
 * YaRN 32 positions: 32 turns lie at pair -1.6, 1 turn at pair 1.4, so the ramp runs from pair 0 to
 * pair 2. */
static void rotary_frequencies(void **state)
{
    (void)state;
    struct model *plain = open_path(golden_model("llama.F16"));
    struct model *linear = open_path(golden_model("llama_rope_linear.F16"));
    struct model *yarn = open_path(golden_model("llama_rope_yarn.F16"));
    for (uint32_t i = 0; i < 8; i++) {
        double w = pow(10000, -2.0 * i / 16), r = i == 0 ? 0 : i == 1 ? 0.5 : 1;
        expect_frequency(plain, i, w);
        expect_frequency(linear, i, w / 4);
        expect_frequency(yarn, i, w * (1 - r) + w / 4 * r);
    }
    assert_true(plain->net.rope_magnitude == 1);
    assert_true(linear->net.rope_magnitude == 1);
    assert_true(fabs((double)yarn->net.rope_magnitude - (0.1 * log(4) + 1)) < 1e-7);
    model_close(plain);
    model_close(linear);
    model_close(yarn);
}

/* A ramp inside the table: base 10000, 16 dimensions, 4096 positions; 32 turns lie at pair 2.6, 1
 * turn at pair 5.6, so pairs up to 2 are kept and pairs from 6 on interpolated. With 8 and 2 turns
 * given they lie at 3.8 and 5.03: the same from 3 to 6. */
static void yarn_ramp(void **state)
{
    (void)state;
    for (int given = 0; given < 3; given++) {
        char path[512];
        struct doc d;
        snprintf(path, sizeof path, "%s/yarn.gguf", scratch_dir());
        doc_llama(&d);
        doc_text(&d, "llama.rope.scaling.type", "yarn");
        doc_f32(&d, "llama.rope.scaling.factor", 8);
        if (given == 2) { /* the model's own length counts, whatever the window */
            doc_u32(&d, "llama.context_length", 4096);
            doc_u32(&d, "llama.attention.sliding_window", 100);
        } else {
            doc_u32(&d, "llama.rope.scaling.original_context_length", 4096);
        }
        if (given == 1) {
            doc_f32(&d, "llama.rope.scaling.yarn_beta_fast", 8);
            doc_f32(&d, "llama.rope.scaling.yarn_beta_slow", 2);
            doc_f32(&d, "llama.rope.scaling.attn_factor", 1.25f);
        }
        struct bytes b = doc_bytes(&d);
        bytes_save(&b, path);
        struct model *m = open_path(path);
        double low = given == 1 ? 3 : 2;
        for (uint32_t i = 0; i < 8; i++) {
            double w = pow(10000, -2.0 * i / 16), r = fmin(fmax((i - low) / (6 - low), 0), 1);
            expect_frequency(m, i, w * (1 - r) + w / 8 * r);
        }
        double magnitude = given == 1 ? 1.25 : 0.1 * log(8) + 1;
        assert_true(fabs((double)m->net.rope_magnitude - magnitude) < 1e-6);
        model_close(m);
        bytes_free(&b);
        doc_free(&d);
    }
}

/* Llama 3's rule (factor 8, low 1, high 4, 32 positions, base 500000), which the file holds as
 * divisors: wavelengths above 32 are divided by 8, below 8 kept, those between interpolated. */
static void llama3_divisors(void **state)
{
    (void)state;
    struct model *m = open_path(golden_model("llama_rope_llama3.BF16"));
    for (uint32_t i = 0; i < 8; i++) {
        double w = pow(500000, -2.0 * i / 16), length = 2 * M_PI / w;
        double smooth = (32 / length - 1) / (4 - 1);
        double want = length > 32 ? w / 8 : length < 8 ? w : (1 - smooth) * w / 8 + smooth * w;
        if (fabs((double)m->net.rope_freq[i] - want) > want * 1e-6) /* they were stored as f32 */
            fail_msg("frequency %u is %.9g, not %.9g", i, (double)m->net.rope_freq[i], want);
    }
    model_close(m);
}

/* ---- digests and progress ---- */

static void digest_in_order(const char *path, int order, uint8_t out[16])
{
    const struct gpu_tensor *tensors[TENSORS_MAX];
    struct model *m = open_path(path);
    struct rnd r = {(uint64_t)order};
    size_t n = all_tensors(m, tensors);
    for (size_t i = n; i-- > 1 && order;) {
        size_t j = rnd_below(&r, (uint32_t)i + 1);
        const struct gpu_tensor *t = tensors[i];
        tensors[i] = tensors[j];
        tensors[j] = t;
    }
    for (size_t i = 0; i < n; i++)
        fetch(m, tensors[i], false);
    if (order)
        fetch(m, tensors[0], false); /* once more changes nothing */
    model_digest(m, out);
    model_close(m);
}

static void digest_does_not_depend_on_the_order(void **state)
{
    (void)state;
    uint8_t first[16], other[16];
    digest_in_order(golden_model("llama.Q5_1"), 0, first);
    for (int order = 1; order <= 5; order++) {
        digest_in_order(golden_model("llama.Q5_1"), order, other);
        assert_memory_equal(first, other, 16);
    }
    digest_in_order(golden_model("llama.Q5_0"), 0, other);
    assert_memory_not_equal(first, other, 16);
}

/* One bit anywhere in the header or a tensor is another digest; the tokenizer's changes with the
 * tokenizer only. */
static void digest_sees_every_part(void **state)
{
    (void)state;
    char path[512];
    struct doc d;
    uint8_t base[16], other[16], vocab[16], vocab_other[16];
    snprintf(path, sizeof path, "%s/m.gguf", scratch_dir());
    doc_llama(&d);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    digest_in_order(path, 0, base);
    struct model *m = open_path(path);
    model_vocab_digest(m, vocab);
    model_close(m);
    for (int part = 0; part < 4; part++) {
        size_t at = part == 0   ? doc_value_at(&d, "general.name") + 8
                    : part == 1 ? doc_value_at(&d, "tokenizer.ggml.bos_token_id")
                    : part == 2 ? d.data_at + 5
                                : b.n - 4;
        b.at[at] ^= 1;
        bytes_save(&b, path);
        digest_in_order(path, 0, other);
        assert_memory_not_equal(base, other, 16);
        m = open_path(path);
        model_vocab_digest(m, vocab_other);
        model_close(m);
        assert_int_equal(memcmp(vocab, vocab_other, 16) != 0, part == 1);
        b.at[at] ^= 1;
    }
    bytes_free(&b);
    doc_free(&d);
}

struct progress {
    uint64_t last, total;
    unsigned calls;
};

static void note_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *p = context;
    assert_true(done > p->last && done <= total);
    p->last = done;
    p->total = total;
    p->calls++;
}

static void progress_grows_to_the_total(void **state)
{
    (void)state;
    const struct gpu_tensor *tensors[TENSORS_MAX];
    struct progress p = {0};
    /* with rotary divisors, which model_open itself fetches */
    struct model *m = open_path(golden_model("llama_rope_llama3.BF16"));
    size_t n = all_tensors(m, tensors);
    model_on_progress(m, note_progress, &p);
    for (size_t i = 0; i < n; i++)
        fetch(m, tensors[i], false);
    fetch(m, tensors[0], false); /* counts once */
    assert_int_equal(p.last, p.total);
    assert_int_equal(p.total, m->weights_bytes);
    assert_true(p.calls >= n);
    model_close(m);
}

/* The file is replaced under the engine by writing into it. */
static void a_file_that_changes_is_noticed(void **state)
{
    (void)state;
    char path[512];
    struct doc d;
    struct fail f = {0}, f2 = {0};
    snprintf(path, sizeof path, "%s/changing.gguf", scratch_dir());
    doc_llama(&d);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    struct model *m = open_path(path);
    const struct gpu_tensor *t = m->net.embedding;
    struct gpu_source source = model_source(m);
    uint8_t *dst = aligned_alloc(64, 4096);
    assert_int_equal(source.fetch(source.context, t, dst, &f), 0);
    b.at[t->offset] ^= 1;
    bytes_save(&b, path);
    assert_int_equal(source.fetch(source.context, t, dst, &f), -EIO);
    assert_non_null(strstr(f.text, "'token_embd.weight' changed"));
    assert_int_equal(truncate(path, (off_t)t->offset + 10), 0);
    assert_int_equal(source.fetch(source.context, t, dst, &f2), -EIO);
    assert_non_null(strstr(f2.text, "inside tensor 'token_embd.weight'"));
    free(dst);
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

/* ---- variants ---- */

static void tied_output_and_biases(void **state)
{
    (void)state;
    char path[512];
    struct doc d;
    const int32_t kv[] = {2};
    snprintf(path, sizeof path, "%s/tied.gguf", scratch_dir());
    doc_llama(&d);
    doc_array(&d, "llama.attention.head_count_kv", 5, kv, 1, 4);
    doc_u32(&d, "llama.attention.sliding_window", 40);
    doc_tensor(&d, "blk.0.attn_q.bias", GPU_F32, 64, 1);
    doc_tensor(&d, "blk.0.attn_output.bias", GPU_F32, 64, 1);
    doc_tensor(&d, "blk.0.attn_rot_embd", GPU_F32, 8, 1); /* old files have it; not needed */
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    struct model *m = open_path(path);
    assert_ptr_equal(m->net.output, m->net.embedding);
    assert_int_equal(m->net.kv_heads, 2);
    assert_int_equal(m->net.context, 40);
    assert_non_null(m->net.layers[0].q_bias);
    assert_non_null(m->net.layers[0].o_bias);
    assert_null(m->net.layers[0].k_bias);
    assert_null(m->net.layers[0].v_bias);
    assert_string_equal(m->name, "tiny");
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

static void heads_of_another_size_and_absent_keys(void **state)
{
    (void)state;
    char path[512];
    struct doc d;
    snprintf(path, sizeof path, "%s/a.name.gguf", scratch_dir());
    doc_llama(&d);
    doc_remove(&d, "llama.attention.head_count_kv"); /* = heads */
    doc_remove(&d, "general.name");                  /* = the file's */
    doc_u32(&d, "llama.attention.key_length", 24);
    doc_u32(&d, "llama.attention.value_length", 24);
    doc_u32(&d, "llama.rope.dimension_count", 8);
    doc_tensor(&d, "blk.0.attn_q.weight", GPU_Q8_0, 64, 96);
    doc_tensor(&d, "blk.0.attn_k.weight", GPU_Q8_0, 64, 96);
    doc_tensor(&d, "blk.0.attn_v.weight", GPU_Q8_0, 64, 96);
    doc_tensor(&d, "blk.0.attn_output.weight", GPU_Q8_0, 96, 64);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    struct model *m = open_path(path);
    assert_int_equal(m->net.kv_heads, 4);
    assert_int_equal(m->net.head_dim, 24);
    assert_int_equal(m->net.rope_dim, 8);
    assert_true(fabs((double)m->net.attn_scale - 1 / sqrt(24)) < 1e-7);
    assert_string_equal(m->name, "a.name");
    expect_frequency(m, 3, pow(10000, -6.0 / 8));
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

/* Models of the llama-bpe family start texts with bos even where the file does not say so; nobody
 * adds a token that is not there. A token that ends a generation for two reasons is in the set
 * once. */
static void habits_of_bpe_families(void **state)
{
    (void)state;
    static const char *const pres[] = {"smollm", "llama-bpe", "llama-bpe", "llama-bpe"};
    for (int i = 0; i < 4; i++) {
        char path[512];
        struct doc d;
        snprintf(path, sizeof path, "%s/habits.gguf", scratch_dir());
        doc_llama(&d);
        doc_text(&d, "tokenizer.ggml.pre", pres[i]);
        doc_u32(&d, "tokenizer.ggml.eos_token_id", 7); /* <|im_end|> */
        if (i == 2)
            doc_bool(&d, "tokenizer.ggml.add_bos_token", 0);
        if (i == 3)
            doc_remove(&d, "tokenizer.ggml.bos_token_id");
        struct bytes b = doc_bytes(&d);
        bytes_save(&b, path);
        struct model *m = open_path(path);
        assert_int_equal(m->vocab.add_bos, i == 1);
        assert_false(m->vocab.add_space_prefix);
        assert_int_equal(m->vocab.n_eog, 1);
        assert_int_equal(m->vocab.eog[0], 7);
        model_close(m);
        bytes_free(&b);
        doc_free(&d);
    }
}

/* The habits of tokenizers where the file says nothing; names that no terminal should see. */
static void sentencepiece_and_names(void **state)
{
    (void)state;
    static const float scores[] = {0, -1, -2, -3, -4, -5, -6, -7};
    char path[512];
    struct doc d;
    snprintf(path, sizeof path, "%s/spm.gguf", scratch_dir());
    doc_llama(&d);
    doc_text(&d, "tokenizer.ggml.model", "llama");
    doc_array(&d, "tokenizer.ggml.scores", 6, scores, 8, 4);
    doc_remove(&d, "tokenizer.ggml.merges");
    doc_remove(&d, "tokenizer.ggml.pre");
    doc_u32(&d, "tokenizer.ggml.eot_token_id", 2);
    doc_text(&d, "general.name", "M\xc3\xbc\x1b[2J\xff x\xc2\x9b\xed\xa0\x80");
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    struct model *m = open_path(path);
    assert_int_equal(m->vocab.tokenizer, MODEL_TOKENIZER_SPM);
    assert_string_equal(m->vocab.pre, "");
    assert_true(m->vocab.add_bos && m->vocab.add_space_prefix && !m->vocab.add_eos);
    assert_true(m->vocab.scores[7] == -7);
    assert_int_equal(m->vocab.n_merges, 0);
    assert_int_equal(m->vocab.n_eog, 3);
    assert_int_equal(m->vocab.eog[0], 2);
    assert_int_equal(m->vocab.eog[1], 6);
    assert_int_equal(m->vocab.eog[2], 7);
    assert_string_equal(m->name, "M\xc3\xbc?[2J? x?\?\?\?\?");
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

/* A long name is cut between characters. */
static void long_names_are_cut(void **state)
{
    (void)state;
    char path[512], name[301];
    struct doc d;
    snprintf(path, sizeof path, "%s/long.gguf", scratch_dir());
    for (int i = 0; i < 300; i += 2)
        memcpy(name + i, "\xc3\xa9", 2);
    name[300] = 0;
    doc_llama(&d);
    doc_text(&d, "general.name", name);
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    struct model *m = open_path(path);
    assert_int_equal(strlen(m->name), 126);
    assert_memory_equal(m->name, name, 126);
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

static void vocabulary_alone(void **state)
{
    (void)state;
    char path[512];
    struct fail f = {0};
    struct model *m;
    struct doc d;
    snprintf(path, sizeof path, "%s/vocab.gguf", scratch_dir());
    doc_llama(&d);
    doc_text(&d, "general.architecture", "gemma3");
    doc_remove(&d, "llama.block_count");
    d.n_tensors = 0;
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    if (model_open_vocab(&m, path, &f) < 0)
        fail_msg("%s", f.text);
    assert_string_equal(m->architecture, "gemma3");
    assert_int_equal(m->vocab.n_tokens, 8);
    assert_int_equal(m->net.vocab, 8);
    model_close(m);
    assert_true(model_open(&m, path, &f) < 0);
    assert_null(m);
    model_close(NULL);
    bytes_free(&b);
    doc_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_files_are_described_as_they_were_made),
        cmocka_unit_test(tokenizer_data),
        cmocka_unit_test(each_tensor_arrives_as_it_stands_in_the_file),
        cmocka_unit_test(rotary_frequencies),
        cmocka_unit_test(yarn_ramp),
        cmocka_unit_test(llama3_divisors),
        cmocka_unit_test(digest_does_not_depend_on_the_order),
        cmocka_unit_test(digest_sees_every_part),
        cmocka_unit_test(progress_grows_to_the_total),
        cmocka_unit_test(a_file_that_changes_is_noticed),
        cmocka_unit_test(tied_output_and_biases),
        cmocka_unit_test(heads_of_another_size_and_absent_keys),
        cmocka_unit_test(habits_of_bpe_families),
        cmocka_unit_test(sentencepiece_and_names),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(vocabulary_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
