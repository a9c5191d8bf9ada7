/* fuzz_config.c - libFuzzer: any bytes as a configuration file. It is refused with a sentence, or the
 * options in effect, printed as a file, say the same again.
 *
 *   data[0]  bit 0: the command line names the model; bit 1: a CPU for the io thread
 *   rest     the file
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../appliance/options.h"
#include "tape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The command line's words and the file must outlive the options. */
static int parse(struct options *o, const char *path, unsigned flags, struct fail *f)
{
    static char words[][16] = {"llmd", "--config", "--model", "m.gguf", "--io-cpu", "0"};
    char *argv[8] = {words[0], words[1], (char *)path};
    int argc = 3;
    if (flags & 1)
        argv[argc++] = words[2], argv[argc++] = words[3];
    if (flags & 2)
        argv[argc++] = words[4], argv[argc++] = words[5];
    *f = (struct fail){0};
    memset(o, 0xee, sizeof *o);
    return options_parse(o, argc, argv, f);
}

static int file_of(const void *data, size_t bytes, char *path, size_t room)
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    DEMAND(fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, room, "/proc/self/fd/%d", fd);
    return fd;
}

static char *printed(const struct options *o, size_t *bytes)
{
    char *text;
    FILE *out = open_memstream(&text, bytes);
    DEMAND(out);
    options_print(out, o);
    DEMAND(!fclose(out));
    return text;
}

/* With what is in effect nothing need be on the command line. */
static void read_back(const struct options *o)
{
    static struct options again;
    struct fail f;
    char path[64];
    size_t bytes, same;
    char *first = printed(o, &bytes);
    int fd = file_of(first, bytes, path, sizeof path);
    int rc = parse(&again, path, 0, &f);
    if (rc)
        fprintf(stderr, "%s\nis refused: %s\n", first, f.text);
    DEMAND(rc == OPTIONS_RUN);
    char *second = printed(&again, &same);
    DEMAND(bytes == same && !memcmp(first, second, bytes));
    close(fd);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct options o;
    struct fail f;
    char path[64];
    if (!size)
        return 0;
    int fd = file_of(data + 1, size - 1, path, sizeof path);
    int rc = parse(&o, path, data[0], &f);
    if (!o.threads)
        o.threads = o.cpu_list.n; /* one for each CPU, said in the other way */
    if (rc == OPTIONS_RUN)
        read_back(&o);
    else
        DEMAND(rc == -EINVAL && f.code == rc && *f.text && memchr(f.text, 0, sizeof f.text));
    close(fd);
    return 0;
}
