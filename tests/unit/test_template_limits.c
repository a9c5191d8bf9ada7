/* test_template_limits.c - hostile templates and inputs end with an error that names the line and
 * the construct, soon and within the limits: endless loops, texts and lists without bound, deep
 * nesting of the source, of calls and of values, widths of formats. Failing memory is an error too.
 */
#include "../../client/llm_template.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#define INPUT "{\"messages\": [], \"lst\": [3, 1, 2], \"s\": \"text\"}"

static int render(const char *source, const char *input, const struct llm_template_limits *limits,
                  char *why, size_t why_size)
{
    struct llm_template *t;
    char *text = NULL;
    size_t bytes = 0;
    int rc = llm_template_parse(&t, source, strlen(source), why, why_size);
    if (rc < 0)
        return rc;
    rc = llm_template_render(t, input, strlen(input), limits, &text, &bytes, why, why_size);
    assert_true((rc == 0) == (text != NULL));
    llm_template_free_text(text);
    llm_template_free(t);
    return rc;
}

struct hostile {
    const char *source;
    int code;
    const char *line, *construct; /* both in the message */
};

static void check(const struct hostile *h, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char why[512] = "";
        int rc = render(h[i].source, INPUT, NULL, why, sizeof why);
        if (rc != h[i].code || !strstr(why, h[i].line) || !strstr(why, h[i].construct))
            fail_msg("%.100s\n  code %d (wanted %d): %s", h[i].source, rc, h[i].code, why);
    }
}
#define CHECK(cases) check(cases, sizeof cases / sizeof *cases)

#define LIMIT  LLM_TEMPLATE_ELIMIT
#define FAILED LLM_TEMPLATE_EFAILED

static void loops_without_end(void **state)
{
    static const struct hostile cases[] = {
        {"\n{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", LIMIT,
         "line 2", "for"},
        {"{% for a in range(10 ** 9) %}{% endfor %}", FAILED, "line 1", "range"},
        {"\n\n{% for a in range(99999) %}{% if -1 in range(99999) %}{% endif %}{% endfor %}", LIMIT,
         "line 3", "comparison"},
        {"{% for a in range(99999) %}{% set x = range(99999) | sum %}{% endfor %}", LIMIT, "line 1",
         "filter 'sum'"},
        {"{% set a = 'x' * 10000000 %}{% set b = a ~ '' %}\n"
         "{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}",
         LIMIT, "line 2", "comparison"},
        {"{% set a = 'x' * 10000000 %}{% for i in range(99999) %}{{ a.count('y') }}{% endfor %}",
         LIMIT, "line 1", "call of 'count'"},
        {"{% set a = '\u00e9' * 10000000 %}{% for i in range(99999) %}{{ a[9999999] }}{% endfor %}",
         LIMIT, "line 1", "subscript"},
        {"{% set a = 'a' * 1000000 %}{% set b = 'b' ~ 'a' * 500000 %}{{ a.rfind(b) }}", LIMIT,
         "line 1", "call of 'rfind'"},
        {"{% set n = namespace(v=(1,)) %}{% for i in range(60) %}{% set n.v = (n.v, n.v) %}"
         "{% endfor %}{{ {n.v: 1} }}",
         LIMIT, "line 1", "dict"},
        {"{% set n = namespace(v=[1], w=[1]) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}"
         "{% set n.w = [n.w, n.w] %}{% endfor %}{{ n.v == n.w }}",
         LIMIT, "line 1", "comparison"},
    };
    (void)state;
    CHECK(cases);
}

