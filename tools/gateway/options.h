/* options.h - the command line. */
#ifndef LLMD_GATEWAY_OPTIONS_H
#define LLMD_GATEWAY_OPTIONS_H

#include "gateway.h"

enum { OPTIONS_CONNECTIONS_MIN = 8 };

struct options {
    const char *instances[GATEWAY_INSTANCES_MAX], *listen[GATEWAY_LISTENERS_MAX];
    unsigned n_instances, n_listen;
    const char *keys_file, *tls_cert_file, *tls_key_file;
    uint32_t drain_timeout_s, resume_timeout_s, threads, max_connections, idle_timeout_s,
        read_timeout_s, header_bytes, body_bytes, answer_bytes;
};

/* 0; 1: help or version were printed; 2 after a message. */
int options_read(struct options *o, int argc, char **argv);

#endif
