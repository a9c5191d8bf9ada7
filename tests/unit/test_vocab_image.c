/* test_vocab_image.c - the vocabulary image holds what the model file holds; an image that is wrong
 * in one place is refused; and an image that llm_vocab_check accepts can be walked from end to end,
 * whatever was done to it.
 */
#include "../../appliance/model/model.h" /* before cmocka.h, which makes a macro of fail */

#include "../support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/vocab.h"
#include "gguf_doc.h"

struct image {
    uint8_t *at;
    size_t bytes;
};

static struct llm_vocab *header(struct image *i)
{
    return (struct llm_vocab *)i->at;
}

static struct model *open_vocab(const char *path)
{
    struct fail f = {0};
    struct model *m;
    if (model_open_vocab(&m, path, &f) < 0)
        fail_msg("%s", f.text);
    return m;
}

static struct image image_of(const struct model *m)
{
    struct fail f = {0};
    struct image i;
    if (model_vocab_image(m, (void **)&i.at, &i.bytes, &f) < 0)
        fail_msg("%s", f.text);
    return i;
}

/* A SentencePiece vocabulary with everything in it: scores, types, a template. */
static struct model *spm_model(void)
{
    static const char *const tokens[] = {"<unk>", "<s>", "</s>", "<0x0A>", "\xe2\x96\x81z", ""};
    static const int32_t types[] = {2, 3, 3, 6, 1, 1};
    static const float scores[] = {0, 0, 0, 0, -1.5f, -INFINITY};
    char path[512];
    struct doc d;
    snprintf(path, sizeof path, "%s/spm.gguf", scratch_dir());
    doc_init(&d);
    doc_text(&d, "general.name", "spm");
    doc_text(&d, "tokenizer.ggml.model", "llama");
    doc_texts(&d, "tokenizer.ggml.tokens", tokens, 6);
    doc_array(&d, "tokenizer.ggml.token_type", 5, types, 6, 4);
    doc_array(&d, "tokenizer.ggml.scores", 6, scores, 6, 4);
    doc_u32(&d, "tokenizer.ggml.bos_token_id", 1);
    doc_u32(&d, "tokenizer.ggml.eos_token_id", 2);
    doc_u32(&d, "tokenizer.ggml.unknown_token_id", 0);
    doc_u32(&d, "tokenizer.ggml.eot_token_id", 3);
    doc_u32(&d, "tokenizer.ggml.eom_token_id", 4);
    doc_u32(&d, "tokenizer.ggml.padding_token_id", 5);
    doc_text(&d, "tokenizer.chat_template", "{{ x }}");
    struct bytes b = doc_bytes(&d);
    bytes_save(&b, path);
    bytes_free(&b);
    doc_free(&d);
    return open_vocab(path);
}

/* ---- round trip ---- */

static void compare_texts(struct image *i, uint64_t ends, uint64_t strings,
                          const struct model_text *texts, uint32_t n)
{
    const uint32_t *end = (const uint32_t *)(i->at + ends);
    uint32_t before = 0;
    for (uint32_t t = 0; t < n; t++) {
        assert_int_equal(end[t] - before, texts[t].bytes);
        assert_memory_equal(i->at + strings + before, texts[t].at, texts[t].bytes);
        before = end[t];
    }
}

static void compare(struct image *i, const struct model *m)
{
    const struct model_vocab *v = &m->vocab;
    const struct llm_vocab *h = header(i);
    assert_int_equal(llm_vocab_check(i->at, i->bytes), 0);
    assert_int_equal(h->bytes, i->bytes);
    assert_int_equal(h->kind, v->tokenizer == MODEL_TOKENIZER_BPE ? LLM_VOCAB_BPE : LLM_VOCAB_SPM);
    assert_int_equal(h->n_tokens, v->n_tokens);
    assert_int_equal(h->n_merges, v->n_merges);
    assert_string_equal(h->pre, v->pre);
    assert_string_equal(h->model, m->name);
    const int32_t got[] = {h->bos, h->eos, h->eot, h->eom, h->unk, h->pad};
    const int32_t want[] = {v->bos, v->eos, v->eot, v->eom, v->unk, v->pad};
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(h->flags, v->add_bos * LLM_VOCAB_ADD_BOS + v->add_eos * LLM_VOCAB_ADD_EOS +
                                   v->add_space_prefix * LLM_VOCAB_SPACE_PREFIX);
    compare_texts(i, h->text_end_off, h->strings_off, v->texts, v->n_tokens);
    compare_texts(i, h->merge_end_off, h->merge_strings_off, v->merges, v->n_merges);
    assert_memory_equal(i->at + h->types_off, v->types, v->n_tokens);
    assert_int_equal(h->n_eog, v->n_eog);
    assert_memory_equal(i->at + h->eog_off, v->eog, v->n_eog * 4);
    assert_int_equal(h->template_bytes, v->chat_template.bytes);
    assert_memory_equal(i->at + h->template_off, v->chat_template.at, v->chat_template.bytes);
    assert_int_equal(h->scores_off != 0, v->scores != NULL);
    if (v->scores)
        assert_memory_equal(i->at + h->scores_off, v->scores, v->n_tokens * 4);
}

