/* text.c - `tokenize` and `detokenize`: over the vocabulary of a running engine, or of a model
 * file, which needs no more than a vocabulary then. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../appliance/model/model.h"
#include "llmctl.h"

struct text_options {
    const char *model; /* NULL: ask the engine */
    const char *file, *text, *tokens, *tokens_file;
    unsigned tokenize; /* enum llm_tokenize_flags */
    bool json, hide_special;
};

enum {
    O_MODEL = 256,
    O_PROMPT_FILE,
    O_TOKENS,
    O_TOKENS_FILE,
    O_ADD_SPECIAL,
    O_NO_SPECIAL_PARSE,
    O_HIDE_SPECIAL,
    O_JSON
};

static const struct option options[] = {{"model", required_argument, NULL, O_MODEL},
                                        {"prompt-file", required_argument, NULL, O_PROMPT_FILE},
                                        {"tokens", required_argument, NULL, O_TOKENS},
                                        {"tokens-file", required_argument, NULL, O_TOKENS_FILE},
                                        {"add-special", no_argument, NULL, O_ADD_SPECIAL},
                                        {"no-special-parse", no_argument, NULL, O_NO_SPECIAL_PARSE},
                                        {"hide-special", no_argument, NULL, O_HIDE_SPECIAL},
                                        {"json", no_argument, NULL, O_JSON},
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static const char model_help[] =
    "  --model FILE          the vocabulary of a GGUF file; no engine is asked\n";

static void help(bool to_tokens)
{
    if (to_tokens)
        printf(
            "usage: llmctl [-i INSTANCE] tokenize TEXT | --prompt-file FILE [OPTION...]\n\n"
            "%s"
            "  --prompt-file FILE    the exact bytes of a file (- is standard input)\n"
            "  --add-special         add what the model puts around a text (bos, eos), if it does\n"
            "  --no-special-parse    spellings of special tokens stay plain text\n"
            "  --json                a JSON array of ids\n",
            model_help);
    else
        printf("usage: llmctl [-i INSTANCE] detokenize --tokens 1,2,3 | --tokens-file FILE "
               "[OPTION...]\n\n"
               "%s"
               "  --tokens 1,2,3        token ids\n"
               "  --tokens-file FILE    a JSON array of ids, or raw little-endian int32 (.bin)\n"
               "  --hide-special        leave control tokens out\n"
               "  --json                the text as a JSON string\n",
               model_help);
}

/* 0, an exit status, or -1 after --help */
static int parse(int argc, char **argv, bool to_tokens, struct text_options *o)
{
    *o = (struct text_options){.tokenize = LLM_TOKENIZE_SPECIAL};
    int c;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1)
        switch (c) {
        case O_MODEL:
            o->model = optarg;
            break;
        case O_PROMPT_FILE:
            o->file = optarg;
            break;
        case O_TOKENS:
            o->tokens = optarg;
            break;
        case O_TOKENS_FILE:
            o->tokens_file = optarg;
            break;
        case O_ADD_SPECIAL:
            o->tokenize |= LLM_TOKENIZE_ADD_SPECIAL;
            break;
        case O_NO_SPECIAL_PARSE:
            o->tokenize &= ~(unsigned)LLM_TOKENIZE_SPECIAL;
            break;
        case O_HIDE_SPECIAL:
            o->hide_special = true;
            break;
        case O_JSON:
            o->json = true;
            break;
        case 'h':
            help(to_tokens);
            return -1;
        default:
            return 2;
        }
    if (to_tokens && optind < argc)
        o->text = argv[optind++];
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\"", argv[optind]);
    if (to_tokens && !o->text == !o->file)
        return ctl_usage("give TEXT or --prompt-file");
    if (!to_tokens && !o->tokens == !o->tokens_file)
        return ctl_usage("give --tokens or --tokens-file");
    return 0;
}

