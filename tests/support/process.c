/* process.c - see process.h. Source: proc(5). */
#include "process.h"

#include "support.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *open_of(pid_t pid, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

/* Entries of a folder that are numbers; each is handed to `each` where it is not NULL. */
static uint32_t numbers_in(pid_t pid, const char *folder, uint64_t (*each)(pid_t, const char *),
                           uint64_t *sum)
{
    char path[128];
    uint32_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, folder);
    DIR *dir = opendir(path);
    if (!dir)
        fail_msg("no %s", path);
    for (struct dirent *d; (d = readdir(dir));)
        if (isdigit((unsigned char)d->d_name[0])) {
            n++;
            if (each)
                *sum += each(pid, d->d_name);
        }
    closedir(dir);
    return n;
}

/* The number behind `key` in a status file; 0 if the file is gone. */
static uint64_t figure(FILE *file, const char *key)
{
    char line[256];
    uint64_t value = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key)))
            value = strtoull(line + strlen(key), NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static uint64_t sleeps_of_thread(pid_t pid, const char *thread)
{
    char name[64];
    snprintf(name, sizeof name, "task/%.20s/status", thread);
    return figure(open_of(pid, name), "voluntary_ctxt_switches:");
}

static uint32_t lines(FILE *file)
{
    uint32_t n = 0;
    for (int c; file && (c = getc(file)) != EOF;)
        n += c == '\n';
    if (file)
        fclose(file);
    return n;
}

struct held process_held(pid_t pid)
{
    struct held h = {0};
    h.descriptors = numbers_in(pid, "fd", NULL, NULL);
    h.threads = numbers_in(pid, "task", sleeps_of_thread, &h.sleeps);
    h.maps = lines(open_of(pid, "maps"));
    h.rss_kib = figure(open_of(pid, "status"), "VmRSS:");
    return h;
}