static void texts_without_bound(void **state)
{
    static const struct hostile cases[] = {
        {"{{ 'x' * 10 ** 9 }}", LIMIT, "line 1", "operator '*'"},
        {"{{ 'x' * 10 ** 30 }}", LIMIT, "line 1", "operator '*'"},
        {"{{ [1] * 10 ** 18 }}", LIMIT, "line 1", "operator '*'"},
        {"{% set n = namespace(s='0123456789') %}\n{% for i in range(60) %}"
         "{% set n.s = n.s + n.s %}{% endfor %}",
         LIMIT, "line 2", "operator '+'"},
        {"{% set n = namespace(s='0123456789') %}\n{% for i in range(60) %}"
         "{% set n.s = n.s ~ n.s %}{% endfor %}",
         LIMIT, "line 2", "operator"},
        {"{% set n = namespace(v=[1]) %}{% for i in range(60) %}{% set n.v = [n.v, n.v] %}"
         "{% endfor %}{{ n.v | tojson }}",
         LIMIT, "line 1", "filter 'tojson'"},
        {"{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", LIMIT, "line 1", "output"},
        {"{{ '%1000000000d' % 1 }}", LIMIT, "line 1", "operator '%'"},
        {"{{ '%.1000000000f' % 1.5 }}", LIMIT, "line 1", "operator '%'"},
        {"{{ '%*d' % (10 ** 9, 1) }}", LIMIT, "line 1", "operator '%'"},
        {"{{ '{:1000000000}'.format(1) }}", LIMIT, "line 1", "call of 'format'"},
        {"{{ '{:01000000000,}'.format(1) }}", LIMIT, "line 1", "call of 'format'"},
        {"{{ '{:.1000000000f}'.format(1.5) }}", LIMIT, "line 1", "call of 'format'"},
        {"{{ 'a' | center(10 ** 9) }}", LIMIT, "line 1", "filter 'center'"},
        {"{{ 'a' | indent(10 ** 9, true) }}", LIMIT, "line 1", "filter 'indent'"},
        {"{{ 'a'.zfill(10 ** 10) }}", LIMIT, "line 1", "call of 'zfill'"},
        {"{{ '\t'.expandtabs(10 ** 9) }}", LIMIT, "line 1", "call of 'expandtabs'"},
        {"{{ [1] | tojson(indent=10 ** 9) }}", LIMIT, "line 1", "filter 'tojson'"},
        {"{{ [1] | batch(10 ** 9, 1) | list }}", LIMIT, "line 1", "filter 'list'"},
        {"{{ [1] | slice(10 ** 9) | list }}", LIMIT, "line 1", "filter 'list'"},
        {"{{ 10 ** 100000 }}", LIMIT, "line 1", "operator '**'"},
        {"{{ 2 ** 60000 * 2 ** 60000 }}", LIMIT, "line 1", "operator '*'"},
        {"{{ 2 ** 60000 }}", FAILED, "line 1", "output"},
        {"{{ strftime_now('%1000000000d') }}", LIMIT, "line 1", "call of 'strftime_now'"},
    };
    (void)state;
    CHECK(cases);
}

