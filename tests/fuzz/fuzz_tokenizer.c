/* fuzz_tokenizer.c - libFuzzer: any bytes become tokens, and the tokens text again.
 *
 *   data[0]  bits 0-1 enum llm_tokenize_flags, bits 2-6 enum llm_detok_flags
 *   data[1]  which vocabulary
 *   data[2]  room for the detokenizer, so that it must refuse now and then
 *   rest     the text
 *
 * Build: clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -Ishm
 *        tests/fuzz/fuzz_tokenizer.c tests/support/vocab_image.c tests/support/support.c
 *        client/[a-z]*.c client/text/[a-z]*.c shm/[a-z]*.c
 *        -lpcre2-8 -lutf8proc -lmsgpackc -lcmocka -ljansson -lz -lm
 * Run where tests/golden is, or with GOLDEN_DIR: ./fuzz_tokenizer -max_len=4096 corpus/
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/text/utf8.h"
#include "../support/support.h"
#include "../support/vocab_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARIES = 6 };

static void demand(bool condition)
{
    if (!condition)
        abort();
}

static const struct llm_tokenizer *vocabulary(unsigned i)
{
    static const char *const names[VOCABULARIES] = {
        "smollm2", "llama-bpe-small", "qwen2-small", "gpt-2-small", "llama-spm", "deepseek-coder"};
    static struct llm_tokenizer *open[VOCABULARIES];
    i %= VOCABULARIES;
    if (!open[i])
        open[i] = golden_tokenizer(names[i]);
    return open[i];
}

static bool well_formed(const char *text, size_t bytes)
{
    unsigned used;
    for (size_t i = 0; i < bytes; i += used)
        if (utf8_decode(text + i, bytes - i, &used) < 0)
            return false;
    return true;
}

/* One call's result; what did not fit is fetched with more room. */
static size_t take(struct llm_detokenizer *d, long got, char *out, size_t size)
{
    if (got == -ENOBUFS)
        got = llm_detokenize_flush(d, out, size);
    demand(got >= 0 && (size_t)got <= size);
    return (size_t)got;
}

static void detokenize(const struct llm_tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
                       size_t room)
{
    static char out[1 << 16];
    struct llm_detokenizer *d;
    bool whole = flags & (LLM_DETOK_UTF8 | LLM_DETOK_WORDS | LLM_DETOK_SENTENCES);
    demand(llm_detokenizer_open(&d, t, flags) == 0);
    for (size_t i = 0; i <= n; i++) {
        long got =
            i < n ? llm_detokenize(d, ids[i], out, room) : llm_detokenize_flush(d, out, room);
        size_t bytes = take(d, got, out, sizeof out);
        demand(!whole || well_formed(out, bytes));
    }
    llm_detokenizer_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3)
        return 0;
    const struct llm_tokenizer *t = vocabulary(data[1]);
    const char *text = (const char *)data + 3;
    size_t bytes = size - 3, room = 3 * bytes + 16;
    int32_t *ids = malloc(room * sizeof *ids);
    long n = llm_tokenize(t, text, bytes, data[0] & 3, ids, room);
    demand(n >= 0 && (size_t)n <= room && n == llm_tokenize(t, text, bytes, data[0] & 3, NULL, 0));
    for (long i = 0; i < n; i++)
        demand(ids[i] >= 0 && (uint32_t)ids[i] < llm_tokenizer_vocab(t));
    detokenize(t, ids, (size_t)n, data[0] >> 2 & 31, data[2]);
    free(ids);
    return 0;
}
