/* template_lex.c - template source to tokens, with Jinja2's whitespace control.
 *
 * Settings: trim_blocks (one newline behind a block or comment goes), lstrip_blocks (blanks before
 * one that begins a line go), keep_trailing_newline off (one newline at the end goes). A sign in a
 * tag decides otherwise: `-` takes all white space, `+` leaves it.
 *
 * Inside tags an end mark counts only outside of all brackets, so that `}}` can close two dicts.
 */
#include "template_internal.h"

struct lexer {
    struct tpl *t;
    const char *p, *end;
    uint32_t line;
    bool line_starting; /* what was taken last ended in a newline, or nothing was taken */
    struct tokens out;
    char brackets[256]; /* closing ones that are due */
    uint32_t n_brackets;
};

static _Noreturn void lex_fail(struct lexer *x, const char *message)
{
    tpl_at(x->t, x->line, NULL, NULL);
    tpl_fail(x->t, LLM_TEMPLATE_ESYNTAX, "%s", message);
}

static void add(struct lexer *x, enum token_kind kind, struct value v)
{
    x->out.v = tpl_room(x->t, x->out.v, x->out.n, &x->out.room, sizeof *x->out.v);
    x->out.v[x->out.n++] = (struct token){kind, x->line, v};
}

static void take(struct lexer *x, const char *to)
{
    for (const char *p = x->p; p < to; p++)
        x->line += *p == '\n';
    if (to > x->p)
        x->line_starting = to[-1] == '\n';
    x->p = to;
}

static bool has(const struct lexer *x, const char *p, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(x->end - p) >= n && !memcmp(p, text, n);
}

static const char *skip_space(const struct lexer *x, const char *p)
{
    unsigned n;
    while (p < x->end && tpl_uni_is_space(uni_at(p, &n)))
        p += n;
    return p;
}

/* ---- data between tags ---- */

static const char *rstrip(const char *begin, const char *end)
{
    unsigned n;
    while (end > begin && tpl_uni_is_space(uni_before(begin, end, &n)))
        end -= n;
    return end;
}

/* Where data ends that a tag follows: `sign` is that tag's, 0 if it has none. */
static const char *data_end(const struct lexer *x, const char *tag, char sign, bool variable)
{
    if (sign == '-')
        return rstrip(x->p, tag);
    if (sign == '+' || variable)
        return tag;
    const char *line = tag;
    while (line > x->p && line[-1] != '\n')
        line--;
    if (line == x->p && !x->line_starting)
        return tag;
    return skip_space(x, line) >= tag ? line : tag;
}

static void add_data(struct lexer *x, const char *to, const char *tag)
{
    if (to > x->p)
        add(x, T_DATA, STR(tpl_str_new(x->t, x->p, (size_t)(to - x->p))));
    take(x, tag);
}

static char sign_at(const struct lexer *x, const char *p)
{
    return p < x->end && (*p == '-' || *p == '+') ? *p : 0;
}

/* ---- ends of tags ---- */

/* Behind an end mark at p, or NULL if there is none. `plus`: `+` may stand before it. */
static const char *tag_end(const struct lexer *x, const char *p, const char *mark, bool plus,
                           bool trim)
{
    if (plus && *p == '+' && has(x, p + 1, mark))
        return p + 3;
    if (*p == '-' && has(x, p + 1, mark))
        return skip_space(x, p + 3);
    if (!has(x, p, mark))
        return NULL;
    p += 2;
    return trim && p < x->end && *p == '\n' ? p + 1 : p;
}

static void lex_comment(struct lexer *x)
{
    for (const char *p = x->p; p < x->end; p++) {
        const char *after = tag_end(x, p, "#}", true, true);
        if (after) {
            take(x, after);
            return;
        }
    }
    if (x->p < x->end) /* Jinja2 lets one pass that the template ends with */
        lex_fail(x, "Missing end of comment tag");
}

/* `{%- raw -%}` at p: behind it, or NULL. */
static const char *raw_begin(const struct lexer *x, const char *p)
{
    p += 2;
    if (sign_at(x, p))
        p++;
    p = skip_space(x, p);
    if (!has(x, p, "raw"))
        return NULL;
    p = skip_space(x, p + 3);
    return p < x->end ? tag_end(x, p, "%}", false, false) : NULL;
}

