/* fuzz_vocab_image.c - libFuzzer: a vocabulary image with some bytes changed is refused, or makes a
 * tokenizer that works.
 *
 *   data[0]      which image is the base: BPE or SPM
 *   then triples offset (u16, little-endian, modulo the image), value: bytes to be put there
 *
 * Build: as fuzz_tokenizer.c.
 */
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"
#include "../support/vocab_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct llm_vocab *base_image(bool spm)
{
    static const char *const bpe_texts[] = {"a", "b", "ab", "\u0120", "\u0120a", "<s>", "</s>"};
    static const char *const spm_texts[] = {"<unk>",  "a", "\u2581", "\u2581a",
                                            "<0x0A>", "b", "<s>"};
    static const uint8_t bpe_types[] = {1, 1, 1, 1, 1, 3, 4}, spm_types[] = {2, 1, 1, 1, 6, 5, 3};
    static const float scores[] = {0, -1, -2, -3, 0, 1, 0};
    static const char *const merges[] = {"a b", "\u0120 a"};
    struct vocab_recipe r = {.kind = spm ? LLM_VOCAB_SPM : LLM_VOCAB_BPE,
                             .pre = "qwen2",
                             .flags = LLM_VOCAB_ADD_BOS,
                             .n_tokens = 7,
                             .texts = spm ? spm_texts : bpe_texts,
                             .types = spm ? spm_types : bpe_types,
                             .scores = spm ? scores : NULL,
                             .n_merges = spm ? 0 : 2,
                             .merges = merges,
                             .bos = spm ? 6 : 5,
                             .eos = -1,
                             .unk = spm ? 0 : -1,
                             .eog = 6};
    return vocab_image(&r);
}

static void use(const struct llm_tokenizer *t)
{
    static const char text[] = " ab a<s></s>\n\xff\u00e9";
    int32_t ids[128];
    char out[4096];
    struct llm_detokenizer *d;
    long n = llm_tokenize(t, text, sizeof text, 3, ids, 128);
    if (n < 0 || llm_detokenizer_open(&d, t, LLM_DETOK_SENTENCES) < 0)
        abort();
    for (long i = 0; i < n && i < 128; i++)
        if (ids[i] < 0 || llm_detokenize(d, ids[i], out, sizeof out) < 0)
            abort();
    llm_detokenizer_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct llm_vocab *image = base_image(data[0] & 1);
    size_t bytes = image->bytes;
    for (size_t i = 1; i + 3 <= size; i += 3)
        ((uint8_t *)image)[(data[i] | data[i + 1] << 8) % bytes] = data[i + 2];
    struct llm_tokenizer *t;
    char why[128];
    if (llm_tokenizer_open_image(&t, image, bytes, why, sizeof why) == 0) {
        use(t);
        llm_tokenizer_close(t);
    }
    free(image);
    return 0;
}
