/* test_model_refusals.c - files that are sound GGUF and no model that can be run: hyperparameters,
 * tensors, rotary settings and tokenizer data that are missing, contradict each other, or ask for
 * what is not computed. Each is refused, by the name of the key or tensor.
 */
#include "../../appliance/model/model.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_doc.h"

struct refusal {
    void (*spoil)(struct doc *d);
    int code;
    const char *place; /* must stand in the message */
};

#define SPOIL(name, statement)                                                                     \
    static void name(struct doc *d)                                                                \
    {                                                                                              \
        statement;                                                                                 \
    }

/* ---- what kind of file ---- */

SPOIL(no_architecture, doc_remove(d, "general.architecture"))
SPOIL(architecture_mamba, doc_text(d, "general.architecture", "mamba"))
SPOIL(architecture_number, doc_u32(d, "general.architecture", 1))
SPOIL(architecture_escape, doc_text(d, "general.architecture", "\x1b[31m"))
SPOIL(adapter, doc_text(d, "general.type", "adapter"))
SPOIL(split, doc_u32(d, "split.count", 3))
SPOIL(no_tensors, d->n_tensors = 0)

/* ---- hyperparameters ---- */

SPOIL(no_layers, doc_remove(d, "llama.block_count"))
SPOIL(layers_0, doc_u32(d, "llama.block_count", 0))
SPOIL(layers_2, doc_u32(d, "llama.block_count", 2))
SPOIL(layers_1000, doc_u32(d, "llama.block_count", 1000))
SPOIL(layers_max, doc_u32(d, "llama.block_count", UINT32_MAX))
SPOIL(layers_float, doc_f32(d, "llama.block_count", 1))
SPOIL(no_context, doc_remove(d, "llama.context_length"))
SPOIL(no_hidden, doc_remove(d, "llama.embedding_length"))
SPOIL(hidden_96, doc_u32(d, "llama.embedding_length", 96))
SPOIL(no_ffn, doc_remove(d, "llama.feed_forward_length"))
SPOIL(ffn_128, doc_u32(d, "llama.feed_forward_length", 128))
SPOIL(no_heads, doc_remove(d, "llama.attention.head_count"))
SPOIL(heads_0, doc_u32(d, "llama.attention.head_count", 0))
SPOIL(heads_5, doc_u32(d, "llama.attention.head_count", 5))
SPOIL(heads_8, doc_u32(d, "llama.attention.head_count", 8))
SPOIL(kv_heads_0, doc_u32(d, "llama.attention.head_count_kv", 0))
SPOIL(kv_heads_3, doc_u32(d, "llama.attention.head_count_kv", 3))
SPOIL(kv_heads_8, doc_u32(d, "llama.attention.head_count_kv", 8))
static void kv_heads_differ(struct doc *d)
{
    static const int32_t each[] = {2, 4};
    doc_u32(d, "llama.block_count", 2);
    doc_array(d, "llama.attention.head_count_kv", 5, each, 2, 4);
}
static void kv_heads_too_many(struct doc *d)
{
    static const int32_t each[] = {2, 2};
    doc_array(d, "llama.attention.head_count_kv", 5, each, 2, 4);
}
SPOIL(key_length_17, doc_u32(d, "llama.attention.key_length", 17))
SPOIL(key_length_32, doc_u32(d, "llama.attention.key_length", 32))
SPOIL(value_length_8, doc_u32(d, "llama.attention.value_length", 8))
SPOIL(no_eps, doc_remove(d, "llama.attention.layer_norm_rms_epsilon"))
SPOIL(eps_negative, doc_f32(d, "llama.attention.layer_norm_rms_epsilon", -1e-5f))
SPOIL(eps_nan, doc_f32(d, "llama.attention.layer_norm_rms_epsilon", (float)NAN))
SPOIL(eps_integer, doc_u32(d, "llama.attention.layer_norm_rms_epsilon", 0))
SPOIL(scale_0, doc_f32(d, "llama.attention.scale", 0))
SPOIL(vocab_size_9, doc_u32(d, "llama.vocab_size", 9))
SPOIL(experts, doc_u32(d, "llama.expert_count", 8))
SPOIL(parallel, doc_bool(d, "llama.use_parallel_residual", 1))
SPOIL(not_causal, doc_bool(d, "llama.attention.causal", 0))
SPOIL(logit_scale, doc_f32(d, "llama.logit_scale", 0.5f))
SPOIL(residual_scale, doc_f32(d, "llama.residual_scale", 0.5f))
SPOIL(softcap, doc_f32(d, "llama.final_logit_softcapping", 30))

