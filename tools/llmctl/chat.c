/* chat.c - `run`: one answer through the model's chat template; `chat`: a conversation on the
 * terminal. */
#include <editline/readline.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dialog.h"

enum { O_SYSTEM = 256, O_TEMPLATE, O_STREAM, O_TIMING, O_FILE };

static const struct option options[] = {{"system", required_argument, NULL, O_SYSTEM},
                                        {"template", required_argument, NULL, O_TEMPLATE},
                                        {"stream", required_argument, NULL, O_STREAM},
                                        {"timing", no_argument, NULL, O_TIMING},
                                        {"prompt-file", required_argument, NULL, O_FILE},
                                        CTL_REQUEST_OPTIONS,
                                        {"help", no_argument, NULL, 'h'},
                                        {NULL, 0, NULL, 0}};

static void help(bool chat)
{
    if (chat)
        printf("usage: llmctl [-i INSTANCE] chat [OPTION...]\n\n"
               "Type a message; Ctrl-C stops an answer, Ctrl-D ends. /help lists the commands.\n");
    else
        printf("usage: llmctl [-i INSTANCE] run TEXT | --prompt-file FILE [OPTION...]\n\n"
               "One answer to one message, through the model's chat template. Ctrl-C stops it.\n");
    printf("\n  --system TEXT         what the model is told about its part\n"
           "  --template FILE       a chat template instead of the model's own\n"
           "  --stream MODE         print bytes as they come, whole words or sentences: bytes, "
           "words, sentences\n"
           "  -n N                  at most N tokens (what the model's length leaves)\n"
           "  --temperature T       0: greedy (0.2)\n"
           "  --top-k K, --top-p P, --min-p P   0, 1, 0: off (--top-p 0.9)\n"
           "  --seed S              the same seed draws the same tokens\n"
           "  --timing              time to first token and tokens/s, to standard error\n"
           "%s"
           "%s"
           "  --spin-us N           spin so long before sleeping while waiting (50)\n",
           ctl_promises_help, ctl_speculative_help);
}

/* 0, an exit status, or -1 after --help */
static int parse(int argc, char **argv, bool chat, struct dialog_options *o, const char **file)
{
    *o = (struct dialog_options){.request = LLM_REQUEST_INIT, .spin_us = 50};
    o->request.temperature = 0.2f; /* greedy answers of small models fall into loops */
    o->request.top_p = 0.9f;
    *file = NULL;
    int c, rc = 0;
    while (!rc && (c = ctl_getopt(argc, argv, ":n:h", options)) != -1)
        switch (c) {
        case O_SYSTEM:
            o->system = optarg;
            break;
        case O_TEMPLATE:
            o->template_file = optarg;
            break;
        case O_STREAM:
            o->stream = optarg;
            break;
        case O_TIMING:
            o->timing = true;
            break;
        case O_FILE:
            *file = optarg;
            break;
        case 'h':
            help(chat);
            return -1;
        case '?':
            return 2;
        default:
            o->length_given |= c == 'n' || c == CTL_MAX_TOKENS;
            rc = ctl_set_request_option(c, optarg, &o->request, &o->spin_us);
        }
    return rc;
}

int cmd_run(int argc, char **argv)
{
    struct dialog_options o;
    const char *file, *text;
    int rc = parse(argc, argv, false, &o, &file);
    if (rc)
        return rc < 0 ? 0 : rc;
    text = optind < argc ? argv[optind++] : NULL;
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\" (quote a message of several words)", argv[optind]);
    if (!text == !file)
        return ctl_usage("what is the message? TEXT or --prompt-file, one of them");
    size_t bytes = text ? strlen(text) : 0;
    char *data = file ? ctl_read_file(file, &bytes) : NULL;
    if (file && !data)
        return 1;
    struct dialog *d = dialog_open(&o);
    rc = d ? dialog_ask(d, data ? data : text, bytes) : 1;
    dialog_close(d);
    free(data);
    return rc;
}

/* ---- the conversation ---- */

static const char commands[] =
    "/reset          forget the conversation\n"
    "/system TEXT    forget it and tell the model its part (without TEXT: none)\n"
    "/timing         show or hide time to first token and tokens/s\n"
    "/quit           end (or Ctrl-D)\n";

/* Returns false at the end of the conversation. */
static bool obey(struct dialog *d, const char *line)
{
    if (!strcmp(line, "/quit") || !strcmp(line, "/exit"))
        return false;
    if (!strcmp(line, "/reset")) {
        dialog_reset(d, NULL);
        puts("(the conversation starts anew)");
    } else if (!strcmp(line, "/system") || !strncmp(line, "/system ", 8)) {
        const char *text = line[7] ? line + 8 : NULL;
        dialog_reset(d, text);
        puts(text ? "(a new conversation, with that part)"
                  : "(a new conversation, without a part)");
    } else if (!strcmp(line, "/timing")) {
        dialog_set_timing(d, !dialog_timing(d));
        puts(dialog_timing(d) ? "(timing is shown)" : "(timing is hidden)");
    } else {
        fputs(commands, stdout);
    }
    return true;
}

static volatile sig_atomic_t line_dropped; /* Ctrl-C at the prompt; set by the handler alone */

static void on_sigint(int signal)
{
    (void)signal;
    line_dropped = 1;
}

/* Ctrl-C at the prompt drops the line. While an answer streams ctl_run_jobs has a handler of its
 * own. */
static char *edited_line(void)
{
    struct sigaction act = {.sa_handler = on_sigint}, old; /* no SA_RESTART: it ends the read */
    sigaction(SIGINT, &act, &old);
    char *line;
    do {
        line_dropped = 0;
        line = readline("> ");
        if (line_dropped)
            puts("");
    } while (!line && line_dropped);
    sigaction(SIGINT, &old, NULL);
    return line;
}

/* The next line, malloc'ed; NULL at the end. On a terminal with editing and history. */
static char *next_line(bool terminal)
{
    if (terminal)
        return edited_line();
    char *line = NULL;
    size_t room = 0;
    ssize_t n = getline(&line, &room, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n')
        line[n - 1] = 0;
    return line;
}

static int converse(struct dialog *d)
{
    bool terminal = isatty(0) && isatty(1), going = true;
    int failed = 0;
    if (terminal)
        puts("Type a message. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.");
    while (going) {
        char *line = next_line(terminal);
        if (!line)
            break;
        if (*line && terminal)
            add_history(line);
        if (*line == '/')
            going = obey(d, line);
        else if (*line && dialog_ask(d, line, strlen(line)) == 1)
            failed = 1;
        free(line);
        if (failed && !terminal)
            break;
    }
    if (terminal && going)
        puts("");
    return terminal ? 0 : failed;
}

int cmd_chat(int argc, char **argv)
{
    struct dialog_options o;
    const char *file;
    int rc = parse(argc, argv, true, &o, &file);
    if (rc)
        return rc < 0 ? 0 : rc;
    if (file || optind < argc)
        return ctl_usage("chat takes its messages from standard input");
    struct dialog *d = dialog_open(&o);
    rc = d ? converse(d) : 1;
    dialog_close(d);
    return rc;
}
