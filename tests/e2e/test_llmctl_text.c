/* test_llmctl_text.c - `llmctl tokenize` and `detokenize` with --model: the ids and the bytes of
 * the reference data through the command line, over files that hold a vocabulary only, with no
 * engine.
 */
#include "../support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each case is two processes. */
enum { EVERY = 12, EVERY_SANITIZED = 40 };

static const char *scratch_file(const char *name, const void *data, size_t bytes)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_dir(), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
    return path;
}

static char *slurp(const char *path, size_t *bytes)
{
    char *data = malloc(1 << 20);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *bytes = fread(data, 1, 1 << 20, f);
    fclose(f);
    return data;
}

/* Path of the golden vocabulary, unpacked. */
static const char *vocabulary(const char *name)
{
    static char path[512];
    char file[64];
    size_t bytes;
    snprintf(file, sizeof file, "tokenizer/%s.vocab.gguf", name);
    char *data = golden_read(file, &bytes);
    snprintf(file, sizeof file, "%s.gguf", name);
    snprintf(path, sizeof path, "%s", scratch_file(file, data, bytes));
    free(data);
    return path;
}

/* Runs llmctl on an instance that no engine serves; it must succeed. Its output, *bytes long. */
static char *ctl(const char *arguments, size_t *bytes)
{
    char out[512];
    snprintf(out, sizeof out, "%s/out", scratch_dir());
    int status;
    char *said =
        run_command(&status, "'%s' -i nobody %s 2>&1 >'%s'", built("llmctl"), arguments, out);
    if (status || *said)
        fail_msg("llmctl %s: status %d, said: %s", arguments, status, said);
    free(said);
    return slurp(out, bytes);
}

static json_t *ctl_json(const char *arguments)
{
    size_t bytes;
    char *out = ctl(arguments, &bytes);
    json_t *v = json_loadb(out, bytes, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (!v)
        fail_msg("llmctl %s: no JSON: %.*s", arguments, (int)bytes, out);
    free(out);
    return v;
}

static void refuses(const char *arguments, int want, const char *word)
{
    int status;
    char *out = run_command(&status, "'%s' -i nobody %s 2>&1", built("llmctl"), arguments);
    if (status != want || !strstr(out, word) || strncmp(out, "llmctl: ", 8))
        fail_msg("llmctl %s: status %d, said: %s", arguments, status, out);
    free(out);
}

/* ---- the reference data ---- */

/* The text of a case as a file, or NULL where it is no well-formed text. */
static const char *text_file(const json_t *c)
{
    const json_t *text = json_object_get(c, "text");
    return text ? scratch_file("text", json_string_value(text), json_string_length(text)) : NULL;
}

static void check_tokens(const char *model, const json_t *c, const char *file)
{
    char arguments[1400];
    snprintf(arguments, sizeof arguments, "tokenize --model '%s' --prompt-file '%s' --json %s %s",
             model, file, json_is_true(json_object_get(c, "add_special")) ? "--add-special" : "",
             json_is_true(json_object_get(c, "parse_special")) ? "" : "--no-special-parse");
    json_t *ids = ctl_json(arguments);
    if (!json_equal(ids, json_object_get(c, "ids")))
        fail_msg("case %s: other ids", json_string_value(json_object_get(c, "id")));
    json_decref(ids);
}

/* What the ids of a case say, or NULL where it is not well-formed. */
static const json_t *decoded(const json_t *c)
{
    const json_t *is_text = json_object_get(c, "decoded_is_text");
    return json_object_get(c, json_is_true(is_text) ? "text" : "decoded");
}

static void check_text(const char *model, const json_t *c)
{
    char arguments[1400];
    char *ids = json_dumps(json_object_get(c, "ids"), JSON_COMPACT);
    snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens-file '%s'", model,
             scratch_file("ids.json", ids, strlen(ids)));
    const json_t *text = decoded(c);
    size_t bytes;
    char *out = ctl(arguments, &bytes);
    if (bytes != json_string_length(text) || memcmp(out, json_string_value(text), bytes))
        fail_msg("case %s: another text", json_string_value(json_object_get(c, "id")));
    free(out);
    free(ids);
}