/* ---- tensors ---- */

SPOIL(embedding_gone, doc_remove_tensor(d, "token_embd.weight"))
SPOIL(norm_gone, doc_remove_tensor(d, "output_norm.weight"))
SPOIL(k_gone, doc_remove_tensor(d, "blk.0.attn_k.weight"))
SPOIL(vocab_rows, doc_tensor(d, "token_embd.weight", GPU_Q8_0, 64, 9))
SPOIL(output_rows, doc_tensor(d, "output.weight", GPU_Q8_0, 64, 7))
SPOIL(q_transposed, doc_tensor(d, "blk.0.ffn_up.weight", GPU_Q4_0, 96, 64))
SPOIL(bias_short, doc_tensor(d, "blk.0.attn_k.bias", GPU_F32, 31, 1))
SPOIL(norm_f16, doc_tensor(d, "blk.0.attn_norm.weight", GPU_F16, 64, 1))
static void three_dimensions(struct doc *d)
{
    struct doc_tensor *t = doc_find_tensor(d, "blk.0.attn_q.weight");
    t->n_dims = 3;
    t->ne[2] = 2;
    t->bytes *= 2;
}
SPOIL(extra_tensor, doc_tensor(d, "blk.0.attn_q_norm.weight", GPU_F32, 16, 1))
SPOIL(ffn_bias, doc_tensor(d, "blk.0.ffn_gate.bias", GPU_F32, 96, 1))
SPOIL(layer_beyond, doc_tensor(d, "blk.1.attn_q.weight", GPU_Q4_0, 64, 64))

/* ---- rotary settings ---- */

SPOIL(rope_dim_odd, doc_u32(d, "llama.rope.dimension_count", 15))
SPOIL(rope_dim_32, doc_u32(d, "llama.rope.dimension_count", 32))
SPOIL(rope_dim_0, doc_u32(d, "llama.rope.dimension_count", 0))
SPOIL(base_0, doc_f32(d, "llama.rope.freq_base", 0))
SPOIL(base_negative, doc_f32(d, "llama.rope.freq_base", -10000))
SPOIL(base_inf, doc_f32(d, "llama.rope.freq_base", (float)INFINITY))
SPOIL(longrope, doc_text(d, "llama.rope.scaling.type", "longrope"))
SPOIL(factor_negative, doc_f32(d, "llama.rope.scaling.factor", -4))
SPOIL(factor_text, doc_text(d, "llama.rope.scaling.factor", "4"))
SPOIL(divisors_short, doc_tensor(d, "rope_freqs.weight", GPU_F32, 7, 1))
SPOIL(divisors_f16, doc_tensor(d, "rope_freqs.weight", GPU_F16, 8, 1))
static void yarn(struct doc *d, const char *key, float value)
{
    doc_text(d, "llama.rope.scaling.type", "yarn");
    doc_f32(d, "llama.rope.scaling.factor", 4);
    doc_f32(d, key, value);
}
SPOIL(yarn_ext, yarn(d, "llama.rope.scaling.yarn_ext_factor", 0.5f))
SPOIL(yarn_log, yarn(d, "llama.rope.scaling.yarn_log_multiplier", 0.1f))
SPOIL(yarn_beta, yarn(d, "llama.rope.scaling.yarn_beta_slow", 64))
SPOIL(yarn_beta_0, yarn(d, "llama.rope.scaling.yarn_beta_fast", 0))
SPOIL(yarn_attn, yarn(d, "llama.rope.scaling.attn_factor", -1))

