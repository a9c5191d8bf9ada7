/* options.c - see options.h. */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../shm/control.h"
#include "server.h"

static const char help_head[] =
    "llm-gateway - the OpenAI API over HTTP for engines of this machine\n\n"
    "usage: llm-gateway [--instance NAME ...] [--listen ADDRESS ...] [OPTION ...]\n\n"
    "  --instance NAME        the engine to serve; several times for several models (default)\n"
    "  --listen ADDRESS       HOST:PORT, [HOST]:PORT or unix:/path; several times "
    "(127.0.0.1:8000)\n"
    "  --api-keys FILE        keys that may ask, one a line; without it any key may\n"
    "  --tls-cert FILE        certificate chain, PEM: HTTPS instead of HTTP\n"
    "  --tls-key FILE         its private key, PEM\n";
static const char help_tail[] =
    "  --help                 this list\n"
    "  --version              the version\n\n"
    "Lines with the word 'ready' on standard output say where it listens. SIGTERM and SIGINT let "
    "the\n"
    "running requests end, for a while, and leave. Exit status: 0, 1 for a failure, 2 for a wrong\n"
    "command line.\n";

enum { FIRST_NUMBER = 1024 };

/* Options that are numbers. */
static const struct number {
    const char *name, *help;
    size_t at;
    uint32_t standard, min, max;
} numbers[] = {
    {"threads", "threads that read requests", offsetof(struct options, threads), 2, 1, 64},
    {"max-connections", "connections at the same time", offsetof(struct options, max_connections),
     1024, OPTIONS_CONNECTIONS_MIN, 100000},
    {"max-body-bytes", "largest body of a request", offsetof(struct options, body_bytes), 4 << 20,
     1024, 1 << 30},
    {"max-answer-bytes", "largest answer that is not a stream",
     offsetof(struct options, answer_bytes), 64 << 20, 1024, 1 << 30},
    {"max-header-bytes", "memory for a request's headers", offsetof(struct options, header_bytes),
     32768, 4096, 1 << 20},
    {"idle-timeout-s", "a silent connection is closed after",
     offsetof(struct options, idle_timeout_s), 60, 1, 86400},
    {"read-timeout-s", "a request has to come whole within",
     offsetof(struct options, read_timeout_s), 30, 1, 86400},
    {"resume-timeout-s", "streams wait so long for an engine that restarts",
     offsetof(struct options, resume_timeout_s), 30, 1, 3600},
    {"drain-timeout-s", "running requests may go on so long after SIGTERM",
     offsetof(struct options, drain_timeout_s), 30, 0, 3600},
};

enum { NUMBERS = sizeof numbers / sizeof *numbers };

static uint32_t *field(struct options *o, const struct number *n)
{
    return (uint32_t *)(void *)((char *)o + n->at);
}

static void help(void)
{
    fputs(help_head, stdout);
    for (unsigned i = 0; i < NUMBERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "--%s N", numbers[i].name);
        printf("  %-22s %s (%u)\n", name, numbers[i].help, numbers[i].standard);
    }
    fputs(help_tail, stdout);
}

static int wrong(const char *what, const char *value)
{
    fprintf(stderr, "llm-gateway: %s%s; see llm-gateway --help\n", what, value);
    return 2;
}

static int read_number(struct options *o, const struct number *n, const char *text)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (end == text || *end || errno || text[0] == '-' || v < n->min || v > n->max) {
        fprintf(
            stderr,
            "llm-gateway: --%s \"%s\" is no whole number from %u to %u; see llm-gateway --help\n",
            n->name, text, n->min, n->max);
        return 2;
    }
    *field(o, n) = (uint32_t)v;
    return 0;
}

static int wrong_instance(const char *name)
{
    fprintf(stderr,
            "llm-gateway: --instance '%.64s' is not a name: 1 to %d letters, digits, '.', '_' or "
            "'-', not starting with a dot; see llm-gateway --help\n",
            name, LLM_INSTANCE_MAX);
    return 2;
}

static int add_instance(struct options *o, const char *name)
{
    if (!llm_instance_ok(name))
        return wrong_instance(name);
    for (unsigned i = 0; i < o->n_instances; i++)
        if (!strcmp(o->instances[i], name))
            return wrong("given twice: --instance ", name);
    if (o->n_instances == GATEWAY_INSTANCES_MAX)
        return wrong("too many: --instance ", name);
    o->instances[o->n_instances++] = name;
    return 0;
}

static int add_listen(struct options *o, const char *address)
{
    if (!server_address_ok(address)) {
        fprintf(stderr,
                "llm-gateway: --listen \"%s\" is none of HOST:PORT, [HOST]:PORT (ports up to "
                "65535), unix:/path (up to 107 bytes); see llm-gateway --help\n",
                address);
        return 2;
    }
    if (o->n_listen == GATEWAY_LISTENERS_MAX)
        return wrong("too many: --listen ", address);
    o->listen[o->n_listen++] = address;
    return 0;
}

static int read_option(struct options *o, int option, const char *value)
{
    switch (option) {
    case 'i':
        return add_instance(o, value);
    case 'l':
        return add_listen(o, value);
    case 'k':
        o->keys_file = value;
        return 0;
    case 'c':
        o->tls_cert_file = value;
        return 0;
    case 'y':
        o->tls_key_file = value;
        return 0;
    case 'h':
        help();
        return 1;
    case 'V':
        puts("llm-gateway " LLMD_VERSION);
        return 1;
    }
    if (option >= FIRST_NUMBER)
        return read_number(o, &numbers[option - FIRST_NUMBER], value);
    return option == ':' ? wrong(value, " needs a value") : wrong("not understood: ", value);
}

static int complete(struct options *o)
{
    if (!o->n_instances)
        o->instances[o->n_instances++] = "default";
    if (!o->n_listen)
        o->listen[o->n_listen++] = "127.0.0.1:8000";
    if (!o->tls_cert_file != !o->tls_key_file)
        return wrong("--tls-cert and --tls-key belong together", "");
    return 0;
}

int options_read(struct options *o, int argc, char **argv)
{
    struct option options[NUMBERS + 8] = {
        {"instance", required_argument, NULL, 'i'}, {"listen", required_argument, NULL, 'l'},
        {"api-keys", required_argument, NULL, 'k'}, {"tls-cert", required_argument, NULL, 'c'},
        {"tls-key", required_argument, NULL, 'y'},  {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'V'},
    };
    *o = (struct options){0};
    for (unsigned i = 0; i < NUMBERS; i++) {
        options[7 + i] =
            (struct option){numbers[i].name, required_argument, NULL, FIRST_NUMBER + (int)i};
        *field(o, &numbers[i]) = numbers[i].standard;
    }
    opterr = 0; /* what is wrong is said here */
    for (int c; (c = getopt_long(argc, argv, ":", options, NULL)) != -1;) {
        int rc = read_option(o, c, c == ':' || c == '?' ? argv[optind - 1] : optarg);
        if (rc)
            return rc;
    }
    if (optind < argc)
        return wrong("not understood: ", argv[optind]);
    return complete(o);
}
