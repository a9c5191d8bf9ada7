/* fail.h - how a function of gpu/ or appliance/ says what went wrong.
 *
 * A function that can fail returns 0 or a negative errno-like code, and, where a person will read
 * of it, writes one sentence: what was wrong, where, what to do. The first message wins, so the
 * place that knows most speaks. A NULL `struct fail` is allowed: the code alone is returned.
 */
#ifndef LLMD_GPU_FAIL_H
#define LLMD_GPU_FAIL_H

#include <stdarg.h>
#include <stdio.h>

struct fail {
    int code;       /* 0 or the negative code of the first failure */
    char text[512]; /* its sentence, NUL-terminated, without a newline */
};

/* Records the first failure and returns `code`, so that a caller can write `return fail(f, -EINVAL,
 * ...)`. */
__attribute__((format(printf, 3, 4))) static inline int fail(struct fail *f, int code,
                                                             const char *format, ...)
{
    if (f && !f->code) {
        va_list args;
        va_start(args, format);
        vsnprintf(f->text, sizeof f->text, format, args);
        va_end(args);
        f->code = code;
    }
    return code;
}

#endif
