/* test_fences.c - the ring functions do to shared words exactly what the models of tests/model do:
 * the source text against the table that the models execute. And the helpers of shm/order.h are of
 * the orders that their names say.
 */
#include <stdlib.h>
#include <string.h>

#include "../model/handshakes.h"
#include "../model/source_text.h"
#include "../support/support.h"

enum { SEQUENCE = 512 };

/* ---- rows as text: "order_release sq_tail; order_fence" ---- */

static void append(char *sequence, const char *call, const char *word)
{
    size_t n = strlen(sequence);
    snprintf(sequence + n, SEQUENCE - n, "%s%s%s%s", n ? "; " : "", call, *word ? " " : "", word);
}

static void expected_ops(const struct handshake_row *row, char *sequence)
{
    sequence[0] = 0;
    for (unsigned i = 0; i < HANDSHAKE_OPS && row->op[i].op != OP_NONE; i++)
        append(sequence, op_name[row->op[i].op], word_name[row->op[i].word]);
}

static void expected_calls(const struct caller_row *row, char *sequence)
{
    sequence[0] = 0;
    for (unsigned i = 0; i < CALLER_CALLS && row->call[i]; i++)
        append(sequence, row->call[i], "");
}

/* ---- what the source says ---- */

static bool is_order(const char *name)
{
    return !strncmp(name, "order_", 6);
}

/* True if any row of callers lists the name. */
static bool is_listed(const char *name)
{
    for (unsigned i = 0; i < n_callers; i++)
        for (unsigned j = 0; j < CALLER_CALLS && caller_table[i].call[j]; j++) {
            const char *call = caller_table[i].call[j];
            size_t n = strcspn(call, " ");
            if (n == strlen(name) && !strncmp(call, name, n))
                return true;
        }
    return false;
}

static bool is_word(const char *name)
{
    for (unsigned w = 1; w < WORDS; w++)
        if (!strcmp(name, word_name[w]))
            return true;
    return false;
}

/* The calls in the function that `wanted` names, in order; "no such function". */
static void actual(const char *text, const char *function, bool (*wanted)(const char *),
                   char *sequence)
{
    size_t at, end;
    struct source_call call;
    sequence[0] = 0;
    if (!source_function(text, function, &at, &end)) {
        append(sequence, "no such function", "");
        return;
    }
    while (source_next_call(text, &at, end, &call)) {
        char word[48];
        if (!wanted(call.name))
            continue;
        source_address(text, &call, word, sizeof word);
        append(sequence, call.name, is_order(call.name) || is_word(word) ? word : "");
    }
}

static bool row_holds(const char *text, const struct handshake_row *row, bool tell)
{
    char want[SEQUENCE], got[SEQUENCE];
    expected_ops(row, want);
    actual(text, row->function, is_order, got);
    if (tell && strcmp(want, got))
        print_error("%s, %s:\n  the model has: %s\n  the code has:  %s\n", row->file, row->function,
                    want, got);
    return !strcmp(want, got);
}

static char *text_of(const char *path)
{
    char *text = source_read(path);
    if (!text)
        fail_msg("cannot read %s: run the tests in the repository's root", path);
    source_blank(text);
    return text;
}

/* ---- tests ---- */

static void the_ring_functions_are_those_of_the_model(void **state)
{
    (void)state;
    bool good = true;
    for (unsigned h = 0; h < HANDSHAKES; h++) {
        char *text = text_of(handshake_table[h].file);
        good &= row_holds(text, &handshake_table[h], true);
        free(text);
    }
    assert_true(good);
}

/* No function of the ring files that the table does not list touches a shared word. */
static void nobody_else_touches_shared_words(void **state)
{
    static const char *const files[] = {"shm/ring_client.c", "shm/ring_engine.c"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        char *text = text_of(files[i]);
        unsigned calls = 0, listed = 0;
        size_t at = 0;
        struct source_call call;
        while (source_next_call(text, &at, strlen(text), &call))
            calls += is_order(call.name);
        for (unsigned h = 0; h < HANDSHAKES; h++)
            for (unsigned j = 0; j < HANDSHAKE_OPS && !strcmp(handshake_table[h].file, files[i]);
                 j++)
                listed += handshake_table[h].op[j].op != OP_NONE;
        assert_int_equal(calls, listed);
        assert_null(strstr(text, "atomic_"));
        assert_null(strstr(text, "__sync"));
        free(text);
    }
}

static void the_callers_keep_their_order(void **state)
{
    bool good = true;
    (void)state;
    for (unsigned i = 0; i < n_callers; i++) {
        const struct caller_row *row = &caller_table[i];
        char want[SEQUENCE], got[SEQUENCE], *text = text_of(row->file);
        expected_calls(row, want);
        actual(text, row->function, is_listed, got);
        if (strcmp(want, got))
            print_error("%s, %s:\n  the model has: %s\n  the code has:  %s\n", row->file,
                        row->function, want, got);
        good &= !strcmp(want, got);
        free(text);
    }
    assert_true(good);
}

