/* template_api.c - chat templates: the public API.
 *
 * Each call runs in the C locale (numbers are read and written with a point) and has one jump
 * target: wherever a parse or rendering fails, tpl_fail comes back here, and all memory goes.
 */
#include "template_internal.h"
#include "utf8.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdlib.h>

#define MAX_SOURCE     ((size_t)4 << 20)
#define PARSE_STEPS    50000000u
#define PARSE_MEMORY   ((size_t)512 << 20)
#define DEFAULT_DEPTH  1200
#define DEFAULT_STEPS  20000000u
#define DEFAULT_MEMORY ((size_t)256 << 20)
#define DEFAULT_OUTPUT ((size_t)64 << 20)

static locale_t c_locale;

static void make_c_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* The caller's locale, for uselocale() at the end. */
static locale_t enter_c_locale(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_c_locale);
    return uselocale(c_locale);
}

static void clear_why(char *why, size_t why_size)
{
    if (why && why_size)
        *why = '\0';
}

static void check_utf8(struct tpl *t, const char *text, size_t bytes, int code, const char *what)
{
    unsigned n;
    for (size_t i = 0; i < bytes; i += n)
        if (utf8_decode(text + i, bytes - i, &n) < 0)
            tpl_fail(t, code, "the %s is not well-formed UTF-8 at byte %zu", what, i);
}

/* ---- parsing ---- */

static void parse(struct tpl *t, struct llm_template **out, const char *source, size_t bytes)
{
    if (bytes > MAX_SOURCE)
        tpl_limit(t, "the template is longer than %zu bytes", MAX_SOURCE);
    check_utf8(t, source, bytes, LLM_TEMPLATE_ESYNTAX, "template");
    struct llm_template *x = tpl_zalloc(t, sizeof *x);
    struct parser p = {.t = t, .at = tpl_lex(t, source, bytes).v};
    x->memory = t;
    x->body = tpl_parse_template(&p);
    tpl_scope_resolve(t, x, p.blocks);
    *out = x;
}

int llm_template_parse(struct llm_template **out, const char *source, size_t bytes, char *why,
                       size_t why_size)
{
    if (!out || (!source && bytes))
        return -EINVAL;
    *out = NULL;
    clear_why(why, why_size);
    struct tpl *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->why = why;
    t->why_size = why_size;
    t->max_memory = PARSE_MEMORY;
    t->max_steps = PARSE_STEPS;
    t->max_depth = DEFAULT_DEPTH;
    locale_t locale = enter_c_locale();
    if (!setjmp(t->failed))
        parse(t, out, source, bytes);
    uselocale(locale);
    int code = t->code;
    if (code < 0) {
        tpl_free_all(t);
        free(t);
    } else
        t->why = NULL;
    return code;
}

void llm_template_free(struct llm_template *t)
{
    if (!t)
        return;
    struct tpl *memory = t->memory;
    tpl_free_all(memory);
    free(memory);
}

/* ---- the input ---- */

static struct value *input_at(struct dict *input, const char *name)
{
    return (struct value *)tpl_dict_get_str(input, name, strlen(name));
}

static _Noreturn void wrong_type(struct tpl *t, const char *name, const char *wanted)
{
    tpl_fail(t, LLM_TEMPLATE_EINPUT, "the input's `%s` must be %s", name, wanted);
}

static void check_objects(struct tpl *t, struct dict *input, const char *name)
{
    const struct value *v = input_at(input, name);
    if (!v) {
        tpl_dict_set(t, input, STR(tpl_str_text(t, name)), NONE);
        return;
    }
    if (v->kind != V_LIST && v->kind != V_NONE)
        wrong_type(t, name, "an array of objects, or null");
    for (uint32_t i = 0; v->kind == V_LIST && i < v->u.l->n; i++)
        if (v->u.l->v[i].kind != V_DICT)
            wrong_type(t, name, "an array of objects, or null");
}

/* The special tokens that tokenizers name. */
static bool names_token(const struct str *s)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token",
                                        "sep_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (tpl_str_is(s, names[i]))
            return true;
    return false;
}

