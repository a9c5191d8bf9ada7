/* test_token_text.c - the engine's stop strings and the client's tokenizer mean the same bytes, for
 * every token of every vocabulary; control tokens have no text.
 */
#include "../../appliance/token_text.h"
#include "../support/support.h"
#include "../support/vocab_image.h"

#include <stdlib.h>
#include <string.h>

static struct llm_vocab *image_of(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "tokenizer/%s.vocab.gguf", name);
    char *file = golden_read(path, NULL);
    struct llm_vocab *image = vocab_image_from_gguf(file);
    free(file);
    return image;
}

/* How many control tokens there were. */
static uint32_t compare(struct llm_vocab *image)
{
    struct token_text t;
    uint32_t controls = 0;
    assert_int_equal(token_text_create(&t, image, image->bytes), 0);
    struct llm_tokenizer *tokenizer = tokenizer_of(image);
    assert_int_equal(t.n, llm_tokenizer_vocab(tokenizer));
    for (int32_t id = 0; id < (int32_t)t.n; id++) {
        const char *want;
        uint32_t bytes;
        const char *got = token_text_of(&t, id, &bytes);
        long n = llm_token_bytes(tokenizer, id, &want);
        if (llm_token_is_control(tokenizer, id)) {
            controls++;
            assert_int_equal(bytes, 0);
            continue;
        }
        if (n != bytes || memcmp(got, want, bytes))
            fail_msg("token %d is '%.*s', not '%.*s'", id, (int)bytes, got, (int)n, want);
    }
    llm_tokenizer_close(tokenizer);
    token_text_destroy(&t);
    return controls;
}

static void every_token_of_every_vocabulary(void **state)
{
    (void)state;
    static const char *const names[] = {"smollm2",     "llama-bpe-small", "qwen2-small",
                                        "gpt-2-small", "deepseek-coder",  "llama-spm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_in_range(compare(image_of(names[i])), 1, 300);
}

/* Fallback bytes, escaped spaces, and what is misspelled. */
static void made_up(void **state)
{
    (void)state;
    static const char *const texts[] = {"<unk>",
                                        "<s>",
                                        "</s>",
                                        "<0x41>",
                                        "<0xfF>",
                                        "<0xZZ>",
                                        "\xe2\x96\x81"
                                        "a\xe2\x96\x81",
                                        "<tool>",
                                        ""};
    static const uint8_t types[] = {2, 3, 1, 6, 6, 6, 1, 4, 1};
    struct vocab_recipe r = {.kind = LLM_VOCAB_SPM,
                             .pre = "default",
                             .n_tokens = 9,
                             .texts = texts,
                             .types = types,
                             .bos = 1,
                             .eos = 2,
                             .unk = 0,
                             .eog = 2};
    assert_int_equal(compare(vocab_image(&r)), 3); /* "</s>" too, whatever its type says */
    struct llm_vocab *image = vocab_image(&r);
    struct token_text t;
    uint32_t bytes;
    assert_int_equal(token_text_create(&t, image, image->bytes), 0);
    assert_int_equal(*token_text_of(&t, 3, &bytes), 'A');
    assert_int_equal(bytes, 1);
    assert_memory_equal(token_text_of(&t, 6, &bytes), " a ", 3);
    assert_int_equal(bytes, 3);
    assert_memory_equal(token_text_of(&t, 7, &bytes), "<tool>", 6);
    token_text_destroy(&t);
    image->n_tokens++;
    assert_int_equal(token_text_create(&t, image, image->bytes), LLM_EPROTO);
    free(image);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_of_every_vocabulary),
        cmocka_unit_test(made_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