static void endless_recursion(void **state)
{
    static const struct hostile cases[] = {
        {"{% macro m() %}\n{{ m() }}{% endmacro %}{{ m() }}", LIMIT, "line 2", "call of 'm'"},
        {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
         LIMIT, "line 1", "call of"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", LIMIT, "line 1", "for"},
        {"{% block b %}{{ self.b() }}{% endblock %}", LIMIT, "line 1", "call of 'b'"},
        {"{% set n = namespace() %}{% set n.n = n %}{{ n }}", LIMIT, "line 1", "output"},
        {"{% set n = namespace(v=[1]) %}{% for i in range(5000) %}{% set n.v = [n.v] %}{% endfor %}"
         "{{ n.v | tojson }}",
         LIMIT, "line 1", "filter 'tojson'"},
        {"{% set n = namespace(v=[1]) %}{% for i in range(5000) %}{% set n.v = [n.v] %}{% endfor %}"
         "{{ n.v | pprint }}",
         LIMIT, "line 1", "filter 'pprint'"},
    };
    (void)state;
    CHECK(cases);
}

/* `before` n times, `middle`, `after` n times */
static char *nested(const char *before, const char *middle, const char *after, size_t n)
{
    size_t room = n * (strlen(before) + strlen(after)) + strlen(middle) + 1, at = 0;
    char *text = malloc(room);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s", before);
    at += (size_t)sprintf(text + at, "%s", middle);
    for (size_t i = 0; i < n; i++)
        at += (size_t)sprintf(text + at, "%s", after);
    return text;
}

static void deep_sources(void **state)
{
    static const struct {
        const char *start, *before, *middle, *after, *end;
    } shapes[] = {
        {"\n{{ ", "(", "1", ")", " }}"},
        {"\n{{ ", "[", "", "]", " }}"},
        {"\n{{ ", "{1:", "1", "}", " }}"},
        {"\n{{ ", "-", "1", "", " }}"},
        {"\n{{ ", "not ", "1", "", " }}"},
        {"\n{{ 1", "+1", "", "", " }}"},
        {"\n{{ 1", "|abs", "", "", " }}"},
        {"\n{{ a", ".b", "", "", " }}"},
        {"\n{{ a", "()", "", "", " }}"},
        {"\n{{ 1", " if 1 else 1", "", "", " }}"},
        {"\n{{ 1", " and 1", "", "", " }}"},
        {"\n{{ ", "f(", "", ")", " }}"},
        {"\n", "{% if 1 %}", "", "{% endif %}", ""},
        {"\n", "{% for x in y %}", "", "{% endfor %}", ""},
        {"\n", "{% macro m() %}", "", "{% endmacro %}", ""},
        {"\n{% set ", "(", "x", ")", " = 1 %}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char *inner = nested(shapes[i].before, shapes[i].middle, shapes[i].after, 100000);
        char *source = malloc(strlen(inner) + 40), why[256] = "";
        sprintf(source, "%s%s%s", shapes[i].start, inner, shapes[i].end);
        int rc = render(source, INPUT, NULL, why, sizeof why);
        if (rc != LIMIT || !strstr(why, "line 2") || !strstr(why, "deep"))
            fail_msg("%s: code %d: %s", shapes[i].before, rc, why);
        free(inner);
        free(source);
    }
}

static void deep_input(void **state)
{
    char *array = nested("[", "", "]", 100000), why[256];
    char *input = malloc(strlen(array) + 40);
    (void)state;
    sprintf(input, "{\"messages\": %s}", array);
    assert_int_equal(render("x", input, NULL, why, sizeof why), LIMIT);
    free(input);
    free(array);
}

/* The stack that the header promises to be enough; sanitizers make frames larger. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK (16 << 20)
#else
#define STACK (1 << 20)
#endif

struct deep {
    int recursion, endless, brackets, chain, tags;
};

static int render_nested(const char *start, const char *before, const char *middle,
                         const char *after, size_t n)
{
    char *inner = nested(before, middle, after, n), why[256];
    char *source = malloc(strlen(inner) + 40);
    sprintf(source, "%s%s%s", start, inner, *start ? " }}" : "");
    int rc = render(source, INPUT, NULL, why, sizeof why);
    free(inner);
    free(source);
    return rc;
}

static void *run_deep(void *context)
{
    static const char source[] =
        "{% macro m(n) %}{% if n %}{% for i in [1] %}({{ m(n - 1) }}){% endfor %}{% endif %}"
        "{% endmacro %}{{ m(100) | length }}";
    struct deep *d = context;
    char why[256];
    d->recursion = render(source, INPUT, NULL, why, sizeof why);
    d->endless =
        render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", INPUT, NULL, why, sizeof why);
    d->brackets = render_nested("{{ ", "(", "1", ")", 90);
    d->chain = render_nested("{{ 1", "+1", "", "", 900);
    d->tags = render_nested("", "{% for x in lst[:1] %}", "{{ x }}", "{% endfor %}", 99);
    return NULL;
}

/* What is legitimate and deep still works. */
static void deep_templates_on_a_small_stack(void **state)
{
    pthread_attr_t attr;
    pthread_t thread;
    struct deep d = {1, 1, 1, 1, 1};
    (void)state;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_deep, &d), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    assert_int_equal(d.recursion, 0);
    assert_int_equal(d.endless, LIMIT);
    assert_int_equal(d.brackets, 0);
    assert_int_equal(d.chain, 0);
    assert_int_equal(d.tags, 0);
}

static void stated_limits_hold(void **state)
{
    struct llm_template_limits l = LLM_TEMPLATE_LIMITS_INIT;
    char why[256];
    (void)state;
    assert_int_equal(render("{{ 'x' * 100 }}", INPUT, &l, why, sizeof why), 0);
    l.max_output_bytes = 100;
    assert_int_equal(render("{{ 'x' * 100 }}", INPUT, &l, why, sizeof why), 0);
    l.max_output_bytes = 99;
    assert_int_equal(render("{{ 'x' * 100 }}", INPUT, &l, why, sizeof why), LIMIT);
    l = (struct llm_template_limits)LLM_TEMPLATE_LIMITS_INIT;
    l.max_steps = 1000;
    assert_int_equal(render("{% for i in range(9) %}{% endfor %}", INPUT, &l, why, sizeof why), 0);
    assert_int_equal(render("{% for i in range(999) %}{% endfor %}", INPUT, &l, why, sizeof why),
                     LIMIT);
    l = (struct llm_template_limits)LLM_TEMPLATE_LIMITS_INIT;
    l.max_memory_bytes = 1 << 20;
    assert_int_equal(render("{{ ('x' * 100000) | length }}", INPUT, &l, why, sizeof why), 0);
    assert_int_equal(render("{{ ('x' * 2000000) | length }}", INPUT, &l, why, sizeof why), LIMIT);
    l = (struct llm_template_limits)LLM_TEMPLATE_LIMITS_INIT;
    l.max_depth = 20;
    assert_int_equal(render("{{ ((((1)))) }}", INPUT, &l, why, sizeof why), 0);
    assert_int_equal(render("{{ 1"
                            "+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1+1"
                            " }}",
                            INPUT, &l, why, sizeof why),
                     LIMIT);
    l.size = 3;
    assert_int_equal(render("x", INPUT, &l, why, sizeof why), -EINVAL);
}

static void text_that_grows_by_appending(void **state)
{
    /* 30000 pieces of 100 bytes: without sharing of what is there, 45 GB would be copied */
    static const char source[] = "{% set n = namespace(s='') %}{% for i in range(30000) %}"
                                 "{% set n.s = n.s ~ 'x' * 100 %}{% endfor %}{{ n.s | length }}";
    char why[256];
    (void)state;
    assert_int_equal(render(source, INPUT, NULL, why, sizeof why), 0);
}

static void wrong_inputs(void **state)
{
    static const struct {
        const char *input, *message;
    } cases[] = {
        {"{}", "`messages`"},
        {"[]", "JSON object"},
        {"", "JSON"},
        {"{\"messages\": []", "JSON"},
        {"{\"messages\": []} x", "JSON"},
        {"{\"messages\": {}}", "`messages`"},
        {"{\"messages\": \"hi\"}", "`messages`"},
        {"{\"messages\": null}", "`messages`"},
        {"{\"messages\": [], \"tools\": 5}", "`tools`"},
        {"{\"messages\": [], \"tools\": [\"x\"]}", "`tools`"},
        {"{\"messages\": [], \"documents\": {}}", "`documents`"},
        {"{\"messages\": [], \"add_generation_prompt\": \"yes\"}", "`add_generation_prompt`"},
        {"{\"messages\": [], \"bos_token\": 1}", "`bos_token`"},
        {"{\"messages\": [], \"now\": 5}", "`now`"},
        {"{\"messages\": [\"\xff\"]}", "UTF-8"},
        {"{\"messages\": [\"\\ud800\"]}", "surrogate"},
        {"{\"messages\": [\"\\udc00x\"]}", "surrogate"},
        {"{\"messages\": [01]}", "JSON"},
        {"{\"messages\": [1.]}", "JSON"},
        {"{\"messages\": [\"\n\"]}", "control character"},
        {"{\"messages\": [nul]}", "JSON"},
        {"{\"messages\": [], x: 1}", "JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[256] = "";
        int rc = render("x", cases[i].input, NULL, why, sizeof why);
        if (rc != LLM_TEMPLATE_EINPUT || !strstr(why, cases[i].message))
            fail_msg("%s: code %d: %s", cases[i].input, rc, why);
    }
}

static void wrong_templates(void **state)
{
    static const struct hostile cases[] = {
        {"a\n{{ x", LLM_TEMPLATE_ESYNTAX, "line 2", "end of template"},
        {"a\n{% if x %}", LLM_TEMPLATE_ESYNTAX, "line 2", "tag 'if'"},
        {"a\n{% nosuch %}", LLM_TEMPLATE_ESYNTAX, "line 2", "nosuch"},
        {"a\n{{ x | nosuch }}", LLM_TEMPLATE_ESYNTAX, "line 2", "filter 'nosuch'"},
        {"a\n{{ x is nosuch }}", LLM_TEMPLATE_ESYNTAX, "line 2", "test 'nosuch'"},
        {"a\n{% set 5 = 6 %}", LLM_TEMPLATE_ESYNTAX, "line 2", "tag 'set'"},
        {"\xff", LLM_TEMPLATE_ESYNTAX, "UTF-8", "byte 0"},
        {"a\n{% include 'x' %}", FAILED, "line 2", "include"},
        {"a\n{{ nothing.x }}", FAILED, "line 2", "'nothing' is undefined"},
        {"a\n{{ lst.append(1) }}", FAILED, "line 2", "unsafe"},
        {"a\n{{ 1 + 'x' }}", FAILED, "line 2", "operator '+'"},
        {"a\n{{ '\\ud800' }}", FAILED, "surrogate", "U+D800"},
        {"a\n{{ raise_exception('no: ' ~ s) }}", LLM_TEMPLATE_ERAISED, "line 2", "no: text"},
    };
    (void)state;
    CHECK(cases);
}

/* The message is cut, never in the middle of a character. */
static void short_messages(void **state)
{
    static const char source[] = "{{ raise_exception('\u00e9\u20ac\U0001f642' * 20) }}";
    (void)state;
    for (size_t size = 0; size < 120; size++) {
        char why[128];
        memset(why, 'Z', sizeof why);
        assert_int_equal(render(source, INPUT, NULL, size ? why : NULL, size),
                         LLM_TEMPLATE_ERAISED);
        for (size_t i = size; i < sizeof why; i++)
            assert_int_equal(why[i], 'Z');
        size_t n = size ? strlen(why) : 0, tail = 0;
        while (tail < n && ((unsigned char)why[n - 1 - tail] & 0xc0) == 0x80)
            tail++;
        unsigned char lead = tail < n ? (unsigned char)why[n - 1 - tail] : 'x';
        assert_int_equal(tail, lead < 0xc0 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3);
    }
}

/* With address space for less and less memory: a text or -ENOMEM, nothing else. Not under a
 * sanitizer, whose own memory would run out. */
static void memory_that_runs_out(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#else
    static const char source[] = "{{ ('x' * 100000000) | length }}{{ 'y' * 50000000 }}";
    struct rlimit old, low;
    unsigned failed = 0, worked = 0;
    char why[256];
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    for (rlim_t mib = 16; mib <= 1024; mib *= 2) {
        low = (struct rlimit){mib << 20, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
        int rc = render(source, INPUT, NULL, why, sizeof why);
        assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
        assert_true(rc == 0 || rc == -ENOMEM);
        failed += rc != 0;
        worked += rc == 0;
    }
    assert_true(failed && worked);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_without_end),  cmocka_unit_test(texts_without_bound),
        cmocka_unit_test(endless_recursion),  cmocka_unit_test(deep_sources),
        cmocka_unit_test(deep_input),         cmocka_unit_test(deep_templates_on_a_small_stack),
        cmocka_unit_test(stated_limits_hold), cmocka_unit_test(text_that_grows_by_appending),
        cmocka_unit_test(wrong_inputs),       cmocka_unit_test(wrong_templates),
        cmocka_unit_test(short_messages),     cmocka_unit_test(memory_that_runs_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
