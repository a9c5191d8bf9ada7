/* template_call.c - calls, and the functions that every template has: range, dict, namespace,
 * cycler, joiner, lipsum, raise_exception, strftime_now.
 */
#include "template_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MAX_RANGE 100000 /* elements, as the sandbox allows */

/* ---- arguments ---- */

static _Noreturn void unexpected_keyword(struct tpl *t, const char *who, const struct str *name)
{
    tpl_error(t, "%s() got an unexpected keyword argument '%.*s'", who, (int)name->bytes, name->p);
}

static void bind_keyword(struct tpl *t, const char *who, const struct signature *s,
                         const struct keyword *kw, struct value *out)
{
    if (s->positional)
        tpl_error(t, "%s() takes no keyword arguments", who);
    for (size_t i = 0; i < 8 && s->names[i]; i++)
        if (tpl_str_is(kw->name, s->names[i])) {
            if (GIVEN(out[i]))
                tpl_error(t, "%s() got multiple values for argument '%s'", who, s->names[i]);
            out[i] = kw->value;
            return;
        }
    unexpected_keyword(t, who, kw->name);
}

void tpl_args_bind(struct tpl *t, const char *who, const struct signature *s, const struct args *a,
                   struct value *out)
{
    uint32_t most = 0;
    while (most < 8 && s->names[most])
        most++;
    if (a->n > most)
        tpl_error(t, "%s() takes at most %u arguments (%u given)", who, most, a->n);
    for (uint32_t i = 0; i < most; i++)
        out[i] = i < a->n ? a->v[i] : MISSING;
    for (uint32_t i = 0; i < a->n_kw; i++)
        bind_keyword(t, who, s, &a->kw[i], out);
    for (uint32_t i = 0; i < s->required; i++)
        if (!GIVEN(out[i]))
            tpl_error(t, "%s() missing a required argument: '%s'", who, s->names[i]);
}

/* ---- range, dict, namespace, cycler, joiner ---- */

static int64_t range_length(int64_t start, int64_t stop, int64_t step)
{
    __int128 way = step > 0 ? (__int128)stop - start : (__int128)start - stop;
    __int128 size = step > 0 ? step : -(__int128)step;
    if (way <= 0)
        return 0;
    __int128 n = (way - 1) / size + 1;
    return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}

static struct value f_range(struct tpl *t, const struct args *a)
{
    if (a->n_kw)
        tpl_error(t, "range() takes no keyword arguments");
    if (a->n < 1 || a->n > 3)
        tpl_error(t, "range expected 1 to 3 arguments, got %u", a->n);
    struct range *r = tpl_alloc(t, sizeof *r);
    r->start = a->n > 1 ? tpl_value_index(t, a->v[0]) : 0;
    r->stop = tpl_value_index(t, a->v[a->n > 1]);
    r->step = a->n > 2 ? tpl_value_index(t, a->v[2]) : 1;
    if (!r->step)
        tpl_error(t, "range() arg 3 must not be zero");
    r->length = range_length(r->start, r->stop, r->step);
    if (r->length > MAX_RANGE)
        tpl_error(t, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).",
                  MAX_RANGE);
    return (struct value){V_RANGE, {.range = r}};
}

static struct value f_dict(struct tpl *t, const struct args *a)
{
    return DICT(tpl_dict_make(t, a, "dict"));
}

static struct value f_namespace(struct tpl *t, const struct args *a)
{
    return (struct value){V_NAMESPACE, {.ns = tpl_dict_make(t, a, "namespace")}};
}

static struct value f_cycler(struct tpl *t, const struct args *a)
{
    if (a->n_kw)
        unexpected_keyword(t, "cycler", a->kw[0].name);
    if (!a->n)
        tpl_error(t, "at least one item has to be provided");
    struct cycler *c = tpl_zalloc(t, sizeof *c);
    c->items = tpl_tuple_of(t, a->n, a->v).u.l;
    return (struct value){V_CYCLER, {.cycler = c}};
}

static struct value f_joiner(struct tpl *t, const struct args *a)
{
    static const struct signature signature = {{"sep"}, 0, false};
    struct value separator;
    tpl_args_bind(t, "joiner", &signature, a, &separator);
    struct joiner *j = tpl_zalloc(t, sizeof *j);
    j->separator = GIVEN(separator) ? separator : STR(tpl_str_text(t, ", "));
    return (struct value){V_JOINER, {.joiner = j}};
}

