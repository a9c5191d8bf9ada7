/* llm_template.h - chat templates: from messages to the prompt text that a model was trained on.
 *
 *     #include <llm_template.h>
 *     #include <stdio.h>
 *     #include <string.h>
 *
 *     int main(void)
 *     {
 *         static const char source[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n"
 *                                      "{% endfor %}<bot>";
 *         static const char input[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";
 *         struct llm_template *t;
 *         char why[512], *text;
 *         size_t bytes;
 *         if (llm_template_parse(&t, source, strlen(source), why, sizeof why) < 0 ||
 *             llm_template_render(t, input, strlen(input), NULL, &text, &bytes, why, sizeof why) < 0)
 *             return fprintf(stderr, "%s\n", why), 1;
 *         fwrite(text, 1, bytes, stdout);
 *         llm_template_free_text(text);
 *         llm_template_free(t);
 *     }
 *
 * The language is Jinja2 3.1 as chat templates are rendered with: the immutable sandbox,
 * trim_blocks and lstrip_blocks on, the loop controls `break` and `continue`, `generation` blocks,
 * the filter `tojson` of plain JSON (ensure_ascii, indent, separators, sort_keys), and the
 * functions raise_exception and strftime_now. Including, importing or extending other templates is
 * an error where it is reached. A template can read its input and make text; it can do nothing
 * else.
 *
 * The input is a JSON object whose members are the template's variables. These are checked:
 *
 * - messages: an array; must be there
 * - tools, documents: an array of objects, or null; null if absent
 * - add_generation_prompt: a boolean; false if absent
 * - bos_token, eos_token, pad_token, unk_token, sep_token, cls_token, mask_token: a string, or null
 * - now: "YYYY-MM-DD HH:MM:SS", what strftime_now sees in place of the clock; it is no variable
 *
 * All others are free. Objects keep the order of their members; integers of any length stay exact.
 * Every text is UTF-8; an ill-formed template or input is refused, and so are halves of surrogate
 * pairs. Not there: bytes (str.encode) and escapes by character name.
 *
 * Threads: a parsed template is never written again, so that many threads may render it at once.
 * Nothing here blocks or reads files, but for the local time zone where strftime_now needs it.
 */
#ifndef LLM_TEMPLATE_H
#define LLM_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef LLM_API
#define LLM_API __attribute__((visibility("default")))
#endif

struct llm_template;

/* Failures. With each comes one sentence in `why`, NUL-terminated and cut to fit, that names the
 * line of the template and the construct. -ENOMEM and -EINVAL (a NULL argument, a wrong
 * limits->size) are possible too. */
enum llm_template_error {
    /* the template is not well-formed */
    LLM_TEMPLATE_ESYNTAX = -3001,
    /* the input is not such a JSON object */
    LLM_TEMPLATE_EINPUT = -3002,
    /* the template called raise_exception; `why` ends in its message */
    LLM_TEMPLATE_ERAISED = -3003,
    /* an operation failed: a wrong type, an undefined value, ... */
    LLM_TEMPLATE_EFAILED = -3004,
    /* the template wanted more than the limits allow */
    LLM_TEMPLATE_ELIMIT = -3005
};

/* What one rendering may use; 0 means the default. */
struct llm_template_limits {
    uint32_t size; /* sizeof(struct llm_template_limits) */
    /* nesting of evaluation, macro calls included: 1200, for which 1 MiB of stack is enough */
    uint32_t max_depth;
    uint64_t max_steps; /* expressions, iterations, and text handled per 256 bytes: 20 million */
    size_t max_memory_bytes; /* values in use: 256 MiB */
    size_t max_output_bytes; /* 64 MiB */
};
#define LLM_TEMPLATE_LIMITS_INIT                                                                   \
    {                                                                                              \
        sizeof(struct llm_template_limits), 0, 0, 0, 0                                             \
    }

/* Parses a template of at most 4 MiB. 0, or a negative code and *out is NULL. `why` may be NULL. */
LLM_API int llm_template_parse(struct llm_template **out, const char *source, size_t bytes,
                               char *why, size_t why_size);

/* Renders it. On success 0, and *out is malloc'ed text of *out_bytes bytes with a NUL behind, for
 * llm_template_free_text; else a negative code and *out is NULL. `limits` and `why` may be NULL. */
LLM_API int llm_template_render(const struct llm_template *t, const char *input_json, size_t bytes,
                                const struct llm_template_limits *limits, char **out,
                                size_t *out_bytes, char *why, size_t why_size);

LLM_API void llm_template_free_text(char *text);

/* NULL is allowed. */
LLM_API void llm_template_free(struct llm_template *t);

#ifdef __cplusplus
}
#endif

#endif
