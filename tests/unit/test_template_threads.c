/* test_template_threads.c - one parsed template rendered by several threads at once, while another
 * locale is in force: each gets its own text, and nothing of the template is written (TSan).
 */
#include "../../client/llm_template.h"

#include <locale.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { THREADS = 4, ROUNDS = 50 };

/* Two literals side by side make a long constant, to which each rendering appends. */
static char *source_text(void)
{
    static const char end[] = "' %}{% macro w(x) %}<{{ x }}>{% endmacro %}"
                              "{% for m in messages %}{{ m.content | upper }}{{ w(n) }}"
                              "{{ (s ~ n) | length }}{{ 1.5 + n }}{% endfor %}";
    char *text = malloc(2000 + sizeof end);
    assert_non_null(text);
    memset(text, 'x', 1200);
    memcpy(text, "{% set s = '", 12);
    memcpy(text + 600, "' '", 3);
    strcpy(text + 1200, end);
    return text;
}

struct job {
    const struct llm_template *template;
    unsigned number;
    char bad[200]; /* what was wrong, if something was */
};

static void *render_rounds(void *context)
{
    struct job *job = context;
    char input[200], wanted[100];
    sprintf(input, "{\"messages\": [{\"content\": \"m%u\"}], \"n\": %u}", job->number, job->number);
    sprintf(wanted, "M%u", job->number);
    for (int i = 0; i < ROUNDS; i++) {
        char *text, why[200];
        size_t bytes;
        int rc = llm_template_render(job->template, input, strlen(input), NULL, &text, &bytes, why,
                                     sizeof why);
        if (rc || strncmp(text, wanted, strlen(wanted)) || !strstr(text, ".5"))
            snprintf(job->bad, sizeof job->bad, "%s", rc ? why : text);
        llm_template_free_text(text);
    }
    return NULL;
}

static void side_by_side(void **state)
{
    struct llm_template *t;
    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    char why[200], *source = source_text();
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8"); /* a comma in numbers, where that locale is installed */
    int rc = llm_template_parse(&t, source, strlen(source), why, sizeof why);
    if (rc)
        fail_msg("%s", why);
    for (unsigned i = 0; i < THREADS; i++) {
        jobs[i] = (struct job){t, i, ""};
        assert_int_equal(pthread_create(&threads[i], NULL, render_rounds, &jobs[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_string_equal(jobs[i].bad, "");
    llm_template_free(t);
    free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(side_by_side)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