static struct value call_joiner(struct tpl *t, struct joiner *j, const struct args *a)
{
    if (a->n || a->n_kw)
        tpl_error(t, "joiner takes no arguments");
    if (j->used)
        return j->separator;
    j->used = true;
    return STR(tpl_str_text(t, ""));
}

/* ---- lipsum ---- */

static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void lorem_paragraph(struct sb *b, uint64_t *state, uint32_t words)
{
    static const char *const lorem[] = {"lorem", "ipsum", "dolor",       "sit",  "amet",
                                        "magna", "nulla", "consectetur", "elit", "vitae"};
    for (uint32_t i = 0; i < words; i++) {
        const char *word = lorem[draw(state, 10)];
        tpl_step(b->t, 1);
        tpl_sb_char(b, (char)(i ? *word : *word - 'a' + 'A'));
        tpl_sb_text(b, word + 1);
        tpl_sb_char(b, i + 1 < words ? ' ' : '.');
    }
}

/* Filler text: the same in every rendering, where Jinja2's is random. */
static struct value f_lipsum(struct tpl *t, const struct args *a)
{
    static const struct signature signature = {{"n", "html", "min", "max"}, 0, false};
    struct value v[4];
    struct sb b;
    uint64_t state = 1;
    tpl_args_bind(t, "lipsum", &signature, a, v);
    int64_t n = GIVEN(v[0]) ? tpl_value_index(t, v[0]) : 5;
    int64_t min = GIVEN(v[2]) ? tpl_value_index(t, v[2]) : 20;
    int64_t max = GIVEN(v[3]) ? tpl_value_index(t, v[3]) : 100;
    bool html = !GIVEN(v[1]) || tpl_value_true(t, v[1]);
    if (min < 0 || max <= min || max > MAX_RANGE)
        tpl_error(t, "empty range for randrange()");
    tpl_sb_init(&b, t);
    for (int64_t i = 0; i < n; i++) {
        tpl_sb_text(&b, !i ? "" : html ? "\n" : "\n\n");
        tpl_sb_text(&b, html ? "<p>" : "");
        lorem_paragraph(&b, &state, (uint32_t)min + draw(&state, (uint32_t)(max - min)));
        tpl_sb_text(&b, html ? "</p>" : "");
    }
    return tpl_str_markup(t, tpl_sb_done(&b), html);
}

/* ---- raise_exception, strftime_now ---- */

static struct value f_raise_exception(struct tpl *t, const struct args *a)
{
    static const struct signature signature = {{"message"}, 1, false};
    struct value message;
    tpl_args_bind(t, "raise_exception", &signature, a, &message);
    const struct str *text = tpl_value_str(t, message);
    t->what = "raise_exception";
    t->what_name = NULL;
    tpl_fail(t, LLM_TEMPLATE_ERAISED, "%.*s", (int)text->bytes, text->p);
}

static bool leap(int year)
{
    return (year % 4 == 0 && year % 100) || year % 400 == 0;
}

/* Fills the day of the week and of the year. */
static void complete(struct tm *tm)
{
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int year = tm->tm_year + 1900, y = year - 1;
    tm->tm_yday = before[tm->tm_mon] + tm->tm_mday - 1 + (tm->tm_mon > 1 && leap(year));
    tm->tm_wday = (y * 365 + y / 4 - y / 100 + y / 400 + tm->tm_yday + 1) % 7;
    tm->tm_isdst = -1;
}

static int number(const char *p, int n)
{
    int v = 0;
    for (int i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9')
            return -1;
        v = v * 10 + p[i] - '0';
    }
    return v;
}

/* "YYYY-MM-DD HH:MM:SS"; false if it is no such time */
bool tpl_read_time(const struct str *s, struct tm *tm)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const char *p = s->p;
    if (s->bytes != 19 || p[4] != '-' || p[7] != '-' || (p[10] != ' ' && p[10] != 'T') ||
        p[13] != ':' || p[16] != ':')
        return false;
    int year = number(p, 4), month = number(p + 5, 2);
    *tm = (struct tm){.tm_year = year - 1900,
                      .tm_mon = month - 1,
                      .tm_mday = number(p + 8, 2),
                      .tm_hour = number(p + 11, 2),
                      .tm_min = number(p + 14, 2),
                      .tm_sec = number(p + 17, 2)};
    if (year < 1 || month < 1 || month > 12 || tm->tm_mday < 1 || tm->tm_hour < 0 ||
        tm->tm_hour > 23 || tm->tm_min < 0 || tm->tm_min > 59 || tm->tm_sec < 0 || tm->tm_sec > 59)
        return false;
    if (tm->tm_mday > days[month - 1] + (month == 2 && leap(year)))
        return false;
    complete(tm);
    return true;
}

