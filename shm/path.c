/* path.c - where an instance is found: its socket, its lock file, the name of its board.
 *
 *   directory   $LLMD_RUNTIME_DIR | /run/llmd (root) | $XDG_RUNTIME_DIR/llmd | /tmp/llmd-<uid>
 *   socket      <directory>/<instance>.sock
 *   lock        <directory>/<instance>.lock
 *   board       /llmd.<instance>, for shm_open
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

bool llm_instance_ok(const char *instance)
{
    static const char allowed[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = strlen(instance);
    return n > 0 && n <= LLM_INSTANCE_MAX && instance[0] != '.' && strspn(instance, allowed) == n;
}

/* 0, or -ENAMETOOLONG if the text does not fit. */
__attribute__((format(printf, 3, 4))) static int print(char *out, size_t size, const char *format,
                                                       ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(out, size, format, args);
    va_end(args);
    return n < 0 || (size_t)n >= size ? -ENAMETOOLONG : 0;
}

/* An environment variable that names an absolute directory, else NULL. */
static const char *directory_variable(const char *name)
{
    const char *value = getenv(name);
    return value && value[0] == '/' ? value : NULL;
}

int llm_runtime_dir(char *out, size_t size)
{
    const char *dir = getenv("LLMD_RUNTIME_DIR");
    if (dir && *dir)
        return print(out, size, "%s", dir);
    if (geteuid() == 0)
        return print(out, size, LLM_SYSTEM_DIR);
    dir = directory_variable("XDG_RUNTIME_DIR");
    if (dir)
        return print(out, size, "%s/llmd", dir);
    return print(out, size, "/tmp/llmd-%lu", (unsigned long)geteuid());
}

static int instance_path(const char *instance, const char *suffix, char *out, size_t size)
{
    if (!llm_instance_ok(instance))
        return -EINVAL;
    int rc = llm_runtime_dir(out, size);
    if (rc < 0)
        return rc;
    size_t n = strlen(out);
    return print(out + n, size - n, "/%s%s", instance, suffix);
}

int llm_socket_path(const char *instance, char *out, size_t size)
{
    return instance_path(instance, ".sock", out, size);
}

int llm_lock_path(const char *instance, char *out, size_t size)
{
    return instance_path(instance, ".lock", out, size);
}

int llm_board_name(const char *instance, char *out, size_t size)
{
    if (!llm_instance_ok(instance))
        return -EINVAL;
    return print(out, size, "/llmd.%s", instance);
}
