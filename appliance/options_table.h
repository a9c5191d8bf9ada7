/* options_table.h - llmd's options as one table: what the parser (options.c), the check of
 * the whole (options_check.c), the help and the printer (options_print.c) read.
 */
#ifndef LLMD_OPTIONS_TABLE_H
#define LLMD_OPTIONS_TABLE_H

#include "options.h"

enum option_kind {
    TEXT,
    INSTANCE,
    NUMBER,
    SECONDS, /* of an option in milliseconds, under a name of its own */
    SIZE,
    SWITCH,
    SHARE,
    SPIN,
    BLOCK_SIZE,
    CPUS,
    BACKEND,
    ACTIVATIONS,
    KV_TYPE,
    HUGE_PAGES,
    WAITER,
    LOG_LEVEL,
    SPECULATIVE,
    HELP,
    VERSION
};

struct option {
    const char *name;
    enum option_kind kind;
    size_t at;         /* offset of the field in struct options */
    uint64_t min, max; /* NUMBER, SIZE; TEXT: bytes */
    const char *value; /* how the help calls the value; NULL: the option takes none */
    const char *help;
    const char *by_default; /* as the help says it; NULL: nothing to say */
    bool command_line;      /* not in a file */
    const char *same_as;    /* another name of that option, or NULL */
};

extern const struct option options_table[];
extern const size_t n_options;

/* What must hold of the options together; fills in what follows from them. 0, or -EINVAL with the
 * sentence. */
int options_check(struct options *o, struct fail *f);

/* The values that stand for the words of such an option ("a|b" in `value`), in their order. */
const int *options_values(enum option_kind kind);

#endif