static struct tm now(struct tpl *t)
{
    struct tm tm;
    time_t clock = time(NULL);
    if (t->has_now)
        return t->now;
    localtime_r(&clock, &tm);
    complete(&tm);
    return tm;
}

/* The directives that Python itself replaces: no microseconds, no time zone. */
static const char *python_format(struct tpl *t, const struct str *format)
{
    struct sb b;
    tpl_sb_init(&b, t);
    for (uint32_t i = 0; i < format->bytes; i++) {
        char c = format->p[i], next = i + 1 < format->bytes ? format->p[i + 1] : 0;
        if (c != '%' || !next) {
            tpl_sb_char(&b, c);
            continue;
        }
        i++;
        if (next == 'f')
            tpl_sb_text(&b, "000000");
        else if (next != 'z' && next != 'Z') {
            tpl_sb_char(&b, '%');
            tpl_sb_char(&b, next);
        }
    }
    tpl_sb_text(&b, "|"); /* so that no result is empty */
    tpl_sb_char(&b, '\0');
    return b.p;
}

static struct value f_strftime_now(struct tpl *t, const struct args *a)
{
    static const struct signature signature = {{"format"}, 1, false};
    struct value format;
    tpl_args_bind(t, "strftime_now", &signature, a, &format);
    const struct str *s = tpl_value_need_str(t, format, "strftime() argument 1");
    if (memchr(s->p, '\0', s->bytes))
        tpl_error(t, "embedded null character");
    const char *text = python_format(t, s);
    struct tm tm = now(t);
    size_t room = 256 + (size_t)s->bytes * 16;
    char *out = tpl_alloc(t, room);
    size_t n = strftime(out, room, text, &tm);
    if (!n)
        tpl_limit(t, "a time of more than %zu bytes", room);
    return STR(tpl_str_ref(t, out, n - 1));
}

/* ---- all of them ---- */

static const struct function functions[] = {
    {"range", "safe_range", false, f_range},
    {"dict", "dict", true, f_dict},
    {"namespace", "jinja2.utils.Namespace", true, f_namespace},
    {"cycler", "jinja2.utils.Cycler", true, f_cycler},
    {"joiner", "jinja2.utils.Joiner", true, f_joiner},
    {"lipsum", "generate_lorem_ipsum", false, f_lipsum},
    {"raise_exception", "raise_exception", false, f_raise_exception},
    {"strftime_now", "strftime_now", false, f_strftime_now},
};

const struct dict *tpl_call_globals(struct tpl *t)
{
    struct dict *d = tpl_dict_new(t);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        tpl_dict_set(t, d, STR(tpl_str_text(t, functions[i].name)),
                     (struct value){V_FUNCTION, {.function = &functions[i]}});
    return d;
}

bool tpl_value_callable(struct value v)
{
    switch (v.kind) {
    case V_UNDEFINED:
    case V_MACRO:
    case V_LOOP:
    case V_JOINER:
    case V_BOUND:
    case V_FUNCTION:
    case V_BLOCK:
        return true;
    default:
        return false;
    }
}

struct value tpl_call_value(struct tpl *t, struct value f, const struct args *a)
{
    switch (f.kind) {
    case V_UNDEFINED:
        tpl_undefined_fail(t, f);
    case V_BOUND:
        return f.u.bound->method->call(t, f.u.bound->self, a);
    case V_FUNCTION:
        return f.u.function->call(t, a);
    case V_MACRO:
        return tpl_call_macro(t, f.u.macro, a);
    case V_LOOP:
        return tpl_call_loop(t, f.u.loop, a);
    case V_JOINER:
        return call_joiner(t, f.u.joiner, a);
    case V_BLOCK:
        if (a->n || a->n_kw)
            tpl_error(t, "a block takes no arguments");
        return tpl_call_block(t, f.u.block->def, t->context);
    default:
        tpl_error(t, "'%s' object is not callable", tpl_type_name(f));
    }
}