/* ---- tokenizer ---- */

SPOIL(no_tokenizer, doc_remove(d, "tokenizer.ggml.model"))
SPOIL(tokenizer_bert, doc_text(d, "tokenizer.ggml.model", "bert"))
SPOIL(pre_long, doc_text(d, "tokenizer.ggml.pre",
                         "0123456789012345678901234567890123456789012345678901234567890123"))
SPOIL(no_tokens, doc_remove(d, "tokenizer.ggml.tokens"))
SPOIL(tokens_empty, doc_texts(d, "tokenizer.ggml.tokens", NULL, 0))
static void tokens_numbers(struct doc *d)
{
    static const int32_t ids[8];
    doc_array(d, "tokenizer.ggml.tokens", 5, ids, 8, 4);
}
static void types_short(struct doc *d)
{
    static const int32_t types[] = {1, 1, 1};
    doc_array(d, "tokenizer.ggml.token_type", 5, types, 3, 4);
}
static void type_7(struct doc *d)
{
    static const int32_t types[] = {1, 1, 1, 7, 1, 1, 1, 1};
    doc_array(d, "tokenizer.ggml.token_type", 5, types, 8, 4);
}
static void types_float(struct doc *d)
{
    static const float types[8];
    doc_array(d, "tokenizer.ggml.token_type", 6, types, 8, 4);
}
static void scores_bytes(struct doc *d)
{
    static const uint8_t scores[8];
    doc_array(d, "tokenizer.ggml.scores", 0, scores, 8, 1);
}
static void score_nan(struct doc *d)
{
    static const float scores[8] = {0, 0, NAN};
    doc_array(d, "tokenizer.ggml.scores", 6, scores, 8, 4);
}
SPOIL(spm_without_scores, doc_text(d, "tokenizer.ggml.model", "llama"))
SPOIL(no_merges, doc_remove(d, "tokenizer.ggml.merges"))
static void merge(struct doc *d, const char *text)
{
    const char *const merges[] = {"a b", text};
    doc_texts(d, "tokenizer.ggml.merges", merges, 2);
}
SPOIL(merge_empty, merge(d, ""))
SPOIL(merge_one_part, merge(d, "ab"))
SPOIL(merge_no_left, merge(d, " a"))
SPOIL(merge_no_right, merge(d, "a "))
SPOIL(merge_left, merge(d, "x c"))
SPOIL(merge_right, merge(d, "ab x"))
SPOIL(merge_result, merge(d, "a c"))
SPOIL(bos_8, doc_u32(d, "tokenizer.ggml.bos_token_id", 8))
SPOIL(eos_max, doc_u32(d, "tokenizer.ggml.eos_token_id", UINT32_MAX))
SPOIL(eot_minus, doc_i32(d, "tokenizer.ggml.eot_token_id", -1))
SPOIL(eom_8, doc_u64(d, "tokenizer.ggml.eom_token_id", 8))
SPOIL(unk_8, doc_u32(d, "tokenizer.ggml.unknown_token_id", 8))
SPOIL(pad_8, doc_u32(d, "tokenizer.ggml.padding_token_id", 8))
SPOIL(bos_text, doc_text(d, "tokenizer.ggml.bos_token_id", "<s>"))
SPOIL(add_bos_number, doc_u32(d, "tokenizer.ggml.add_bos_token", 1))
SPOIL(template_number, doc_u32(d, "tokenizer.chat_template", 1))

