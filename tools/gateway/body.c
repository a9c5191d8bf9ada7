/* body.c - see body.h. Depth and UTF-8 are looked at before the parser sees the text: it recurses. */
#include "body.h"

#include <stdbool.h>
#include <string.h>

/* The deepest nesting of a text that need not be JSON: brackets outside of strings. */
static unsigned depth_of(const char *text, size_t bytes)
{
    unsigned depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (in_string) {
            i += c == '\\';
            in_string = c != '"';
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            deepest = ++depth > deepest ? depth : deepest;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return deepest;
}

json_t *body_parse(const char *text, size_t bytes, struct problem *p)
{
    json_error_t error;
    if (!bytes) {
        problem_set(p, 400, "invalid_json", NULL, "the body is empty: a JSON object is expected");
        return NULL;
    }
    if (!utf8_ok(text, bytes)) {
        problem_set(p, 400, "invalid_utf8", NULL, "the body is not UTF-8");
        return NULL;
    }
    if (depth_of(text, bytes) > BODY_DEPTH_MAX) {
        problem_set(p, 400, "invalid_json", NULL,
                    "the body nests more than %d arrays and objects in each other", BODY_DEPTH_MAX);
        return NULL;
    }
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (!root) {
        problem_set(p, 400, "invalid_json", NULL, "the body is no JSON: line %d, column %d: %.200s",
                    error.line, error.column, error.text);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        problem_set(p, 400, "invalid_json", NULL, "the body is no JSON object");
        return NULL;
    }
    return root;
}