static void golden_cases(const char *name)
{
    char file[64];
    snprintf(file, sizeof file, "tokenizer/%s.jsonl", name);
    char *lines = golden_read(file, NULL), *rest = lines;
    const char *model = vocabulary(name);
    int n = 0, tokens = 0, texts = 0,
        every = test_exhaustive()  ? 1
                : test_sanitized() ? EVERY_SANITIZED
                                   : EVERY;
    for (char *line; (line = strsep(&rest, "\n")) && *line; n++) {
        json_t *c = n % every ? NULL : json_loads(line, JSON_ALLOW_NUL, NULL);
        const char *source = json_string_value(json_object_get(c, "source"));
        const char *text = source && !strcmp(source, "both") ? text_file(c) : NULL;
        if (text) {
            check_tokens(model, c, text);
            tokens++;
        }
        if (text && decoded(c)) {
            check_text(model, c);
            texts++;
        }
        json_decref(c);
    }
    print_message("%s: %d of %d cases tokenized, %d detokenized\n", name, tokens, n, texts);
    assert_true(tokens >= n / every / 2 && texts >= tokens / 2);
    free(lines);
}

static void byte_pairs(void **state)
{
    (void)state;
    golden_cases("smollm2");
}

static void sentence_pieces(void **state)
{
    (void)state;
    golden_cases("llama-spm");
}

/* ---- sources and flags ---- */

static void expect_ids(const char *model, const char *rest, const char *want)
{
    char arguments[1024];
    size_t bytes;
    snprintf(arguments, sizeof arguments, "tokenize --model '%s' %s", model, rest);
    char *out = ctl(arguments, &bytes);
    if (bytes != strlen(want) || memcmp(out, want, bytes))
        fail_msg("llmctl %s: %.*s", arguments, (int)bytes, out);
    free(out);
}

static void flags(void **state)
{
    (void)state;
    const char *model = vocabulary("llama-spm");
    expect_ids(model, "'Hello world'", "15043 3186\n");
    expect_ids(model, "--add-special 'Hello world'", "1 15043 3186\n");
    expect_ids(model, "--json '</s>'", "[2]\n");
    expect_ids(model, "--no-special-parse --json '</s>'", "[1533,29879,29958]\n");
    expect_ids(model, "''", "\n");
    expect_ids(model, "--json ''", "[]\n");
    expect_ids(model, "--add-special ''", "1\n");
}

static void standard_input(void **state)
{
    (void)state;
    int status;
    char *out =
        run_command(&status, "printf 'Hello world' | '%s' tokenize --model '%s' --prompt-file -",
                    built("llmctl"), vocabulary("llama-spm"));
    assert_int_equal(status, 0);
    assert_string_equal(out, "15043 3186\n");
    free(out);
}

/* A whole model's file serves as well. */
static void a_model_file(void **state)
{
    (void)state;
    char arguments[1024];
    snprintf(arguments, sizeof arguments, "tokenize --model '%s' --json 'Hello'",
             golden_path("tiny_gguf/llama.Q8_0.gguf"));
    json_t *ids = ctl_json(arguments);
    assert_true(json_array_size(ids) > 0);
    char *list = json_dumps(ids, JSON_COMPACT);
    snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens '%s' --json",
             golden_path("tiny_gguf/llama.Q8_0.gguf"), list);
    json_t *text = ctl_json(arguments);
    assert_string_equal(json_string_value(text), "Hello");
    free(list);
    json_decref(ids);
    json_decref(text);
}

static void special_tokens_show_or_hide(void **state)
{
    (void)state;
    char arguments[1024];
    const char *model = vocabulary("llama-spm");
    static const struct {
        const char *flag, *text;
    } cases[] = {{"", "<s> Hello world</s>"}, {"--hide-special", "Hello world"}};
    for (size_t i = 0; i < 2; i++) {
        snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens 1,15043,3186,2 %s",
                 model, cases[i].flag);
        size_t bytes;
        char *out = ctl(arguments, &bytes);
        assert_int_equal(bytes, strlen(cases[i].text));
        assert_memory_equal(out, cases[i].text, bytes);
        free(out);
    }
}