static void round_trip(void **state)
{
    (void)state;
    struct model *models[] = {open_vocab(golden_path("tiny_gguf/llama.Q4_0.gguf")), spm_model()};
    for (int k = 0; k < 2; k++) {
        struct image first = image_of(models[k]), second = image_of(models[k]);
        compare(&first, models[k]);
        assert_int_equal(first.bytes, second.bytes);
        assert_memory_equal(first.at, second.at, first.bytes); /* the same bytes each time */
        free(first.at);
        free(second.at);
        model_close(models[k]);
    }
}

/* ---- one fault each ---- */

typedef void spoil(struct image *i);

#define SPOIL(name, statement)                                                                     \
    static void name(struct image *i)                                                              \
    {                                                                                              \
        struct llm_vocab *h = header(i);                                                           \
        statement;                                                                                 \
    }

SPOIL(bad_magic, h->magic++)
SPOIL(bad_version, h->version = 2)
SPOIL(bad_kind, h->kind = 3)
SPOIL(kind_0, h->kind = 0)
SPOIL(longer_than_it_is, h->bytes += 8)
SPOIL(shorter_than_its_sections, h->bytes -= 8)
SPOIL(bytes_max, h->bytes = UINT64_MAX)
SPOIL(no_tokens, h->n_tokens = 0)
SPOIL(nothing_at_all, (h->n_tokens = h->n_eog = h->n_merges = 0,
                       h->bos = h->eos = h->eot = h->eom = h->unk = h->pad = -1))
SPOIL(tokens_more, h->n_tokens += 64)
SPOIL(tokens_2_30, h->n_tokens = 1u << 30)
SPOIL(tokens_max, h->n_tokens = UINT32_MAX)
SPOIL(merges_max, h->n_merges = UINT32_MAX)
SPOIL(eog_max, h->n_eog = UINT32_MAX)
SPOIL(unknown_flag, h->flags |= 8)
SPOIL(bos_out, h->bos = (int32_t)h->n_tokens)
SPOIL(eos_out, h->eos = INT32_MAX)
SPOIL(eot_out, h->eot = -2)
SPOIL(eom_out, h->eom = INT32_MIN)
SPOIL(unk_out, h->unk = (int32_t)h->n_tokens)
SPOIL(pad_out, h->pad = (int32_t)h->n_tokens)
SPOIL(pre_endless, memset(h->pre, 'x', sizeof h->pre))
SPOIL(model_endless, memset(h->model, 'x', sizeof h->model))
SPOIL(ends_in_header, h->text_end_off = 64)
SPOIL(ends_unaligned, h->text_end_off += 4)
SPOIL(ends_beyond, h->text_end_off = h->bytes)
SPOIL(ends_wrap, h->text_end_off = UINT64_MAX - 7)
SPOIL(ends_none, h->text_end_off = 0)
SPOIL(types_before_ends, h->types_off = h->text_end_off)
SPOIL(types_none, h->types_off = 0)
SPOIL(scores_on_types, h->scores_off = h->types_off)
SPOIL(scores_wrap, h->scores_off = UINT64_MAX - 7)
SPOIL(eog_none, h->eog_off = 0)
SPOIL(strings_short, h->strings_bytes -= 1)
SPOIL(strings_none, h->strings_bytes = 0)
SPOIL(strings_max, h->strings_bytes = UINT64_MAX)
SPOIL(strings_none_at_all, (h->strings_bytes = 0, h->strings_off = 0))
SPOIL(template_long, h->template_bytes += 4096)
SPOIL(template_wraps, h->template_bytes = UINT64_MAX)
SPOIL(template_beyond, h->template_off = UINT64_MAX - 7)
SPOIL(first_end_late, ((uint32_t *)(i->at + h->text_end_off))[0] = 2000000000)
SPOIL(end_falls, ((uint32_t *)(i->at + h->text_end_off))[3] = 1)
SPOIL(last_end_late, ((uint32_t *)(i->at + h->text_end_off))[h->n_tokens - 1] += 1)
SPOIL(type_0, i->at[h->types_off] = 0)
SPOIL(type_7, i->at[h->types_off + h->n_tokens - 1] = 7)
SPOIL(eog_negative, ((int32_t *)(i->at + h->eog_off))[0] = -1)
SPOIL(eog_beyond, ((int32_t *)(i->at + h->eog_off))[h->n_eog - 1] = (int32_t)h->n_tokens)

