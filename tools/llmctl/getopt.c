/* getopt.c - getopt_long(3) with llmctl's own sentences for what is wrong. */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "llmctl.h"

/* Options that a long name, as written, may mean: the one of that name, or those that begin with it.
 * One of them in *found. */
static int meant_by(const struct option *options, const char *name, size_t bytes,
                    const struct option **found)
{
    int n = 0;
    for (; options->name; options++)
        if (!strncmp(options->name, name, bytes)) {
            *found = options;
            n++;
            if (!options->name[bytes])
                return 1;
        }
    return n;
}

static void goes_before(const char *written)
{
    ctl_usage("%s goes before the command: llmctl -i INSTANCE COMMAND", written);
}

static void wrong_long(const struct option *options, const char *word)
{
    size_t bytes = strcspn(word + 2, "=");
    const struct option *found = NULL;
    int n = meant_by(options, word + 2, bytes, &found);
    if (n > 1)
        ctl_usage("--%.*s may be more than one option", (int)bytes, word + 2);
    else if (n == 1)
        ctl_usage("--%s takes no value", found->name);
    else if (bytes && !strncmp("instance", word + 2, bytes))
        goes_before("--instance");
    else
        ctl_usage("unknown option --%.*s", (int)(bytes < 60 ? bytes : 60), word + 2);
}

/* Of a long option that is known and has a value that it does not take, optopt is what it stands
 * for, as of a short one that is unknown it is the letter. */
static bool is_long(const struct option *options, const char *word)
{
    const struct option *found = NULL;
    if (strncmp(word, "--", 2))
        return false;
    return !optopt ||
           (strchr(word, '=') && meant_by(options, word + 2, strcspn(word + 2, "="), &found) == 1 &&
            found->has_arg == no_argument && found->val == optopt);
}

int ctl_getopt(int argc, char **argv, const char *shorts, const struct option *options)
{
    opterr = 0;
    int c = getopt_long(argc, argv, shorts, options, NULL);
    const char *word = c == '?' || c == ':' ? argv[optind - 1] : "";
    if (c == ':')
        ctl_usage("%.60s needs a value", word);
    else if (c == '?' && is_long(options, word))
        wrong_long(options, word);
    else if (c == '?' && optopt == 'i')
        goes_before("-i");
    else if (c == '?')
        ctl_usage("unknown option -%c", optopt);
    return c == ':' ? '?' : c;
}