/* Every byte of the file counts, NUL too; what is no UTF-8 is U+FFFD, one for each part. */
static void exact_bytes(void **state)
{
    (void)state;
    static const char text[] = "a\0b\r\n \xff\xfe"
                               "c\xe4\xbd\0";
    static const char back[] = "a\0b\r\n \xef\xbf\xbd\xef\xbf\xbd"
                               "c\xef\xbf\xbd\0";
    static const char *const names[] = {"gpt-2-small", "llama-spm"};
    for (size_t i = 0; i < 2; i++) {
        char arguments[1400];
        const char *model = vocabulary(names[i]);
        snprintf(arguments, sizeof arguments, "tokenize --model '%s' --prompt-file '%s' --json",
                 model, scratch_file("bytes", text, sizeof text - 1));
        json_t *ids = ctl_json(arguments);
        char *list = json_dumps(ids, JSON_COMPACT);
        snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens '%s'", model, list);
        size_t bytes;
        char *out = ctl(arguments, &bytes);
        assert_int_equal(bytes, sizeof back - 1);
        assert_memory_equal(out, back, bytes);
        free(out);
        free(list);
        json_decref(ids);
    }
}

/* ---- refusals ---- */

static void what_is_no_vocabulary(void **state)
{
    (void)state;
    char arguments[1200];
    size_t bytes;
    char *model = golden_read("tokenizer/gpt-2-small.vocab.gguf", &bytes);
    const char *const files[] = {scratch_file("text.txt", "just a text\n", 12),
                                 scratch_file("empty.gguf", "", 0),
                                 scratch_file("cut.gguf", model, bytes / 2)};
    static const char *const words[] = {"this is no GGUF file", "is empty", "cut off"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(arguments, sizeof arguments, "tokenize --model '%s' x", files[i]);
        refuses(arguments, 1, words[i]);
        refuses(arguments, 1, files[i]);
        snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens 1", files[i]);
        refuses(arguments, 1, words[i]);
    }
    free(model);
    refuses("tokenize --model /nonexistent/m.gguf x", 1, "/nonexistent/m.gguf");
    snprintf(arguments, sizeof arguments, "tokenize --model '%s' x", scratch_dir());
    refuses(arguments, 1, "folder");
    refuses("tokenize --model tests/fuzz/corpus/gguf/pre_unknown x", 1, "of-the-future");
    refuses("tokenize --model tests/fuzz/corpus/gguf/model_unknown x", 1, "t5");
}

static void what_is_no_request(void **state)
{
    (void)state;
    char arguments[1200];
    const char *model = vocabulary("llama-spm");
    snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens 1,32000", model);
    refuses(arguments, 1, "0 to 31999");
    snprintf(arguments, sizeof arguments, "detokenize --model '%s' --tokens -1", model);
    refuses(arguments, 1, "0 to 31999");
    snprintf(arguments, sizeof arguments, "tokenize --model '%s' --prompt-file /nonexistent",
             model);
    refuses(arguments, 1, "/nonexistent");
    snprintf(arguments, sizeof arguments, "tokenize --model '%s'", model);
    refuses(arguments, 2, "TEXT or --prompt-file");
    snprintf(arguments, sizeof arguments, "detokenize --model '%s'", model);
    refuses(arguments, 2, "--tokens");
    refuses("tokenize x", 1, "nobody"); /* without a file it is the engine's vocabulary */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(byte_pairs),
        cmocka_unit_test(sentence_pieces),
        cmocka_unit_test(flags),
        cmocka_unit_test(standard_input),
        cmocka_unit_test(a_model_file),
        cmocka_unit_test(special_tokens_show_or_hide),
        cmocka_unit_test(exact_bytes),
        cmocka_unit_test(what_is_no_vocabulary),
        cmocka_unit_test(what_is_no_request),
    };
    return cmocka_run_group_tests_name("llmctl_text", tests, NULL, NULL);
}