static bool is_atomic(const char *name)
{
    return !strncmp(name, "atomic_", 7);
}

/* A helper is one C11 call of the stated order. */
static void check_helper(const char *text, const char *helper, const char *call, const char *order)
{
    char got[SEQUENCE];
    size_t begin, end;
    actual(text, helper, is_atomic, got);
    assert_string_equal(got, call);
    assert_true(source_function(text, helper, &begin, &end));
    char *body = strndup(text + begin, end - begin);
    const char *found = body ? strstr(body, "memory_order_") : NULL;
    assert_non_null(found);
    assert_memory_equal(found, order, strlen(order));
    assert_null(strstr(found + 1, "memory_order_"));
    free(body);
}

static void the_helpers_are_what_their_names_say(void **state)
{
    (void)state;
    char *text = text_of("shm/order.h");
    check_helper(text, "order_acquire", "atomic_load_explicit", "memory_order_acquire)");
    check_helper(text, "order_release", "atomic_store_explicit", "memory_order_release)");
    check_helper(text, "order_relaxed", "atomic_load_explicit", "memory_order_relaxed)");
    check_helper(text, "order_set", "atomic_store_explicit", "memory_order_relaxed)");
    check_helper(text, "order_fence", "atomic_thread_fence", "memory_order_seq_cst)");
    free(text);
}

/* ---- the checker itself ---- */

static unsigned faulty_rows(const char *text, const char *file)
{
    unsigned n = 0;
    for (unsigned h = 0; h < HANDSHAKES; h++)
        n += !strcmp(handshake_table[h].file, file) && !row_holds(text, &handshake_table[h], false);
    return n;
}

/* Each call of an order operation in the file, taken out alone, is seen in just its row. */
static void check_removals(const char *file)
{
    char *text = text_of(file);
    struct source_call call;
    unsigned removed = 0;
    for (size_t at = 0; source_next_call(text, &at, strlen(text), &call);) {
        if (!is_order(call.name))
            continue;
        size_t n = strlen(call.name), name = call.begin - 1 - n;
        assert_memory_equal(text + name, call.name, n);
        memcpy(text + name, "nothing_at_all", n);
        assert_int_equal(faulty_rows(text, file), 1);
        memcpy(text + name, call.name, n);
        removed++;
    }
    assert_int_equal(faulty_rows(text, file), 0);
    assert_true(removed >= 8);
    free(text);
}

static void a_removed_operation_is_seen(void **state)
{
    (void)state;
    check_removals("shm/ring_client.c");
    check_removals("shm/ring_engine.c");
}

/* A copy of the text with the first `from` behind the function's name replaced; malloc'ed. */
static char *replaced(const char *text, const char *function, const char *from, const char *to)
{
    size_t begin, end;
    assert_true(source_function(text, function, &begin, &end));
    const char *at = strstr(text + begin, from);
    assert_true(at && at < text + end);
    char *copy = malloc(strlen(text) + strlen(to) + 1);
    assert_non_null(copy);
    memcpy(copy, text, (size_t)(at - text));
    strcpy(copy + (at - text), to);
    strcat(copy, at + strlen(from));
    return copy;
}

static void check_change(const char *file, const char *function, const char *from, const char *to)
{
    char *text = source_read(file);
    assert_non_null(text);
    char *changed = replaced(text, function, from, to);
    source_blank(changed);
    assert_int_equal(faulty_rows(changed, file), 1);
    free(changed);
    free(text);
}

static void other_changes_are_seen(void **state)
{
    (void)state;
    const char *client = "shm/ring_client.c", *engine = "shm/ring_engine.c";
    check_change(client, "ring_submit", "    order_fence();\n", "");
    check_change(client, "ring_submit", "order_fence();", "/* order_fence(); */");
    check_change(client, "ring_submit", "order_fence();", "order_fence(); order_fence();");
    check_change(client, "ring_drained", "order_release", "order_set");
    check_change(client, "ring_drained", "down->cq_held", "pulse->need_wakeup");
    check_change(client, "ring_wait_begin", "order_acquire", "order_relaxed");
    check_change(engine, "ring_sweep", "&r->up->sq_tail", "&r->up->cq_head");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_ring_functions_are_those_of_the_model),
        cmocka_unit_test(nobody_else_touches_shared_words),
        cmocka_unit_test(the_callers_keep_their_order),
        cmocka_unit_test(the_helpers_are_what_their_names_say),
        cmocka_unit_test(a_removed_operation_is_seen),
        cmocka_unit_test(other_changes_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
