/* Every allocation of the tokenizer and the detokenizer fails once: the call says -ENOMEM, nothing
 * leaks, and what is open works on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"
#include "../support/vocab_image.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

/* glibc lets a program stand in front of malloc; sanitizers do it themselves. */
static long fails_in; /* the allocation that fails; 0: none */
static long live;     /* blocks */

#ifndef SANITIZED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *at, size_t bytes);
void __libc_free(void *at);

static bool refuses(void)
{
    return fails_in && --fails_in == 0;
}

void *malloc(size_t bytes)
{
    void *at = refuses() ? NULL : __libc_malloc(bytes);
    live += at != NULL;
    return at;
}

void *calloc(size_t n, size_t bytes)
{
    void *at = refuses() ? NULL : __libc_calloc(n, bytes);
    live += at != NULL;
    return at;
}

void *realloc(void *from, size_t bytes)
{
    void *at = refuses() ? NULL : __libc_realloc(from, bytes);
    live += at && !from;
    return at;
}

void free(void *at)
{
    live -= at != NULL;
    __libc_free(at);
}
#endif

static const char *const bpe_texts[] = {"a", "b", "ab", "\u0120", "<s>", "</s>"};
static const char *const spm_texts[] = {"<unk>", "a", "\u2581", "\u2581a", "b", "<s>"};
static const uint8_t bpe_types[] = {1, 1, 1, 1, 3, 4}, spm_types[] = {2, 1, 1, 1, 1, 3};
static const char *const merges[] = {"a b"};

static struct llm_vocab *image_of(bool spm)
{
    struct vocab_recipe r = {.kind = spm ? LLM_VOCAB_SPM : LLM_VOCAB_BPE, .pre = "qwen2"};
    r.n_tokens = 6, r.texts = spm ? spm_texts : bpe_texts, r.types = spm ? spm_types : bpe_types;
    r.n_merges = spm ? 0 : 1, r.merges = merges;
    r.flags = LLM_VOCAB_SPACE_PREFIX;
    r.bos = r.eos = r.eog = r.unk = -1;
    return vocab_image(&r);
}

/* Ill-formed, composable, with a word that outgrows the first reserve. */
static size_t make_text(char *text)
{
    strcpy(text, "ab \xff e\u0323\u0301\u0323 <s> ");
    size_t bytes = strlen(text);
    memset(text + bytes, 'a', 2000);
    return bytes + 2000;
}

/* Fails the 1st, 2nd, ... allocation of `attempt` until it runs through. It returns what the call
 * under test returned; what it opened it has closed. */
static void fail_each(long (*attempt)(void *context), void *context)
{
    long failures = 0;
    for (long nth = 1;; nth++) {
        long before = live, rc;
        fails_in = nth;
        rc = attempt(context);
        bool through = fails_in != 0;
        fails_in = 0;
        assert_int_equal(live, before);
        if (through) {
            assert_true(rc >= 0);
            break;
        }
        assert_true(rc >= 0 || rc == -ENOMEM); /* PCRE2's compiler to machine code may do without */
        failures += rc == -ENOMEM;
    }
#ifndef SANITIZED
    assert_true(failures > 0);
#endif
}

static long try_open(void *context)
{
    const struct llm_vocab *image = context;
    struct llm_tokenizer *t;
    int rc = llm_tokenizer_open_image(&t, image, image->bytes, NULL, 0);
    assert_true((rc == 0) == (t != NULL));
    llm_tokenizer_close(t);
    return rc;
}

static void opening(void **state)
{
    (void)state;
    for (int spm = 0; spm < 2; spm++) {
        struct llm_vocab *image = image_of(spm);
        fail_each(try_open, image);
        free(image);
    }
}

static long try_tokenize(void *context)
{
    char text[2100];
    return llm_tokenize(context, text, make_text(text), 3, NULL, 0);
}

static void tokenizing(void **state)
{
    (void)state;
    for (int spm = 0; spm < 2; spm++) {
        struct llm_tokenizer *t = tokenizer_of(image_of(spm));
        long whole = try_tokenize(t);
        fail_each(try_tokenize, t);
        assert_int_equal(try_tokenize(t), whole);
        llm_tokenizer_close(t);
    }
}

static long try_detokenize(void *context)
{
    struct llm_detokenizer *d;
    char out[8];
    long rc = llm_detokenizer_open(&d, context, LLM_DETOK_SENTENCES | LLM_DETOK_SHOW_SPECIAL);
    for (int i = 0; i < 500 && rc >= 0; i++)
        rc = llm_detokenize(d, 1, out, sizeof out);
    llm_detokenizer_close(d);
    return rc;
}

static void detokenizing(void **state)
{
    (void)state;
    struct llm_tokenizer *t = tokenizer_of(image_of(true));
    fail_each(try_detokenize, t);
    llm_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(tokenizing),
        cmocka_unit_test(detokenizing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