/* of the BPE image only */
SPOIL(eog_twice, ((int32_t *)(i->at + h->eog_off))[0] = ((int32_t *)(i->at + h->eog_off))[1])
SPOIL(merge_end_falls, ((uint32_t *)(i->at + h->merge_end_off))[3] = 0)
SPOIL(merge_without_space, i->at[h->merge_strings_off + 2] = 'x')
SPOIL(merge_strings_short, h->merge_strings_bytes -= 1)
SPOIL(merge_ends_none, h->merge_end_off = 0)
/* of the SPM image only */
SPOIL(score_nan, ((float *)(i->at + h->scores_off))[5] = (float)NAN)

static struct image copy_of(const struct image *i)
{
    struct image c = {malloc(i->bytes), i->bytes}; /* exact, so that ASan sees a byte too far */
    memcpy(c.at, i->at, i->bytes);
    return c;
}

static void expect_all_refused(const struct image *good, spoil *const *spoils, size_t n)
{
    for (size_t s = 0; s < n; s++) {
        struct image i = copy_of(good);
        assert_int_equal(llm_vocab_check(i.at, i.bytes), 0);
        spoils[s](&i);
        if (llm_vocab_check(i.at, i.bytes) != LLM_EPROTO)
            fail_msg("fault %zu was accepted", s);
        free(i.at);
    }
}

static void each_fault_is_refused(void **state)
{
    (void)state;
    static spoil *const both[] = {
        bad_magic,
        bad_version,
        bad_kind,
        kind_0,
        longer_than_it_is,
        shorter_than_its_sections,
        bytes_max,
        no_tokens,
        nothing_at_all,
        tokens_more,
        tokens_2_30,
        tokens_max,
        merges_max,
        eog_max,
        unknown_flag,
        bos_out,
        eos_out,
        eot_out,
        eom_out,
        unk_out,
        pad_out,
        pre_endless,
        model_endless,
        ends_in_header,
        ends_unaligned,
        ends_beyond,
        ends_wrap,
        ends_none,
        types_before_ends,
        types_none,
        scores_on_types,
        scores_wrap,
        eog_none,
        strings_short,
        strings_none,
        strings_max,
        strings_none_at_all,
        template_long,
        template_wraps,
        template_beyond,
        first_end_late,
        end_falls,
        last_end_late,
        type_0,
        type_7,
        eog_negative,
        eog_beyond,
    };
    static spoil *const bpe[] = {eog_twice, merge_end_falls, merge_without_space,
                                 merge_strings_short, merge_ends_none};
    static spoil *const spm[] = {score_nan};
    struct model *models[] = {open_vocab(golden_path("tiny_gguf/llama.Q4_0.gguf")), spm_model()};
    for (int k = 0; k < 2; k++) {
        struct image good = image_of(models[k]);
        expect_all_refused(&good, both, sizeof both / sizeof both[0]);
        expect_all_refused(&good, k ? spm : bpe,
                           k ? sizeof spm / sizeof spm[0] : sizeof bpe / sizeof bpe[0]);
        free(good.at);
        model_close(models[k]);
    }
}

static void cut_or_misplaced(void **state)
{
    (void)state;
    struct model *m = spm_model();
    struct image good = image_of(m);
    for (size_t n = 0; n < good.bytes; n++) {
        struct image part = {malloc(n ? n : 1), n};
        memcpy(part.at, good.at, n);
        assert_int_equal(llm_vocab_check(part.at, n), LLM_EPROTO);
        free(part.at);
    }
    uint8_t *shifted = malloc(good.bytes + 8);
    memcpy(shifted + 4, good.at, good.bytes);
    assert_int_equal(llm_vocab_check(shifted + 4, good.bytes), LLM_EPROTO);
    assert_int_equal(llm_vocab_check(NULL, good.bytes), LLM_EPROTO);
    free(shifted);
    /* a mapping is longer than the image: whole pages */
    uint8_t *page = calloc(1, good.bytes + 4096);
    memcpy(page, good.at, good.bytes);
    assert_int_equal(llm_vocab_check(page, good.bytes + 4096), 0);
    free(page);
    free(good.at);
    model_close(m);
}