/* The reader's sentences name the file. */
static int open_from_file(struct llm_tokenizer **t, const char *path)
{
    struct fail f = {0};
    struct model *m = NULL;
    void *image = NULL;
    size_t bytes;
    char why[256];
    int rc = model_open_vocab(&m, path, &f);
    if (!rc)
        rc = model_vocab_image(m, &image, &bytes, &f);
    if (rc < 0)
        ctl_error("%s", f.text);
    else if ((rc = llm_tokenizer_open_image(t, image, bytes, why, sizeof why)) < 0)
        ctl_error("%s: %s", path, why);
    free(image);
    model_close(m);
    return rc < 0;
}

static int open_tokenizer(struct llm_tokenizer **t, const struct text_options *o)
{
    if (o->model)
        return open_from_file(t, o->model);
    struct llm_client *c = ctl_connect(1, 0);
    if (!c)
        return 1;
    *t = ctl_tokenizer(c);
    llm_close(c);
    return *t ? 0 : 1;
}

static int print_tokens(const struct ctl_tokens *tokens, bool json)
{
    json_t *array = json_array();
    for (size_t i = 0; i < tokens->n; i++)
        json_array_append_new(array, json_integer(tokens->ids[i]));
    if (json)
        return ctl_print_json(array);
    json_decref(array);
    for (size_t i = 0; i < tokens->n; i++)
        printf(i ? " %d" : "%d", tokens->ids[i]);
    puts("");
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

int cmd_tokenize(int argc, char **argv)
{
    struct text_options o;
    int rc = parse(argc, argv, true, &o);
    if (rc)
        return rc < 0 ? 0 : rc;
    struct llm_tokenizer *t = NULL;
    struct ctl_tokens tokens = {NULL, 0};
    size_t bytes = o.text ? strlen(o.text) : 0;
    char *data = o.file ? ctl_read_file(o.file, &bytes) : NULL;
    rc = o.file && !data ? 1 : open_tokenizer(&t, &o);
    rc = rc ? rc : ctl_tokens_from_prompt(t, data ? data : o.text, bytes, o.tokenize, &tokens);
    rc = rc ? rc : print_tokens(&tokens, o.json);
    free(tokens.ids);
    free(data);
    llm_tokenizer_close(t);
    return rc;
}

static int check_range(const struct llm_tokenizer *t, const struct ctl_tokens *tokens)
{
    for (size_t i = 0; i < tokens->n; i++)
        if (tokens->ids[i] < 0 || (uint32_t)tokens->ids[i] >= llm_tokenizer_vocab(t))
            return ctl_error("token %zu is %d, the vocabulary has ids 0 to %u", i, tokens->ids[i],
                             llm_tokenizer_vocab(t) - 1);
    return 0;
}

static int print_text(const struct llm_tokenizer *t, const struct ctl_tokens *tokens,
                      const struct text_options *o)
{
    size_t bytes;
    char *text =
        ctl_text(t, tokens->ids, tokens->n, o->hide_special ? 0 : LLM_DETOK_SHOW_SPECIAL, &bytes);
    if (!text)
        return ctl_error("out of memory for the text");
    int rc;
    if (o->json) {
        rc = ctl_print_json(json_stringn(text, bytes));
    } else {
        fwrite(text, 1, bytes, stdout);
        rc = fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
    }
    free(text);
    return rc;
}

int cmd_detokenize(int argc, char **argv)
{
    struct text_options o;
    int rc = parse(argc, argv, false, &o);
    if (rc)
        return rc < 0 ? 0 : rc;
    struct llm_tokenizer *t = NULL;
    struct ctl_tokens tokens = {NULL, 0};
    rc = o.tokens ? ctl_tokens_from_text(o.tokens, &tokens)
                  : ctl_tokens_from_file(o.tokens_file, &tokens);
    rc = rc ? rc : open_tokenizer(&t, &o);
    rc = rc ? rc : check_range(t, &tokens);
    rc = rc ? rc : print_text(t, &tokens, &o);
    free(tokens.ids);
    llm_tokenizer_close(t);
    return rc;
}
