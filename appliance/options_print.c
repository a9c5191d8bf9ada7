/* options_print.c - the options as the help lists them, and as a file that means what is in effect.
 */
#include <string.h>

#include "options_table.h"

void options_help(FILE *out)
{
    fputs("llmd - serves one language model to the programs of this machine, through shared "
          "memory\n\n"
          "usage: llmd --model FILE [--instance NAME] [OPTION VALUE | --OPTION=VALUE ...]\n\n",
          out);
    for (size_t i = 0; i < n_options; i++) {
        const struct option *opt = &options_table[i];
        if (opt->same_as || opt->kind == SECONDS)
            continue;
        char left[64];
        snprintf(left, sizeof left, "--%s %s", opt->name, opt->value ? opt->value : "");
        fprintf(out, "  %-30s %s", left, opt->help);
        fprintf(out, opt->by_default ? " (%s)\n" : "\n", opt->by_default);
    }
    fputs("\nA line with the word 'ready' on standard output says that clients may connect.\n"
          "SIGTERM, SIGINT or SIGHUP lets the running requests end, for a while, and leaves. Exit "
          "status: 0, 1 for a failure, 2 for a wrong command line.\n",
          out);
}

/* ---- in effect ---- */

static void print_word(FILE *out, const struct option *opt, int place)
{
    const char *word = opt->value;
    for (; place > 0; place--)
        word += strcspn(word, "|") + 1;
    fprintf(out, "%s = %.*s\n", opt->name, (int)strcspn(word, "|"), word);
}

static void print_value(FILE *out, const struct option *opt, const void *field)
{
    int value, place = 0;
    memcpy(&value, field, sizeof value);
    while (options_values(opt->kind)[place] !=
           value) /* it is one of them: nothing else is stored */
        place++;
    print_word(out, opt, place);
}

static void print_cpus(FILE *out, const struct option *opt, const struct cpus *list)
{
    char text[6 * CPUS_MAX];
    cpus_print(list, text, sizeof text);
    fprintf(out, "%s = %s\n", opt->name, text);
}

/* After a blank these would begin a comment. */
static void print_text(FILE *out, const struct option *opt, const char *text)
{
    bool comment = *text == '#' || *text == ';';
    fprintf(out, "%s%s%s\n", opt->name, comment ? "=" : " = ", text);
}

static void print_option(FILE *out, const struct option *opt, const struct options *o)
{
    const void *field = (const char *)o + opt->at;
    switch (opt->kind) {
    case TEXT:
    case INSTANCE:
        print_text(out, opt, *(const char *const *)field);
        break;
    case SPIN:
        if (*(const uint32_t *)field == OPTIONS_FOREVER) {
            fprintf(out, "%s = forever\n", opt->name);
            break;
        } /* fall through */
    case NUMBER:
    case BLOCK_SIZE:
        fprintf(out, "%s = %u\n", opt->name, *(const uint32_t *)field);
        break;
    case SHARE:
        fprintf(out, "%s = %g\n", opt->name, *(const double *)field);
        break;
    case SIZE:
        fprintf(out, "%s = %llu\n", opt->name, (unsigned long long)*(const uint64_t *)field);
        break;
    case SWITCH:
        fprintf(out, "%s = %s\n", opt->name, *(const bool *)field ? "yes" : "no");
        break;
    case CPUS:
        print_cpus(out, opt, field);
        break;
    case BACKEND:
        print_word(out, opt, o->plain ? 2 : o->avx2);
        break;
    default:
        print_value(out, opt, field);
    }
}

/* Whether the value is known without the model and the machine. */
static bool is_settled(const struct option *opt, const struct options *o)
{
    const void *field = (const char *)o + opt->at;
    if (o->given >> (opt - options_table) & 1)
        return true;
    switch (opt->kind) {
    case TEXT:
        return *(const char *const *)field != NULL;
    case NUMBER:
        return *(const uint32_t *)field >= opt->min && *(const uint32_t *)field <= opt->max;
    case SIZE:
        return *(const uint64_t *)field >= opt->min;
    case SHARE:
        return *(const double *)field > 0;
    case CPUS:
        return ((const struct cpus *)field)->n != 0;
    case ACTIVATIONS:
        return false;
    default:
        return true;
    }
}

void options_print(FILE *out, const struct options *o)
{
    for (size_t i = 0; i < n_options; i++) {
        const struct option *opt = &options_table[i];
        if (opt->command_line || opt->same_as || opt->kind == SECONDS)
            continue;
        if (is_settled(opt, o))
            print_option(out, opt, o);
        else
            fprintf(out, "# %s: %s\n", opt->name, opt->by_default ? opt->by_default : "not given");
    }
}
