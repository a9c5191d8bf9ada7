/* keys.c - see keys.h. */
#include "keys.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { KEY_BYTES_MAX = 255, NAME_BYTES_MAX = 63 };

struct key {
    char text[KEY_BYTES_MAX + 1]; /* zeros behind it */
    char name[NAME_BYTES_MAX + 1];
    unsigned line;
    uint32_t max_requests;      /* 0: any number */
    uint64_t tokens_per_minute; /* 0: any number */
    pthread_mutex_t lock;       /* of what follows */
    uint32_t requests;
    double tokens; /* left in the bucket; below zero after a request that was larger */
    uint64_t filled_ns;
};

struct keys {
    struct key *all; /* (n) */
    size_t n;
};

/* ---- the file ---- */

static int wrong(const char *path, unsigned line, const char *what)
{
    fprintf(stderr, "llm-gateway: %s, line %u: %s\n", path, line, what);
    return -1;
}

static int read_limit(struct key *k, const char *word, const char *path, unsigned line)
{
    const char *value = strchr(word, '=');
    char *end;
    if (!value || !value[1])
        return wrong(path, line, "behind the key come name=, requests= and tokens=");
    if (!strncmp(word, "name=", 5)) {
        if (strlen(value + 1) > NAME_BYTES_MAX)
            return wrong(path, line, "the name is longer than 63 bytes");
        strcpy(k->name, value + 1);
        return 0;
    }
    errno = 0;
    unsigned long long v = strtoull(value + 1, &end, 10);
    if (*end || errno || value[1] == '-' || v > UINT32_MAX)
        return wrong(path, line, "a limit is a whole number up to 4294967295");
    if (!strncmp(word, "requests=", 9))
        k->max_requests = (uint32_t)v;
    else if (!strncmp(word, "tokens=", 7))
        k->tokens_per_minute = v;
    else
        return wrong(path, line, "behind the key come name=, requests= and tokens=");
    return 0;
}

/* A '#' within a word belongs to it: a key that has one must not become a shorter key. */
static void cut_comment(char *text)
{
    for (char *at = text; (at = strchr(at, '#')); at++)
        if (at == text || strchr(" \t", at[-1])) {
            *at = 0;
            return;
        }
}

/* One of the two would set limits that nobody meant. The key itself is not shown. */
static int check_new(const struct keys *keys, const char *key, const char *path, unsigned line)
{
    for (size_t i = 0; i < keys->n; i++)
        if (!strcmp(keys->all[i].text, key)) {
            fprintf(stderr, "llm-gateway: %s, line %u: this key stands in line %u already\n", path,
                    line, keys->all[i].line);
            return -1;
        }
    return 0;
}

static int read_line(struct keys *keys, char *text, const char *path, unsigned line)
{
    char *rest;
    cut_comment(text);
    char *word = strtok_r(text, " \t\r\n", &rest);
    if (!word)
        return 0;
    if (strlen(word) > KEY_BYTES_MAX)
        return wrong(path, line, "the key is longer than 255 bytes");
    if (check_new(keys, word, path, line))
        return -1;
    struct key *all = realloc(keys->all, (keys->n + 1) * sizeof *all);
    if (!all)
        return wrong(path, line, "out of memory");
    keys->all = all;
    struct key *k = &all[keys->n++];
    *k = (struct key){0};
    strcpy(k->text, word);
    k->line = line;
    snprintf(k->name, sizeof k->name, "key %zu", keys->n);
    while ((word = strtok_r(NULL, " \t\r\n", &rest)))
        if (read_limit(k, word, path, line))
            return -1;
    k->tokens = (double)k->tokens_per_minute;
    return 0;
}

struct keys *keys_load(const char *path)
{
    struct keys *keys = calloc(1, sizeof *keys);
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    if (!f || !keys) {
        fprintf(stderr, "llm-gateway: cannot read the keys of %s: %s\n", path, strerror(errno));
        rc = -1;
    }
    for (unsigned n = 1; !rc && getline(&line, &room, f) > 0; n++)
        rc = read_line(keys, line, path, n);
    if (!rc && !keys->n)
        rc = wrong(path, 1, "there is no key in the file: nobody could ask");
    for (size_t i = 0; !rc && i < keys->n; i++) /* they do not move any more */
        pthread_mutex_init(&keys->all[i].lock, NULL);
    if (line)
        explicit_bzero(line, room);
    free(line);
    if (f)
        fclose(f);
    if (!rc)
        return keys;
    if (keys)
        free(keys->all);
    free(keys);
    return NULL;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < k->n; i++)
        pthread_mutex_destroy(&k->all[i].lock);
    explicit_bzero(k->all, k->n * sizeof *k->all);
    free(k->all);
    free(k);
}

/* ---- who asks ---- */

/* All bytes are compared, whatever the first difference is. */
static bool same(const char a[KEY_BYTES_MAX + 1], const char b[KEY_BYTES_MAX + 1])
{
    volatile unsigned char differs = 0;
    for (size_t i = 0; i <= KEY_BYTES_MAX; i++)
        differs |= (unsigned char)(a[i] ^ b[i]);
    return !differs;
}

struct key *keys_find(struct keys *k, const char *authorization, struct problem *problem)
{
    char text[KEY_BYTES_MAX + 1] = {0};
    struct key *found = NULL;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7)) {
        problem_set(problem, 401, "invalid_api_key", NULL,
                    "an API key is needed, in a header \"Authorization: Bearer KEY\"");
        return NULL;
    }
    const char *given = authorization + 7;
    while (*given == ' ')
        given++;
    size_t n = strlen(given);
    while (n && strchr(" \t", given[n - 1])) /* no part of a header's value */
        n--;
    memcpy(text, given, n <= KEY_BYTES_MAX ? n : 0);
    for (size_t i = 0; i < k->n; i++)
        if (same(text, k->all[i].text) && text[0])
            found = &k->all[i];
    if (!found)
        problem_set(problem, 401, "invalid_api_key", NULL, "the API key is not known here");
    return found;
}

/* ---- how much ---- */

static void fill(struct key *k, uint64_t now_ns)
{
    double most = (double)k->tokens_per_minute;
    if (k->filled_ns)
        k->tokens += most * (double)(now_ns - k->filled_ns) / 60e9;
    if (k->tokens > most)
        k->tokens = most;
    k->filled_ns = now_ns;
}

int key_enter(struct key *k, uint64_t now_ns, struct problem *problem)
{
    int rc = 0;
    pthread_mutex_lock(&k->lock);
    fill(k, now_ns);
    if (k->max_requests && k->requests >= k->max_requests) {
        rc = problem_set(
            problem, 429, "rate_limit_exceeded", NULL,
            "%u requests of this key run already: more are not allowed at the same time",
            k->requests);
    } else if (k->tokens_per_minute && k->tokens <= 0) {
        rc = problem_set(problem, 429, "rate_limit_exceeded", NULL,
                         "this key has used its %llu tokens for a minute",
                         (unsigned long long)k->tokens_per_minute);
        problem->retry_after_s = 1 + (uint32_t)(-k->tokens * 60 / (double)k->tokens_per_minute);
    } else {
        k->requests++;
    }
    pthread_mutex_unlock(&k->lock);
    return rc;
}

void key_leave(struct key *k, uint64_t now_ns, uint64_t tokens)
{
    pthread_mutex_lock(&k->lock);
    fill(k, now_ns);
    k->tokens -= (double)tokens;
    k->requests--;
    pthread_mutex_unlock(&k->lock);
}