static const struct refusal refusals[] = {
    {no_architecture, -EINVAL, "'general.architecture' is missing"},
    {architecture_mamba, -ENOTSUP, "'general.architecture' is 'mamba'"},
    {architecture_number, -EINVAL, "'general.architecture' is of type u32"},
    {architecture_escape, -ENOTSUP, "is '\\x1b[31m'"},
    {adapter, -ENOTSUP, "'general.type' is 'adapter'"},
    {split, -ENOTSUP, "one of 3 parts"},
    {no_tensors, -EINVAL, "holds no tensors"},
    {no_layers, -EINVAL, "'llama.block_count' is missing"},
    {layers_0, -EINVAL, "'llama.block_count' is 0"},
    {layers_2, -EINVAL, "'blk.1.attn_norm.weight' is missing"},
    {layers_1000, -EINVAL, "'llama.block_count' is 1000, the file has only 11 tensors"},
    {layers_max, -EINVAL, "'llama.block_count' is 4294967295"},
    {layers_float, -EINVAL, "'llama.block_count' is of type f32"},
    {no_context, -EINVAL, "'llama.context_length' is missing"},
    {no_hidden, -EINVAL, "'llama.embedding_length' is missing"},
    {hidden_96, -EINVAL, "'token_embd.weight' has the shape [64, 8, 1, 1]"},
    {no_ffn, -EINVAL, "'llama.feed_forward_length' is missing"},
    {ffn_128, -EINVAL, "'blk.0.ffn_gate.weight' has the shape [64, 96, 1, 1]"},
    {no_heads, -EINVAL, "'llama.attention.head_count' is missing"},
    {heads_0, -EINVAL, "'llama.attention.head_count' is 0"},
    {heads_5, -EINVAL, "'llama.attention.head_count_kv' is 2, which does not divide"},
    {heads_8, -EINVAL, "'blk.0.attn_k.weight' has the shape"},
    {kv_heads_0, -EINVAL, "'llama.attention.head_count_kv' is 0"},
    {kv_heads_3, -EINVAL, "'llama.attention.head_count_kv' is 3"},
    {kv_heads_8, -EINVAL, "'llama.attention.head_count_kv' is 8"},
    {kv_heads_differ, -ENOTSUP, "2 in layer 0 and 4 in layer 1"},
    {kv_heads_too_many, -EINVAL, "has 2 entries for 1 layers"},
    {key_length_17, -EINVAL, "rotary dimension 17"},
    {key_length_32, -EINVAL, "'blk.0.attn_q.weight' has the shape"},
    {value_length_8, -ENOTSUP, "'llama.attention.value_length' is 8"},
    {no_eps, -EINVAL, "'llama.attention.layer_norm_rms_epsilon' is missing"},
    {eps_negative, -EINVAL, "'llama.attention.layer_norm_rms_epsilon' is -1e-05"},
    {eps_nan, -EINVAL, "'llama.attention.layer_norm_rms_epsilon' is "},
    {eps_integer, -EINVAL, "'llama.attention.layer_norm_rms_epsilon' is of type u32"},
    {scale_0, -EINVAL, "'llama.attention.scale' is 0"},
    {vocab_size_9, -EINVAL, "'llama.vocab_size' is 9"},
    {experts, -ENOTSUP, "'llama.expert_count' is 8"},
    {parallel, -ENOTSUP, "'llama.use_parallel_residual' is true"},
    {not_causal, -ENOTSUP, "'llama.attention.causal' is false"},
    {logit_scale, -ENOTSUP, "'llama.logit_scale' is 0.5"},
    {residual_scale, -ENOTSUP, "'llama.residual_scale' is 0.5"},
    {softcap, -ENOTSUP, "'llama.final_logit_softcapping' is 30"},
    {embedding_gone, -EINVAL, "'token_embd.weight' is missing"},
    {norm_gone, -EINVAL, "'output_norm.weight' is missing"},
    {k_gone, -EINVAL, "'blk.0.attn_k.weight' is missing"},
    {vocab_rows, -EINVAL, "'token_embd.weight' has the shape [64, 9, 1, 1]"},
    {output_rows, -EINVAL, "'output.weight' has the shape [64, 7, 1, 1]"},
    {q_transposed, -EINVAL, "'blk.0.ffn_up.weight' has the shape [96, 64, 1, 1]"},
    {bias_short, -EINVAL, "'blk.0.attn_k.bias' has the shape [31"},
    {norm_f16, -ENOTSUP, "'blk.0.attn_norm.weight' is F16"},
    {three_dimensions, -EINVAL, "'blk.0.attn_q.weight' has the shape [64, 64, 2, 1]"},
    {extra_tensor, -ENOTSUP, "'blk.0.attn_q_norm.weight' has no place"},
    {ffn_bias, -ENOTSUP, "'blk.0.ffn_gate.bias' has no place"},
    {layer_beyond, -ENOTSUP, "'blk.1.attn_q.weight' has no place"},
    {rope_dim_odd, -EINVAL, "rotary dimension 15"},
    {rope_dim_32, -EINVAL, "rotary dimension 32"},
    {rope_dim_0, -EINVAL, "'llama.rope.dimension_count' is 0"},
    {base_0, -EINVAL, "'llama.rope.freq_base' is 0"},
    {base_negative, -EINVAL, "'llama.rope.freq_base' is -10000"},
    {base_inf, -EINVAL, "'llama.rope.freq_base' is inf"},
    {longrope, -ENOTSUP, "'llama.rope.scaling.type' is 'longrope'"},
    {factor_negative, -EINVAL, "'llama.rope.scaling.factor' is -4"},
    {factor_text, -EINVAL, "'llama.rope.scaling.factor' is of type string"},
    {divisors_short, -EINVAL, "'rope_freqs.weight' has the shape [7"},
    {divisors_f16, -ENOTSUP, "'rope_freqs.weight' is F16"},
    {yarn_ext, -ENOTSUP, "'llama.rope.scaling.yarn_ext_factor' is 0.5"},
    {yarn_log, -ENOTSUP, "'llama.rope.scaling.yarn_log_multiplier' is 0.1"},
    {yarn_beta, -EINVAL, "beta_fast 32 is below its beta_slow 64"},
    {yarn_beta_0, -EINVAL, "'llama.rope.scaling.yarn_beta_fast' is 0"},
    {yarn_attn, -EINVAL, "'llama.rope.scaling.attn_factor' is -1"},
    {no_tokenizer, -EINVAL, "'tokenizer.ggml.model' is missing"},
    {tokenizer_bert, -ENOTSUP, "'tokenizer.ggml.model' is 'bert'"},
    {pre_long, -EINVAL, "'tokenizer.ggml.pre' is no name (64 bytes"},
    {no_tokens, -EINVAL, "'tokenizer.ggml.tokens' is missing"},
    {tokens_empty, -EINVAL, "'tokenizer.ggml.tokens' has 0 entries"},
    {tokens_numbers, -EINVAL, "'tokenizer.ggml.tokens' is an array of i32"},
    {types_short, -EINVAL, "'tokenizer.ggml.token_type' has 3 entries"},
    {type_7, -EINVAL, "'tokenizer.ggml.token_type': entry 3 is 7"},
    {types_float, -EINVAL, "'tokenizer.ggml.token_type' is an array of f32"},
    {scores_bytes, -EINVAL, "'tokenizer.ggml.scores' is an array of u8"},
    {score_nan, -EINVAL, "'tokenizer.ggml.scores': entry 2 is no number"},
    {spm_without_scores, -EINVAL, "'tokenizer.ggml.scores' is missing"},
    {no_merges, -EINVAL, "'tokenizer.ggml.merges' is missing"},
    {merge_empty, -EINVAL, "'tokenizer.ggml.merges': entry 1 is ''"},
    {merge_one_part, -EINVAL, "entry 1 is 'ab', not two parts"},
    {merge_no_left, -EINVAL, "entry 1 is ' a', not two parts"},
    {merge_no_right, -EINVAL, "entry 1 is 'a ', not two parts"},
    {merge_left, -EINVAL, "left part of entry 1, 'x c'"},
    {merge_right, -EINVAL, "right part of entry 1, 'ab x'"},
    {merge_result, -EINVAL, "result of entry 1, 'a c'"},
    {bos_8, -EINVAL, "'tokenizer.ggml.bos_token_id' is 8"},
    {eos_max, -EINVAL, "'tokenizer.ggml.eos_token_id' is 4294967295"},
    {eot_minus, -EINVAL, "'tokenizer.ggml.eot_token_id' is -1"},
    {eom_8, -EINVAL, "'tokenizer.ggml.eom_token_id' is 8"},
    {unk_8, -EINVAL, "'tokenizer.ggml.unknown_token_id' is 8"},
    {pad_8, -EINVAL, "'tokenizer.ggml.padding_token_id' is 8"},
    {bos_text, -EINVAL, "'tokenizer.ggml.bos_token_id' is of type string"},
    {add_bos_number, -EINVAL, "'tokenizer.ggml.add_bos_token' is of type u32"},
    {template_number, -EINVAL, "'tokenizer.chat_template' is of type u32"},
};

