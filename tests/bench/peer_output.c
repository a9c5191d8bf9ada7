/* peer_output.c - see peer_output.h. */
#include "peer_output.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <string.h>

/* A whole number of that name, or -1. */
static json_int_t whole(const json_t *line, const char *name)
{
    const json_t *v = json_object_get(line, name);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static bool is_of(const json_t *line, const struct peer_load *load)
{
    return whole(line, "pp") == load->prompt && whole(line, "tg") == load->tokens &&
           whole(line, "pl") == load->streams;
}

static int take_speeds(const json_t *line, struct peer_speed *out, struct fail *f)
{
    *out = (struct peer_speed){json_number_value(json_object_get(line, "speed_pp")),
                               json_number_value(json_object_get(line, "speed_tg"))};
    if (out->prefill > 0 && out->decode > 0)
        return 0;
    return fail(f, -EPROTO,
                "llama-batched-bench: its line has no speed_pp and speed_tg above 0: another "
                "version than tests/bench/peer.sh builds?");
}

int peer_output_read(const char *text, const struct peer_load *load, struct peer_speed *out,
                     struct fail *f)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        json_t *line = *text == '{' ? json_loadb(text, n, 0, NULL) : NULL;
        bool found = line && is_of(line, load);
        int code = found ? take_speeds(line, out, f) : 0;
        json_decref(line);
        if (found)
            return code;
        text += n + (text[n] == '\n');
    }
    return fail(f, -EPROTO,
                "llama-batched-bench: no line for %u prompt tokens, %u tokens, %u streams",
                load->prompt, load->tokens, load->streams);
}

void peer_output_last_line(const char *text, char *out, size_t size)
{
    const char *at = "";
    size_t n = 0;
    while (*text) {
        size_t bytes = strcspn(text, "\n");
        if (strspn(text, " \t\r") < bytes)
            at = text, n = bytes;
        text += bytes + (text[bytes] == '\n');
    }
    snprintf(out, size, "%.*s", (int)n, at);
}
