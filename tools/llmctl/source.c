/* source.c - where prompts come from: ids on the command line, files of ids, text. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llmctl.h"

char *ctl_read_file(const char *path, size_t *bytes)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f) {
        ctl_error("cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    char *data = NULL;
    size_t n = 0, room = 0;
    for (;;) {
        if (room - n < 2) {
            size_t more = room ? room * 2 : 65536;
            char *grown = realloc(data, more);
            if (!grown)
                goto out_of_memory;
            data = grown;
            room = more;
        }
        size_t got = fread(data + n, 1, room - n - 1, f);
        n += got;
        if (!got)
            break;
    }
    if (ferror(f)) {
        ctl_error("cannot read %s: %s", path, strerror(errno));
        goto fail;
    }
    if (f != stdin)
        fclose(f);
    data[n] = 0;
    *bytes = n;
    return data;

out_of_memory:
    ctl_error("%s does not fit into memory", path);
fail:
    if (f != stdin)
        fclose(f);
    free(data);
    return NULL;
}

int ctl_tokens_from_json(const json_t *array, struct ctl_tokens *out)
{
    if (!json_is_array(array))
        return ctl_error("token ids must be a JSON array of whole numbers");
    size_t n = json_array_size(array);
    int32_t *ids = malloc((n ? n : 1) * sizeof *ids);
    if (!ids)
        return ctl_error("out of memory for %zu token ids", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (!json_is_integer(v) || id < INT32_MIN || id > INT32_MAX) {
            free(ids);
            return ctl_error("token %zu of the array is not a 32-bit whole number", i);
        }
        ids[i] = (int32_t)id;
    }
    *out = (struct ctl_tokens){ids, n};
    return 0;
}

int ctl_tokens_from_text(const char *text, struct ctl_tokens *out)
{
    json_error_t error;
    size_t bytes = strlen(text) + 3;
    char *wrapped = malloc(bytes);
    if (!wrapped)
        return ctl_error("out of memory for the token ids");
    bool bare = !strchr(text, '[');
    snprintf(wrapped, bytes, bare ? "[%s]" : "%s", text);
    json_t *array = json_loads(wrapped, 0, &error);
    free(wrapped);
    if (!array)
        return ctl_usage("\"%.40s\" is no list of token ids, write 1,2,3", text);
    int rc = ctl_tokens_from_json(array, out);
    json_decref(array);
    return rc ? 2 : 0;
}

static int tokens_from_binary(const char *path, const char *data, size_t bytes,
                              struct ctl_tokens *out)
{
    if (bytes % 4)
        return ctl_error("%s: %zu bytes are not a whole number of int32", path, bytes);
    int32_t *ids = malloc(bytes ? bytes : 4);
    if (!ids)
        return ctl_error("out of memory for %zu token ids", bytes / 4);
    memcpy(ids, data, bytes); /* little endian, as this machine */
    *out = (struct ctl_tokens){ids, bytes / 4};
    return 0;
}

int ctl_tokens_from_file(const char *path, struct ctl_tokens *out)
{
    size_t bytes, length = strlen(path);
    char *data = ctl_read_file(path, &bytes);
    if (!data)
        return 1;
    int rc;
    if (length >= 4 && !strcmp(path + length - 4, ".bin")) {
        rc = tokens_from_binary(path, data, bytes, out);
    } else {
        json_error_t error;
        json_t *array = json_loadb(data, bytes, 0, &error);
        rc = array ? ctl_tokens_from_json(array, out)
                   : ctl_error("%s:%d:%d: no JSON array of token ids: %s", path, error.line,
                               error.column, error.text);
        json_decref(array);
    }
    free(data);
    return rc;
}

int ctl_tokens_from_prompt(struct llm_tokenizer *t, const char *text, size_t bytes, unsigned flags,
                           struct ctl_tokens *out)
{
    long n = llm_tokenize(t, text, bytes, flags, NULL, 0);
    if (n < 0)
        return ctl_error("cannot tokenize the text: %s", llm_strerror((int)n));
    int32_t *ids = malloc((n ? (size_t)n : 1) * sizeof *ids);
    if (!ids)
        return ctl_error("out of memory for %ld token ids", n);
    n = llm_tokenize(t, text, bytes, flags, ids, (size_t)n);
    if (n < 0) {
        free(ids);
        return ctl_error("cannot tokenize the text: %s", llm_strerror((int)n));
    }
    *out = (struct ctl_tokens){ids, (size_t)n};
    return 0;
}

/* ---- one source of several ---- */

const char prompt_source_help[] =
    "  TEXT, --prompt TEXT   text, tokenized with the engine's vocabulary\n"
    "  --prompt-file FILE    the exact bytes of a file (- is standard input)\n"
    "  --tokens 1,2,3        token ids, used exactly\n"
    "  --tokens-file FILE    a JSON array of ids, or raw little-endian int32 (.bin)\n";

static int sources(const struct prompt_source *s)
{
    return !!s->tokens + !!s->tokens_file + !!s->prompt_file + !!s->text;
}

bool prompt_given(const struct prompt_source *s)
{
    return sources(s) > 0;
}

bool prompt_is_text(const struct prompt_source *s)
{
    return s->text || s->prompt_file;
}

int prompt_check(const struct prompt_source *s, bool needed)
{
    int n = sources(s);
    if (n > 1)
        return ctl_usage("give one source of the prompt, not %d", n);
    if (!n && needed)
        return ctl_usage("what is the prompt? TEXT, --prompt-file, --tokens or --tokens-file");
    return 0;
}

int prompt_tokens(const struct prompt_source *s, struct llm_tokenizer *t, unsigned flags,
                  struct ctl_tokens *out)
{
    *out = (struct ctl_tokens){NULL, 0};
    if (s->tokens)
        return ctl_tokens_from_text(s->tokens, out);
    if (s->tokens_file)
        return ctl_tokens_from_file(s->tokens_file, out);
    if (s->text)
        return ctl_tokens_from_prompt(t, s->text, strlen(s->text), flags, out);
    if (!s->prompt_file)
        return 0;
    size_t bytes;
    char *text = ctl_read_file(s->prompt_file, &bytes);
    int rc = text ? ctl_tokens_from_prompt(t, text, bytes, flags, out) : 1;
    free(text);
    return rc;
}

int32_t prompt_first_token(const struct llm_tokenizer *t)
{
    int32_t token[2];
    long plain = llm_tokenize(t, "a", 1, 0, token, 1);
    int32_t first = token[0];
    long all = llm_tokenize(t, "a", 1, LLM_TOKENIZE_ADD_SPECIAL, token, 1);
    return plain > 0 && all > plain && token[0] != first ? token[0] : -1;
}