/* ---- corruptions at random ---- */

/* Reads every byte that an accepted image refers to, the way a tokenizer would. */
static uint64_t walk(const struct image *i)
{
    const struct llm_vocab *h = (const struct llm_vocab *)i->at;
    const uint32_t *end = (const uint32_t *)(i->at + h->text_end_off);
    const uint32_t *merge_end = (const uint32_t *)(i->at + h->merge_end_off);
    const int32_t *eog = (const int32_t *)(i->at + h->eog_off);
    uint64_t sum = strlen(h->pre) + strlen(h->model);
    for (uint32_t t = 0; t < h->n_tokens; t++) {
        uint8_t type = i->at[h->types_off + t];
        assert_true(type >= 1 && type <= 6);
        for (uint32_t at = t ? end[t - 1] : 0; at < end[t]; at++)
            sum += i->at[h->strings_off + at];
        if (h->scores_off) {
            float score = ((const float *)(i->at + h->scores_off))[t];
            assert_true(score == score);
        }
    }
    for (uint32_t t = 0; t < h->n_merges; t++) {
        uint32_t from = t ? merge_end[t - 1] : 0, bytes = merge_end[t] - from;
        const char *text = (const char *)i->at + h->merge_strings_off + from;
        const char *space = memchr(text + 1, ' ', bytes - 1);
        assert_non_null(space);
        assert_true(space < text + bytes - 1);
    }
    for (uint32_t t = 0; t < h->n_eog; t++)
        sum += end[eog[t]];
    for (uint64_t t = 0; t < h->template_bytes; t++)
        sum += i->at[h->template_off + t];
    return sum;
}

/* Changes that a check may overlook: small and large steps of one field, bytes, bits, ends. */
static void corrupt(struct image *i, struct rnd *r)
{
    static const uint64_t steps[] = {1, 4, 8, 64, 4096, 1u << 31, 1ull << 32, 1ull << 63};
    size_t word = rnd_below(r, sizeof(struct llm_vocab) / 8) * 8;
    uint64_t v;
    memcpy(&v, i->at + word, 8);
    switch (rnd_below(r, 6)) {
    case 0:
        v += steps[rnd_below(r, 8)];
        break;
    case 1:
        v -= steps[rnd_below(r, 8)];
        break;
    case 2:
        v = (uint64_t)rnd_u32(r) << 32 | rnd_u32(r);
        break;
    case 3:
        v = rnd_below(r, (uint32_t)i->bytes) & ~7u;
        break;
    case 4:
        i->at[rnd_below(r, (uint32_t)i->bytes)] ^= (uint8_t)(1u << rnd_below(r, 8));
        return;
    default:
        i->at[word + rnd_below(r, 8)] = (uint8_t)rnd_u32(r);
        return;
    }
    memcpy(i->at + word, &v, 8);
}

static void whatever_is_accepted_can_be_walked(void **state)
{
    (void)state;
    struct model *models[] = {open_vocab(golden_path("tiny_gguf/llama.Q4_0.gguf")), spm_model()};
    unsigned accepted = 0, refused = 0;
    struct rnd r = {20240817};
    for (int k = 0; k < 2; k++) {
        struct image good = image_of(models[k]);
        walk(&good);
        for (int n = 0; n < 2000; n++) {
            struct image i = copy_of(&good);
            for (uint32_t times = 1 + rnd_below(&r, 3); times; times--)
                corrupt(&i, &r);
            int rc = llm_vocab_check(i.at, i.bytes);
            assert_true(rc == 0 || rc == LLM_EPROTO);
            if (rc == 0)
                walk(&i);
            *(rc ? &refused : &accepted) += 1;
            free(i.at);
        }
        free(good.at);
        model_close(models[k]);
    }
    assert_true(accepted > 100 && refused > 1000); /* the corruptions tell something */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(each_fault_is_refused),
        cmocka_unit_test(cut_or_misplaced),
        cmocka_unit_test(whatever_is_accepted_can_be_walked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