static const char *raw_end(const struct lexer *x, const char *p)
{
    if (!has(x, p, "{%"))
        return NULL;
    p += 2;
    if (sign_at(x, p))
        p++;
    p = skip_space(x, p);
    if (!has(x, p, "endraw"))
        return NULL;
    p = skip_space(x, p + 6);
    return p < x->end ? tag_end(x, p, "%}", true, true) : NULL;
}

static void lex_raw(struct lexer *x)
{
    for (const char *p = x->p; p < x->end; p++) {
        const char *after = raw_end(x, p);
        if (after) {
            add_data(x, data_end(x, p, sign_at(x, p + 2), false), p);
            take(x, after);
            return;
        }
    }
    if (x->p < x->end)
        lex_fail(x, "Missing end of raw directive");
}

/* ---- strings ---- */

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static const char *hex_escape(struct lexer *x, const char *p, const char *end, int digits,
                              struct sb *b)
{
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++, p++) {
        if (p == end || hex(*p) < 0)
            lex_fail(x, digits == 2   ? "truncated \\xXX escape"
                        : digits == 4 ? "truncated \\uXXXX escape"
                                      : "truncated \\UXXXXXXXX escape");
        cp = cp << 4 | (uint32_t)hex(*p);
    }
    if (cp > 0x10ffff)
        lex_fail(x, "illegal Unicode character");
    tpl_sb_cp(b, cp);
    return p;
}

static const char *octal_escape(const char *p, const char *end, struct sb *b)
{
    uint32_t cp = 0;
    for (int i = 0; i < 3 && p < end && *p >= '0' && *p <= '7'; i++, p++)
        cp = cp << 3 | (uint32_t)(*p - '0');
    tpl_sb_cp(b, cp);
    return p;
}

/* A backslash before a character that is not ASCII: Jinja2 first turns the character into an
 * escape, whose own backslash the one before it then eats. */
static const char *escaped_wide(const char *p, struct sb *b)
{
    unsigned n;
    uint32_t cp = uni_at(p, &n);
    tpl_sb_char(b, '\\');
    if (cp < 0x100)
        tpl_sb_format(b, "x%02x", cp);
    else if (cp < 0x10000)
        tpl_sb_format(b, "u%04x", cp);
    else
        tpl_sb_format(b, "U%08x", cp);
    return p + n;
}

/* p is behind a backslash. */
static const char *escape_at(struct lexer *x, const char *p, const char *end, struct sb *b)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = memchr(from, *p, sizeof from - 1);
    if (known) {
        tpl_sb_char(b, to[known - from]);
        return p + 1;
    }
    if (*p >= '0' && *p <= '7')
        return octal_escape(p, end, b);
    if ((unsigned char)*p >= 0x80)
        return escaped_wide(p, b);
    switch (*p) {
    case '\n':
        return p + 1;
    case 'x':
        return hex_escape(x, p + 1, end, 2, b);
    case 'u':
        return hex_escape(x, p + 1, end, 4, b);
    case 'U':
        return hex_escape(x, p + 1, end, 8, b);
    case 'N':
        lex_fail(x, "escapes by character name (\\N{...}) are not supported; use \\u");
    default:
        tpl_sb_char(b, '\\');
        tpl_sb_char(b, *p);
        return p + 1;
    }
}

static void lex_string(struct lexer *x)
{
    const char *begin = x->p + 1, *end = begin;
    while (end < x->end && *end != *x->p)
        end += *end == '\\' ? 2 : 1;
    if (end >= x->end)
        lex_fail(x, "a string without an end");
    struct sb b;
    tpl_sb_init(&b, x->t);
    for (const char *p = begin; p < end;) {
        if (*p == '\\') {
            p = escape_at(x, p + 1, end, &b);
            continue;
        }
        const char *next = memchr(p, '\\', (size_t)(end - p));
        next = next ? next : end;
        tpl_sb_put(&b, p, (size_t)(next - p));
        p = next;
    }
    add(x, T_STRING, tpl_sb_value(&b));
    take(x, end + 1);
}

/* ---- numbers and names ---- */

static bool digit(const struct lexer *x, const char *p)
{
    return p < x->end && *p >= '0' && *p <= '9';
}

/* digits, single underscores between them; p if there are none */
static const char *digits(const struct lexer *x, const char *p)
{
    if (!digit(x, p))
        return p;
    while (digit(x, p) || (p < x->end && *p == '_' && digit(x, p + 1)))
        p++;
    return p;
}

