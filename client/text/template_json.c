/* template_json.c - reads the input: JSON as Python's json.loads takes it.
 *
 * RFC 8259, and beyond it NaN, Infinity and -Infinity. Of members of the same name the last one
 * wins, in the place of the first. Integers stay exact. Ill-formed UTF-8 is refused, and so is a
 * half of a surrogate pair.
 */
#include "template_internal.h"
#include "utf8.h"

#include <stdlib.h>

struct json {
    struct tpl *t;
    const char *begin, *p, *end;
};

static _Noreturn void bad(struct json *j, const char *what)
{
    tpl_fail(j->t, LLM_TEMPLATE_EINPUT, "the input is not well-formed JSON: %s at byte %zu", what,
             (size_t)(j->p - j->begin));
}

static void skip_space(struct json *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t'))
        j->p++;
}

static bool word(struct json *j, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(j->end - j->p) < n || memcmp(j->p, text, n))
        return false;
    j->p += n;
    return true;
}

/* ---- strings ---- */

static uint32_t hex4(struct json *j)
{
    uint32_t v = 0;
    if (j->end - j->p < 4)
        bad(j, "an escape is cut off");
    for (int i = 0; i < 4; i++, j->p++) {
        char c = *j->p;
        if (c >= '0' && c <= '9')
            v = v << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            v = v << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            bad(j, "an escape needs four hexadecimal digits");
    }
    return v;
}

static uint32_t unicode_escape(struct json *j)
{
    uint32_t high = hex4(j);
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high > 0xdbff || j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u')
        bad(j, "half of a surrogate pair");
    j->p += 2;
    uint32_t low = hex4(j);
    if (low < 0xdc00 || low > 0xdfff)
        bad(j, "half of a surrogate pair");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
}

static void escape_sequence(struct json *j, struct sb *b)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    j->p++;
    if (j->p == j->end)
        bad(j, "a string does not end");
    const char *known = memchr(from, *j->p, sizeof from - 1);
    if (!known && *j->p != 'u')
        bad(j, "an unknown escape");
    j->p++;
    if (known)
        tpl_sb_char(b, to[known - from]);
    else
        tpl_sb_cp(b, unicode_escape(j));
}

static void plain_text(struct json *j, struct sb *b)
{
    const char *from = j->p;
    while (j->p < j->end && *j->p != '"' && *j->p != '\\') {
        unsigned n;
        if ((unsigned char)*j->p < 0x20)
            bad(j, "a control character in a string");
        if (utf8_decode(j->p, (size_t)(j->end - j->p), &n) < 0)
            bad(j, "ill-formed UTF-8");
        j->p += n;
    }
    tpl_sb_put(b, from, (size_t)(j->p - from));
}

static const struct str *string(struct json *j)
{
    struct sb b;
    tpl_sb_init(&b, j->t);
    for (j->p++;;) {
        plain_text(j, &b);
        if (j->p == j->end)
            bad(j, "a string does not end");
        if (*j->p == '"')
            break;
        escape_sequence(j, &b);
    }
    j->p++;
    return tpl_sb_done(&b);
}

/* ---- numbers ---- */

static void digits(struct json *j)
{
    if (j->p == j->end || *j->p < '0' || *j->p > '9')
        bad(j, "a number lacks digits");
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9')
        j->p++;
}

static struct value real(struct json *j, const char *from)
{
    double f;
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        digits(j);
    }
    if (j->p < j->end && (*j->p | 0x20) == 'e') {
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
            j->p++;
        digits(j);
    }
    if (!tpl_num_parse_float(j->t, from, (size_t)(j->p - from), &f))
        bad(j, "a number that cannot be read");
    return FLOAT(f);
}

static struct value number(struct json *j)
{
    const char *from = j->p;
    struct value v;
    if (*j->p == '-')
        j->p++;
    if (word(j, "Infinity"))
        return FLOAT(*from == '-' ? -__builtin_inf() : __builtin_inf());
    const char *first = j->p;
    digits(j);
    if (*first == '0' && j->p > first + 1)
        bad(j, "a number begins with 0");
    if (j->p < j->end && (*j->p == '.' || (*j->p | 0x20) == 'e'))
        return real(j, from);
    if (!tpl_num_parse_int(j->t, from, (size_t)(j->p - from), 10, &v))
        bad(j, "an integer of too many digits");
    return v;
}

/* ---- values ---- */

static struct value parse_value(struct json *j);

/* Behind an element: true if another one follows. */
static bool more(struct json *j, char close)
{
    skip_space(j);
    if (j->p == j->end || (*j->p != ',' && *j->p != close))
        bad(j, close == ']' ? "',' or ']' is missing" : "',' or '}' is missing");
    return *j->p++ == ',';
}

static struct value array(struct json *j)
{
    struct list *l = tpl_list_new(j->t, 0);
    j->p++;
    skip_space(j);
    if (j->p < j->end && *j->p == ']') {
        j->p++;
        return LIST(l);
    }
    do
        tpl_list_add(j->t, l, parse_value(j));
    while (more(j, ']'));
    return LIST(l);
}

static struct value object(struct json *j)
{
    struct dict *d = tpl_dict_new(j->t);
    j->p++;
    skip_space(j);
    if (j->p < j->end && *j->p == '}') {
        j->p++;
        return DICT(d);
    }
    do {
        skip_space(j);
        if (j->p == j->end || *j->p != '"')
            bad(j, "a member needs a name in quotes");
        const struct str *key = string(j);
        skip_space(j);
        if (j->p == j->end || *j->p++ != ':')
            bad(j, "':' is missing");
        tpl_dict_set(j->t, d, STR(key), parse_value(j));
    } while (more(j, '}'));
    return DICT(d);
}

static struct value scalar(struct json *j)
{
    if (*j->p == '"')
        return STR(string(j));
    if (*j->p == '-' || (*j->p >= '0' && *j->p <= '9') || *j->p == 'I')
        return number(j);
    if (word(j, "null"))
        return NONE;
    if (word(j, "true"))
        return BOOL(true);
    if (word(j, "false"))
        return BOOL(false);
    if (word(j, "NaN"))
        return FLOAT(__builtin_nan(""));
    bad(j, "something that is no value");
}

static struct value parse_value(struct json *j)
{
    struct value v;
    skip_space(j);
    if (j->p == j->end)
        bad(j, "a value is missing");
    tpl_enter(j->t);
    v = *j->p == '[' ? array(j) : *j->p == '{' ? object(j) : scalar(j);
    tpl_leave(j->t);
    return v;
}

struct value tpl_json_parse(struct tpl *t, const char *text, size_t bytes)
{
    struct json j = {t, text, text, text + bytes};
    tpl_step(t, bytes / 64);
    struct value v = parse_value(&j);
    skip_space(&j);
    if (j.p != j.end)
        bad(&j, "something follows the value");
    return v;
}
