/* main.c - llmctl: finds the subcommand; what they share for messages and output. */
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/text/normal.h"
#include "../../shm/control.h"
#include "llmctl.h"

const char *ctl_instance = "default";
static char program[32] = "llmctl"; /* with the command, once it is known */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"serve", cmd_serve, "an engine and a gateway with OpenAI's API, kept running"},
    {"run", cmd_run, "answer one message, through the model's chat template"},
    {"chat", cmd_chat, "a conversation on the terminal"},
    {"complete", cmd_complete, "continue a text or token ids"},
    {"session", cmd_session, "token histories that the engine keeps: append, rewind, fork, ..."},
    {"choose", cmd_choose, "which of several continuations is the likeliest"},
    {"score", cmd_score, "log-probabilities and perplexity of a text or token ids"},
    {"tokenize", cmd_tokenize, "text to token ids"},
    {"detokenize", cmd_detokenize, "token ids to text"},
    {"render", cmd_render, "what a chat template makes of an input, without an engine"},
    {"status", cmd_status, "state and counters of an engine, also after it died"},
    {"top", cmd_top, "the same live, on the terminal"},
    {"drain", cmd_drain, "let an engine finish what runs, and stop"},
    {"plan", cmd_plan, "what a model needs, what it can serve and what that costs"},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *out)
{
    fprintf(out, "usage: llmctl [-i INSTANCE] COMMAND [OPTION...]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(out,
            "\nINSTANCE is the engine's --instance; without -i, $LLMD_INSTANCE, else \"default\".\n"
            "llmctl COMMAND --help lists its options.\n");
}

int ctl_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("llmctl: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return 1;
}

int ctl_usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("llmctl: ", stderr);
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see %s --help\n", program);
    va_end(args);
    return 2;
}

int ctl_check_instance(const char *option, const char *name)
{
    if (llm_instance_ok(name))
        return 0;
    return ctl_usage("%s \"%.60s\" is no instance name: 1 to %d letters, digits, '.', '_' or '-', "
                     "not starting with a dot",
                     option, name, LLM_INSTANCE_MAX);
}

int ctl_print_json(json_t *value)
{
    char *text = json_dumps(value, CTL_JSON);
    json_decref(value);
    if (!text)
        return ctl_error("out of memory for the result");
    bool lost = puts(text) < 0 || fflush(stdout) != 0;
    free(text);
    return lost ? ctl_error("cannot write to standard output") : 0;
}

json_t *ctl_json_string(const char *bytes)
{
    char *text;
    size_t n = strlen(bytes);
    if (normal_well_formed(bytes, n, &text, &n) < 0)
        return NULL;
    json_t *value = json_stringn(text ? text : bytes, n);
    free(text);
    return value;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"instance", required_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'V'},
                                            {NULL, 0, NULL, 0}};
    if (getenv("LLMD_INSTANCE") && *getenv("LLMD_INSTANCE"))
        ctl_instance = getenv("LLMD_INSTANCE");
    const char *option = "LLMD_INSTANCE";
    int c;
    while ((c = ctl_getopt(argc, argv, "+:i:hV", options)) != -1)
        switch (c) {
        case 'i':
            ctl_instance = optarg;
            option = "-i";
            break;
        case 'h':
            help(stdout);
            return 0;
        case 'V':
            puts("llmctl " LLMD_VERSION);
            return 0;
        default:
            return 2;
        }
    if (optind == argc) {
        help(stderr);
        return 2;
    }
    if (ctl_check_instance(option, ctl_instance))
        return 2;
    argc -= optind;
    argv += optind;
    optind = 0; /* the subcommand scans its own arguments from the start */
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (!strcmp(argv[0], commands[i].name)) {
            snprintf(program, sizeof program, "llmctl %s", commands[i].name);
            return commands[i].run(argc, argv);
        }
    return ctl_usage("there is no command \"%s\"", argv[0]);
}
