/* resident.c - see resident.h. */
#include "resident.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

int resident_bytes(pid_t pid, uint64_t *rss, uint64_t *pss, struct fail *f)
{
    char path[64], line[256];
    uint64_t kib;
    *rss = *pss = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return fail(f, -errno, "%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "Rss: %" SCNu64, &kib) == 1)
            *rss = kib * 1024;
        else if (sscanf(line, "Pss: %" SCNu64, &kib) == 1)
            *pss = kib * 1024;
    }
    fclose(file);
    return *rss ? 0 : fail(f, -EPROTO, "%s has no line Rss", path);
}
