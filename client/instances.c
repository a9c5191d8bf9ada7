/* instances.c - which engines listen on this machine: for the sentence that says that one does not.
 *
 * Read from /proc/net/unix (proc(5)), which touches no engine. Engines of another network namespace
 * are not seen.
 *
 *   Num       RefCount Protocol Flags    Type St Inode Path
 *   0000...0: 00000002 00000000 00010000 0005 01 12345 /run/llmd/default.sock
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handle.h"

enum { LISTENING = 0x10000 };

/* The instance whose socket listens in `directory` according to this line (which is cut up), or
 * NULL. */
static const char *instance_of(char *line, const char *directory)
{
    unsigned flags;
    int path = 0;
    if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %n", &flags, &path) != 1 || !path ||
        flags != LISTENING)
        return NULL;
    size_t n = strlen(directory);
    char *name = line + path;
    if (strncmp(name, directory, n) || name[n] != '/')
        return NULL;
    name += n + 1;
    name[strcspn(name, "\n")] = 0;
    char *suffix = strrchr(name, '.');
    if (!suffix || strcmp(suffix, ".sock"))
        return NULL;
    *suffix = 0;
    return llm_instance_ok(name) ? name : NULL;
}

unsigned instances_list(const char *directory, const char *except, char *out, size_t size)
{
    char *line = NULL;
    size_t room = 0, used = 0;
    unsigned found = 0;
    out[0] = 0;
    FILE *f = fopen("/proc/net/unix", "re");
    while (f && getline(&line, &room, f) > 0) {
        const char *name = instance_of(line, directory);
        if (!name || !strcmp(name, except))
            continue;
        int n = snprintf(out + used, size - used, "%s%s", found ? ", " : "", name);
        if (n < 0 || (size_t)n >= size - used) {
            out[used] = 0; /* the list is full: no half names */
            break;
        }
        used += (size_t)n;
        found++;
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}