static const char *scratch_file(void)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/test.gguf", scratch_dir());
    return path;
}

static int open_doc(struct doc *d, struct model **m, struct fail *f)
{
    struct bytes b = doc_bytes(d);
    bytes_save(&b, scratch_file());
    bytes_free(&b);
    return model_open(m, scratch_file(), f);
}

static void the_document_is_right_before_it_is_spoilt(void **state)
{
    (void)state;
    struct doc d;
    struct model *m;
    struct fail f = {0};
    doc_llama(&d);
    if (open_doc(&d, &m, &f) < 0)
        fail_msg("%s", f.text);
    model_close(m);
    doc_free(&d);
}

static void each_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        struct doc d;
        struct model *m = NULL;
        struct fail f = {0};
        doc_llama(&d);
        r->spoil(&d);
        int rc = open_doc(&d, &m, &f);
        if (rc != r->code || f.code != rc)
            fail_msg("code %d where %d was due with '%s' (%s)", rc, r->code, r->place, f.text);
        assert_null(m);
        if (!strstr(f.text, r->place) || !strstr(f.text, "test.gguf: "))
            fail_msg("no '%s' in: %s", r->place, f.text);
        doc_free(&d);
    }
}

/* Divisors that would make frequencies of nothing. */
static void divisors_must_be_positive(void **state)
{
    (void)state;
    static const float bad[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < 4; i++) {
        struct doc d;
        struct model *m;
        struct fail f = {0};
        doc_llama(&d);
        doc_tensor(&d, "rope_freqs.weight", GPU_F32, 8, 1);
        struct bytes b = doc_bytes(&d);
        memcpy(b.at + d.data_at + doc_find_tensor(&d, "rope_freqs.weight")->offset + 12, &bad[i],
               4);
        bytes_save(&b, scratch_file());
        assert_int_equal(model_open(&m, scratch_file(), &f), -EINVAL);
        assert_non_null(strstr(f.text, "'rope_freqs.weight': element 3 is "));
        bytes_free(&b);
        doc_free(&d);
    }
}

/* The vocabulary alone is as strict about what it reads, and silent about the rest. */
static void vocabulary_only(void **state)
{
    (void)state;
    struct doc d;
    struct model *m;
    struct fail f = {0};
    doc_llama(&d);
    merge(&d, "a c");
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, scratch_file());
    assert_int_equal(model_open_vocab(&m, scratch_file(), &f), -EINVAL);
    assert_non_null(strstr(f.text, "result of entry 1"));
    bytes_free(&b);
    doc_free(&d);

    doc_llama(&d);
    doc_u32(&d, "llama.expert_count", 8);
    doc_remove_tensor(&d, "blk.0.attn_q.weight");
    b = doc_bytes(&d);
    bytes_save(&b, scratch_file());
    assert_int_equal(model_open_vocab(&m, scratch_file(), &f), 0);
    model_close(m);
    bytes_free(&b);
    doc_free(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_document_is_right_before_it_is_spoilt),
        cmocka_unit_test(each_is_refused_by_name),
        cmocka_unit_test(divisors_must_be_positive),
        cmocka_unit_test(vocabulary_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
