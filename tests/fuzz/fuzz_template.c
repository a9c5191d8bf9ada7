/* fuzz_template.c - libFuzzer: any bytes as a chat template, and after a NUL as its input. It is
 * refused with a message, or renders to well-formed text; the same again the second time.
 *
 *     TEMPLATE \0 JSON        without a NUL the input is a small conversation
 *
 * Build: as fuzz_gguf.c.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/llm_template.h"
#include "../../client/text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi \u00e9\"}, {\"role\": \"assistant\", "
    "\"content\": null, \"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": "
    "[2.5, true, \"x\"]}}]}], \"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"now\": "
    "\"2030-01-02 03:04:05\", \"s\": \"Hello World\", \"lst\": [3, 1, 2], \"d\": {\"b\": 1, "
    "\"a\": {\"x\": [1]}}}";

static void demand(int condition)
{
    if (!condition)
        abort();
}

static void check_text(const char *text, size_t bytes)
{
    unsigned n;
    for (size_t i = 0; i < bytes; i += n)
        demand(utf8_decode(text + i, bytes - i, &n) >= 0);
    demand(text[bytes] == 0);
}

static int render(const struct llm_template *t, const char *input, size_t bytes, char **text,
                  size_t *text_bytes)
{
    struct llm_template_limits limits = {sizeof limits, 600, 300000, 32 << 20, 1 << 20};
    char why[200];
    int rc = llm_template_render(t, input, bytes, &limits, text, text_bytes, why, sizeof why);
    demand(rc == 0 ? *text != NULL : *text == NULL && *why);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *source = (const char *)data, *input = conversation;
    size_t source_bytes = size, input_bytes = sizeof conversation - 1;
    const char *nul = size ? memchr(source, '\0', size) : NULL;
    if (nul) {
        source_bytes = (size_t)(nul - source);
        input = nul + 1;
        input_bytes = size - source_bytes - 1;
    }
    struct llm_template *t;
    char why[200], *text, *again;
    size_t bytes, again_bytes;
    if (llm_template_parse(&t, source, source_bytes, why, sizeof why) < 0) {
        demand(!t && *why);
        return 0;
    }
    int rc = render(t, input, input_bytes, &text, &bytes);
    demand(render(t, input, input_bytes, &again, &again_bytes) == rc);
    if (rc == 0)
        check_text(text, bytes);
    llm_template_free_text(text);
    llm_template_free_text(again);
    llm_template_free(t);
    return 0;
}
