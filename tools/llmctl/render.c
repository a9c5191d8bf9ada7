/* render.c - `render`: a chat template and its input to the prompt text, without an engine. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../client/llm_template.h"
#include "llmctl.h"

static int render(const char *template_file, const char *input_file)
{
    char why[1024], *text = NULL, *source = NULL, *input = NULL;
    size_t source_bytes, input_bytes, bytes;
    struct llm_template *t = NULL;
    int rc = 1;
    if (!(source = ctl_read_file(template_file, &source_bytes)) ||
        !(input = ctl_read_file(input_file, &input_bytes)))
        goto out;
    if (llm_template_parse(&t, source, source_bytes, why, sizeof why) < 0 ||
        llm_template_render(t, input, input_bytes, NULL, &text, &bytes, why, sizeof why) < 0) {
        ctl_error("%s: %s", template_file, why);
        goto out;
    }
    rc = fwrite(text, 1, bytes, stdout) == bytes && !fflush(stdout)
             ? 0
             : ctl_error("cannot write to standard output");
out:
    llm_template_free_text(text);
    llm_template_free(t);
    free(source);
    free(input);
    return rc;
}

int cmd_render(int argc, char **argv)
{
    static const struct option options[] = {{"template", required_argument, NULL, 't'},
                                            {"input", required_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    const char *template_file = NULL, *input_file = NULL;
    int c;
    while ((c = ctl_getopt(argc, argv, ":h", options)) != -1)
        switch (c) {
        case 't':
            template_file = optarg;
            break;
        case 'i':
            input_file = optarg;
            break;
        case 'h':
            puts("usage: llmctl render --template FILE --input FILE\n\n"
                 "Prints the text that the chat template makes of the input: a JSON object with "
                 "messages, tools,\n"
                 "add_generation_prompt, bos_token, ..., now (\"YYYY-MM-DD HH:MM:SS\") and further "
                 "variables.");
            return 0;
        default:
            return 2;
        }
    if (!template_file || !input_file || optind < argc)
        return ctl_usage("render needs --template FILE and --input FILE, nothing else");
    return render(template_file, input_file);
}
