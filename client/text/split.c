/* split.c - the pre-tokenizer families and their regular expressions.
 *
 * The expressions are those of the models' published tokenizer.json files; the family names are the
 * values of `tokenizer.ggml.pre` in GGUF files (llama.cpp, convert_hf_to_gguf_update.py). They are
 * written for Oniguruma or Rust's regex crate, from which PCRE2 differs in \s: it is spelled out
 * here as Unicode's White_Space (PCRE2's would add U+180E).
 */
#include "split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "../llmclient.h"

#define SPACES                                                                                     \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define SPACE    "[" SPACES "]"
#define NONSPACE "[^" SPACES "]"
#define GAPS     SPACE "+(?!" NONSPACE ")|" SPACE "+"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define OTHER       "[^" SPACES "\\p{L}\\p{N}]"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|" GAPS

/* The family of OpenAI's cl100k: how many digits make a word is what the models differ in. */
#define CL100K(digits)                                                                             \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?" OTHER "+[\\r\\n]*|" SPACE           \
                "*[\\r\\n]+|" GAPS

/* The family of OpenAI's o200k: words also end where lower case meets upper case. */
#define O200K(digits, contraction)                                                                 \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contraction "|[^\\r\\n\\p{L}\\p{N}]?" UPPER       \
    "+" LOWER "*" contraction "|" digits "| ?" OTHER "+[\\r\\n/]*|" SPACE "*[\\r\\n]+|" GAPS

#define QWEN35                                                                                     \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" SPACES                        \
                "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACE "*[\\r\\n]+|" GAPS

#define SEED                                                                                       \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" SPACES "\\p{L}\\p{N}\\r\\n]+|" SPACE  \
                "*[\\r\\n]+|" GAPS

#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?" OTHER "++[\\r\\n]*|" SPACE    \
    "*[\\r\\n]|" GAPS

#define DEEPSEEK_V3                                                                                \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"                                       \
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACE                \
    "*[\\r\\n]+|" GAPS

/* Letters of the scripts with case, as DeepSeek's first tokenizer lists them. */
#define CASED                                                                                      \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                 \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"         \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                  \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                       \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}"                 \
    "\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}"         \
    "\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"                           \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}"                 \
    "\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}"          \
    "\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}"                  \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"         \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}"                  \
    "\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}"                 \
    "\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}"                 \
    "\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}"         \
    "\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

#define CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+"

#define BLOOM " ?[^(" SPACES "|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

struct family {
    const char *names; /* each between spaces */
    const char *passes[SPLIT_PASSES_MAX];
    bool whole_words, composes;
};