/* The end of a float at p, or NULL. */
static const char *float_end(const struct lexer *x, const char *p)
{
    const char *start = p, *whole;
    if (x->out.n && x->out.v[x->out.n - 1].kind == T_DOT && p[-1] == '.')
        return NULL;
    whole = p = digits(x, p);
    if (p < x->end && *p == '.' && digit(x, p + 1))
        p = digits(x, p + 1);
    bool fraction = p > whole;
    if (p < x->end && (*p | 0x20) == 'e') {
        const char *e = p + 1;
        if (e < x->end && (*e == '+' || *e == '-'))
            e++;
        if (digit(x, e))
            return digits(x, e);
    }
    return fraction && p > start ? p : NULL;
}

static const char *integer_end(const struct lexer *x, const char *p)
{
    int base = 0;
    if (*p == '0' && p + 1 < x->end) {
        char c = (char)(p[1] | 0x20);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    }
    if (base) {
        const char *at = p + 2;
        while (at < x->end) {
            const char *d = *at == '_' ? at + 1 : at;
            if (d >= x->end || hex(*d) < 0 || hex(*d) >= base)
                break;
            at = d + 1;
        }
        if (at > p + 2)
            return at;
    }
    if (*p != '0')
        return digits(x, p);
    while (p < x->end && (*p == '0' || (*p == '_' && p + 1 < x->end && p[1] == '0')))
        p++;
    return p;
}

static void lex_number(struct lexer *x)
{
    struct value v;
    const char *end = float_end(x, x->p);
    if (end) {
        double f;
        if (!tpl_num_parse_float(x->t, x->p, (size_t)(end - x->p), &f))
            lex_fail(x, "a float that cannot be read");
        v = FLOAT(f);
    } else {
        end = integer_end(x, x->p);
        if (!tpl_num_parse_int(x->t, x->p, (size_t)(end - x->p), 0, &v))
            lex_fail(x, "an integer of too many digits");
    }
    add(x, v.kind == V_FLOAT ? T_FLOAT : T_INTEGER, v);
    take(x, end);
}

static bool lex_name(struct lexer *x)
{
    const char *p = x->p;
    unsigned n;
    while (p < x->end && tpl_uni_flags(uni_at(p, &n)) & (UNI_ID_CONTINUE | UNI_ALNUM))
        p += n;
    if (p == x->p)
        return false;
    for (const char *c = x->p; c < p; c += n) {
        unsigned need = c == x->p ? UNI_ID_START : UNI_ID_CONTINUE;
        if (!(tpl_uni_flags(uni_at(c, &n)) & need))
            lex_fail(x, "Invalid character in identifier");
    }
    add(x, T_NAME, STR(tpl_str_new(x->t, x->p, (size_t)(p - x->p))));
    take(x, p);
    return true;
}

/* ---- operators ---- */