static void check_input(struct tpl *t, struct dict *input)
{
    const struct value *messages = input_at(input, "messages");
    const struct value *prompt = input_at(input, "add_generation_prompt");
    if (!messages)
        tpl_fail(t, LLM_TEMPLATE_EINPUT, "the input lacks `messages`");
    if (messages->kind != V_LIST)
        wrong_type(t, "messages", "an array");
    if (prompt && prompt->kind != V_BOOL && prompt->kind != V_NONE)
        wrong_type(t, "add_generation_prompt", "true or false");
    if (!prompt)
        tpl_dict_set(t, input, STR(tpl_str_text(t, "add_generation_prompt")), BOOL(false));
    check_objects(t, input, "tools");
    check_objects(t, input, "documents");
    for (uint32_t i = 0; i < input->n; i++) {
        const struct entry *e = &input->e[i];
        if (names_token(e->key.u.s) && e->value.kind != V_STR && e->value.kind != V_NONE)
            tpl_fail(t, LLM_TEMPLATE_EINPUT, "the input's `%.*s` must be a string, or null",
                     (int)e->key.u.s->bytes, e->key.u.s->p);
    }
}

/* Without `now`, which is not a variable. */
static const struct dict *take_now(struct tpl *t, struct dict *input)
{
    const struct value *now = input_at(input, "now");
    if (!now)
        return input;
    if (now->kind != V_STR || !tpl_read_time(now->u.s, &t->now))
        wrong_type(t, "now", "a string like \"2030-12-31 23:59:59\"");
    t->has_now = true;
    struct dict *rest = tpl_dict_new(t);
    for (uint32_t i = 0; i < input->n; i++)
        if (!tpl_str_is(input->e[i].key.u.s, "now"))
            tpl_dict_set(t, rest, input->e[i].key, input->e[i].value);
    return rest;
}

static const struct dict *read_input(struct tpl *t, const char *text, size_t bytes)
{
    struct value v = tpl_json_parse(t, text, bytes);
    if (v.kind != V_DICT)
        tpl_fail(t, LLM_TEMPLATE_EINPUT, "the input must be a JSON object");
    struct dict *input = (struct dict *)v.u.d;
    check_input(t, input);
    return take_now(t, input);
}

/* ---- rendering ---- */

static void check_output(struct tpl *t)
{
    unsigned n;
    for (size_t i = 0; i < t->out_bytes; i += n) {
        if ((unsigned char)t->out[i] < 0x80) {
            n = 1;
            continue;
        }
        uint32_t cp = uni_at(t->out + i, &n);
        if (cp >= 0xd800 && cp <= 0xdfff)
            tpl_error(t, "the text holds half of a surrogate pair (U+%04X) at byte %zu", cp, i);
    }
}

static void render(struct tpl *t, const struct llm_template *source, const char *input,
                   size_t bytes)
{
    struct context c = {.parent = read_input(t, input, bytes),
                        .vars = tpl_dict_new(t),
                        .globals = tpl_call_globals(t)};
    t->context = &c;
    t->source = source;
    tpl_exec_template(t, source);
    tpl_at(t, 0, NULL, NULL);
    check_output(t);
}

static void set_limits(struct tpl *t, const struct llm_template_limits *l)
{
    static const struct llm_template_limits none = LLM_TEMPLATE_LIMITS_INIT;
    if (!l)
        l = &none;
    t->max_depth = l->max_depth ? l->max_depth : DEFAULT_DEPTH;
    t->max_steps = l->max_steps ? l->max_steps : DEFAULT_STEPS;
    t->max_memory = l->max_memory_bytes ? l->max_memory_bytes : DEFAULT_MEMORY;
    t->max_out = l->max_output_bytes ? l->max_output_bytes : DEFAULT_OUTPUT;
}

/* The output as the caller gets it: with a NUL, and no more room than that. */
static int give(struct tpl *t, char **out, size_t *out_bytes)
{
    char *text = realloc(t->out, t->out_bytes + 1);
    if (!text)
        return -ENOMEM;
    text[t->out_bytes] = '\0';
    t->out = NULL;
    *out = text;
    *out_bytes = t->out_bytes;
    return 0;
}

int llm_template_render(const struct llm_template *template, const char *input_json, size_t bytes,
                        const struct llm_template_limits *limits, char **out, size_t *out_bytes,
                        char *why, size_t why_size)
{
    if (!template || !input_json || !out || !out_bytes ||
        (limits && limits->size != sizeof *limits))
        return -EINVAL;
    *out = NULL;
    *out_bytes = 0;
    clear_why(why, why_size);
    struct tpl *t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    t->why = why;
    t->why_size = why_size;
    set_limits(t, limits);
    locale_t locale = enter_c_locale();
    if (!setjmp(t->failed))
        render(t, template, input_json, bytes);
    uselocale(locale);
    int code = t->code < 0 ? t->code : give(t, out, out_bytes);
    tpl_free_all(t);
    free(t);
    return code;
}

void llm_template_free_text(char *text)
{
    free(text);
}