static const struct family families[] = {
    {.names = " gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum exaone4 "
              "mpt olmo jais trillion granite-docling ",
     .passes = {GPT2}},
    {.names = " smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
     .passes = {"\\p{N}", GPT2}},
    {.names = " llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     .passes = {CL100K("\\p{N}{1,3}")},
     .whole_words = true},
    {.names = " dbrx smaug-bpe glm4 chatglm-bpe ", .passes = {CL100K("\\p{N}{1,3}")}},
    {.names = " qwen2 deepseek-r1-qwen megrez ", .passes = {CL100K("\\p{N}")}, .composes = true},
    {.names = " stablelm2 hunyuan solar-open grok-2 kormo ", .passes = {CL100K("\\p{N}")}},
    {.names = " qwen35 ", .passes = {QWEN35}, .composes = true},
    {.names = " laguna ", .passes = {"[^\\n]+|\\n+", CL100K("\\p{N}")}},
    {.names = " tekken ", .passes = {O200K("\\p{N}", "")}, .whole_words = true},
    {.names = " gpt-4o llama4 kanana2 minimax-m2 ",
     .passes = {O200K("\\p{N}{1,3}", CONTRACTION "?")}},
    {.names = " youtu ",
     .passes =
         {"[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}"
          "\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}\\x{FE30}-\\x{FE4F}]+|["
          "\\x{3105}-\\x{312F}]+|[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
          O200K("\\p{N}", CONTRACTION "?")},
     .whole_words = true},
    {.names = " deepseek-coder ",
     .passes = {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", CJK, "\\p{N}"}},
    {.names = " deepseek-llm ",
     .passes =
         {"[\\r\\n]", SPACE "?[" CASED "]+",
          SPACE
          "?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
          "(?<!" SPACE ")" SPACE "+\\z", CJK, "\\p{N}+"}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm ",
     .passes = {"\\p{N}{1,3}", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                DEEPSEEK_V3}},
    {.names = " falcon ", .passes = {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {.names = " bloom poro-chat gpt3-finnish ", .passes = {BLOOM}},
    {.names = " viking ", .passes = {BLOOM, "\\p{N}"}},
    {.names = " seed-coder ", .passes = {SEED}},
    {.names = " bailingmoe bailingmoe2 llada-moe ", .passes = {BAILING}},
};

static bool is_named(const struct family *f, const char *pre)
{
    size_t bytes = strlen(pre);
    const char *at = f->names;
    if (bytes == 0 || strchr(pre, ' '))
        return false;
    while ((at = strstr(at, pre)) != NULL) {
        if (at[-1] == ' ' && at[bytes] == ' ')
            return true;
        at++;
    }
    return false;
}

static int compile(struct split *s, const char *pattern)
{
    int error;
    PCRE2_SIZE where;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &where, NULL);
    if (!code) /* the patterns are ours: only memory can lack */
        return -ENOMEM;
    /* best effort: where memory may not become executable the interpreter does the same */
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    s->passes[s->n_passes++] = code;
    return 0;
}

static int lift_limits(struct split *s)
{
    s->limits = pcre2_match_context_create(NULL);
    if (!s->limits)
        return -ENOMEM;
    pcre2_set_match_limit(s->limits, UINT32_MAX);
    pcre2_set_depth_limit(s->limits, UINT32_MAX);
    pcre2_set_heap_limit(s->limits, UINT32_MAX);
    return 0;
}

int split_open(struct split *s, const char *pre)
{
    *s = (struct split){0};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        if (!is_named(&families[i], pre))
            continue;
        s->whole_words = families[i].whole_words;
        s->composes = families[i].composes;
        int rc = lift_limits(s);
        for (unsigned k = 0; k < SPLIT_PASSES_MAX && families[i].passes[k] && rc == 0; k++)
            rc = compile(s, families[i].passes[k]);
        return rc;
    }
    return LLM_ENOTEXT;
}

void split_free(struct split *s)
{
    for (unsigned k = 0; k < s->n_passes; k++)
        pcre2_code_free(s->passes[k]);
    pcre2_match_context_free(s->limits);
    *s = (struct split){0};
}

pcre2_match_data *split_match_data(void)
{
    return pcre2_match_data_create(1, NULL);
}

void split_match_data_free(pcre2_match_data *data)
{
    pcre2_match_data_free(data);
}

struct walk {
    const struct split *split;
    pcre2_match_data *data;
    int (*word)(void *to, const char *at, size_t bytes);
    void *to;
};

/* 1 and the match in *begin, *end; 0 for none; -ENOMEM. */
static int find(const struct walk *w, unsigned pass, const char *at, size_t bytes, size_t from,
                size_t *begin, size_t *end)
{
    const pcre2_code *code = w->split->passes[pass];
    PCRE2_SPTR subject = (PCRE2_SPTR)at;
    int rc = pcre2_match(code, subject, bytes, from, PCRE2_NO_UTF_CHECK, w->data, w->split->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
        rc = pcre2_match(code, subject, bytes, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->data,
                         w->split->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0)
        return -ENOMEM;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(w->data);
    *begin = range[0], *end = range[1];
    return 1;
}

static int split_piece(const struct walk *w, unsigned pass, const char *at, size_t bytes)
{
    if (bytes == 0)
        return 0;
    if (pass == w->split->n_passes)
        return w->word(w->to, at, bytes);
    for (size_t done = 0, begin, end; done < bytes; done = end) {
        int rc = find(w, pass, at, bytes, done, &begin, &end);
        if (rc < 0)
            return rc;
        if (rc == 0)
            begin = end = bytes;
        rc = split_piece(w, pass + 1, at + done, begin - done);
        if (rc == 0)
            rc = split_piece(w, pass + 1, at + begin, end - begin);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int split_text(const struct split *s, pcre2_match_data *data, const char *text, size_t bytes,
               int (*word)(void *to, const char *at, size_t bytes), void *to)
{
    struct walk walk = {s, data, word, to};
    return split_piece(&walk, 0, text, bytes);
}