static const struct operator
{
    char text[3];
    enum token_kind kind;
}
operators[] = {
    {"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},      {"!=", T_NE},      {">=", T_GE},
    {"<=", T_LE},       {"+", T_ADD},    {"-", T_SUB},      {"/", T_DIV},      {"*", T_MUL},
    {"%", T_MOD},       {"~", T_TILDE},  {"[", T_LBRACKET}, {"]", T_RBRACKET}, {"(", T_LPAREN},
    {")", T_RPAREN},    {"{", T_LBRACE}, {"}", T_RBRACE},   {">", T_GT},       {"<", T_LT},
    {"=", T_ASSIGN},    {".", T_DOT},    {":", T_COLON},    {"|", T_PIPE},     {",", T_COMMA},
    {";", T_SEMICOLON},
};
#define N_OPERATORS (sizeof operators / sizeof *operators)

static void balance(struct lexer *x, char c)
{
    const char *open = "{([", *close = "})]", *at;
    tpl_at(x->t, x->line, NULL, NULL);
    if ((at = strchr(open, c))) {
        if (x->n_brackets == sizeof x->brackets)
            tpl_limit(x->t, "brackets nested more than %zu deep", sizeof x->brackets);
        x->brackets[x->n_brackets++] = close[at - open];
    } else if (strchr(close, c)) {
        if (!x->n_brackets)
            tpl_fail(x->t, LLM_TEMPLATE_ESYNTAX, "unexpected '%c'", c);
        char due = x->brackets[--x->n_brackets];
        if (due != c)
            tpl_fail(x->t, LLM_TEMPLATE_ESYNTAX, "unexpected '%c', expected '%c'", c, due);
    }
}

static void lex_operator(struct lexer *x)
{
    for (size_t i = 0; i < N_OPERATORS; i++)
        if (has(x, x->p, operators[i].text)) {
            if (!operators[i].text[1])
                balance(x, *x->p);
            add(x, operators[i].kind, MISSING);
            take(x, x->p + strlen(operators[i].text));
            return;
        }
    unsigned n;
    uni_at(x->p, &n);
    tpl_at(x->t, x->line, NULL, NULL);
    tpl_fail(x->t, LLM_TEMPLATE_ESYNTAX, "unexpected char '%.*s'", (int)n, x->p);
}

/* ---- tags ---- */

static void lex_one(struct lexer *x)
{
    if (digit(x, x->p))
        lex_number(x);
    else if (*x->p == '"' || *x->p == '\'')
        lex_string(x);
    else if (!lex_name(x))
        lex_operator(x);
}

static void lex_tag(struct lexer *x, bool variable)
{
    add(x, variable ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, MISSING);
    x->n_brackets = 0;
    while (x->p < x->end) {
        const char *after = NULL;
        if (!x->n_brackets)
            after = variable ? tag_end(x, x->p, "}}", false, false)
                             : tag_end(x, x->p, "%}", true, true);
        if (after) {
            add(x, variable ? T_VARIABLE_END : T_BLOCK_END, MISSING);
            take(x, after);
            return;
        }
        const char *rest = skip_space(x, x->p);
        if (rest > x->p)
            take(x, rest);
        else
            lex_one(x);
    }
}

static const char *next_tag(const struct lexer *x)
{
    for (const char *p = x->p; p + 1 < x->end; p++)
        if (*p == '{' && (p[1] == '%' || p[1] == '{' || p[1] == '#'))
            return p;
    return NULL;
}

static void lex_root(struct lexer *x, const char *tag)
{
    const char *raw = tag[1] == '%' ? raw_begin(x, tag) : NULL;
    char sign = sign_at(x, tag + 2), kind = tag[1];
    add_data(x, data_end(x, tag, sign, kind == '{'), tag);
    take(x, raw ? raw : tag + 2 + (sign != 0));
    if (raw)
        lex_raw(x);
    else if (kind == '#')
        lex_comment(x);
    else
        lex_tag(x, kind == '{');
}

/* \r\n and \r as \n, and without the last one. */
static const struct str *normal_lines(struct tpl *t, const char *source, size_t bytes)
{
    char *copy = tpl_alloc(t, bytes);
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (source[i] == '\r' && i + 1 < bytes && source[i + 1] == '\n')
            continue;
        copy[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && copy[n - 1] == '\n')
        n--;
    return tpl_str_ref(t, copy, n);
}

struct tokens tpl_lex(struct tpl *t, const char *source, size_t bytes)
{
    const struct str *s = normal_lines(t, source, bytes);
    struct lexer x = {.t = t, .p = s->p, .end = s->p + s->bytes, .line = 1, .line_starting = true};
    const char *tag;
    while ((tag = next_tag(&x)))
        lex_root(&x, tag);
    add_data(&x, x.end, x.end);
    add(&x, T_EOF, MISSING);
    return x.out;
}

const char *tpl_token_text(struct tpl *t, const struct token *token)
{
    static const char *const names[] = {
        [T_EOF] = "end of template",
        [T_DATA] = "template data / text",
        [T_VARIABLE_BEGIN] = "begin of print statement",
        [T_VARIABLE_END] = "end of print statement",
        [T_BLOCK_BEGIN] = "begin of statement block",
        [T_BLOCK_END] = "end of statement block",
        [T_NAME] = "name",
        [T_STRING] = "string",
        [T_INTEGER] = "integer",
        [T_FLOAT] = "float",
    };
    if (token->kind == T_NAME) {
        struct sb b;
        tpl_sb_init(&b, t);
        tpl_sb_str(&b, token->value.u.s);
        tpl_sb_char(&b, '\0');
        return b.p;
    }
    for (size_t i = 0; i < N_OPERATORS; i++)
        if (operators[i].kind == token->kind)
            return operators[i].text;
    return names[token->kind];
}
