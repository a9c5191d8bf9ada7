/* test_segments.c - the seals refuse: what a client may do with the descriptors it is given, and
 * what not.
 */
#include "../../appliance/segments.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 16384 };

/* The descriptor opened anew, as a holder may do through /proc: the strongest it can have. */
static int reopened(int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_CLOEXEC);
    assert_true(again >= 0);
    return again;
}

static void cannot_resize(int fd)
{
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(ftruncate(fd, BYTES - 4096), -1);
    assert_int_equal(ftruncate(fd, 2 * BYTES), -1);
    assert_int_equal(fallocate(fd, 0, 0, 2 * BYTES), -1);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, BYTES);
}

static void cannot_seal(int fd)
{
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(errno, EPERM);
}

static void cannot_write(int fd)
{
    assert_ptr_equal(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    assert_int_equal(errno, EPERM);
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    assert_int_equal(errno, EPERM);
    void *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    assert_int_equal(mprotect(at, BYTES, PROT_READ | PROT_WRITE), -1);
    munmap(at, BYTES);
}

/* Every page is there before anybody has touched it. */
static void is_allocated(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_true(st.st_blocks * 512 >= BYTES);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
}

static void down_is_written_by_the_engine_alone(void **state)
{
    (void)state;
    struct segment s;
    struct fail f = {0};
    assert_int_equal(segment_to_client(&s, "test-down", BYTES, &f), 0);
    is_allocated(s.fd);
    int fd = reopened(s.fd);
    cannot_resize(fd);
    cannot_seal(fd);
    cannot_write(fd);
    cannot_write(s.fd);
    const char *theirs = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(theirs, MAP_FAILED);
    strcpy(s.map, "news"); /* the engine's own mapping still writes */
    assert_string_equal(theirs, "news");
    munmap((void *)theirs, BYTES);
    close(fd);
    segment_free(&s);
}

static void up_is_written_by_the_client_alone(void **state)
{
    (void)state;
    struct segment s;
    struct fail f = {0};
    assert_int_equal(segment_from_client(&s, "test-up", BYTES, &f), 0);
    is_allocated(s.fd);
    int fd = reopened(s.fd);
    cannot_resize(fd);
    cannot_seal(fd);
    char *theirs = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(theirs, MAP_FAILED);
    strcpy(theirs, "asks");
    assert_string_equal((char *)s.map, "asks");
    /* a punched hole reads as zeros: no fault, and the engine judges its copy anyway */
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BYTES), 0);
    assert_int_equal(*(char *)s.map, 0);
    munmap(theirs, BYTES);
    close(fd);
    /* our mapping cannot write */
    char maps[64];
    snprintf(maps, sizeof maps, "%lx-", (unsigned long)s.map);
    FILE *self = fopen("/proc/self/maps", "r");
    char line[512];
    bool found = false;
    while (fgets(line, sizeof line, self))
        if (!strncmp(line, maps, strlen(maps))) {
            found = true;
            assert_non_null(strstr(line, " r--s "));
        }
    fclose(self);
    assert_true(found);
    segment_free(&s);
}

/* What a client asks for costs the engine nothing before it is used, and reads as zeros. */
static void a_large_up_is_made_by_its_client(void **state)
{
    (void)state;
    enum { LARGE = 16 << 20 };
    struct segment s;
    struct fail f = {0};
    struct stat st;
    assert_int_equal(segment_from_client(&s, "test-up", LARGE, &f), 0);
    assert_int_equal(fstat(s.fd, &st), 0);
    assert_int_equal(st.st_size, LARGE);
    assert_true(st.st_blocks * 512 >= SEGMENT_READY);
    assert_true(st.st_blocks * 512 <= LARGE / 2); /* also where shared memory has huge pages */
    assert_int_equal(((char *)s.map)[LARGE - 1], 0);
    char *theirs = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_SHARED, s.fd, 0);
    assert_ptr_not_equal(theirs, MAP_FAILED);
    theirs[LARGE - 1] = theirs[LARGE / 2] = 'x';
    assert_int_equal(((char *)s.map)[LARGE - 1], 'x');
    assert_int_equal(((char *)s.map)[LARGE / 2], 'x');
    munmap(theirs, LARGE);
    segment_free(&s);

    assert_int_equal(segment_to_client(&s, "test-down", LARGE, &f), 0);
    assert_int_equal(fstat(s.fd, &st), 0);
    assert_true(st.st_blocks * 512 >= LARGE); /* the engine writes it */
    segment_free(&s);
}

static void frozen_never_changes(void **state)
{
    (void)state;
    struct segment s;
    struct fail f = {0};
    static char image[BYTES];
    for (int i = 0; i < BYTES; i++)
        image[i] = (char)(i * 7);
    assert_int_equal(segment_frozen(&s, "test-vocab", image, BYTES, &f), 0);
    int fd = reopened(s.fd);
    cannot_resize(fd);
    cannot_seal(fd);
    cannot_write(fd);
    void *at = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(at, MAP_FAILED);
    assert_memory_equal(at, image, BYTES);
    munmap(at, BYTES);
    close(fd);
    segment_free(&s);
}

static void frees_and_refuses(void **state)
{
    (void)state;
    struct segment s;
    struct fail f = {0};
    assert_int_equal(segment_to_client(&s, "test-down", BYTES, &f), 0);
    int fd = s.fd;
    void *map = s.map;
    segment_close_fd(&s);
    assert_int_equal(fcntl(fd, F_GETFD), -1);
    strcpy(map, "the mapping stays");
    segment_free(&s);
    segment_free(&s); /* twice is allowed */
    assert_null(s.map);
    unsigned char there;
    assert_int_equal(mincore(map, BYTES, &there), -1);
    assert_int_equal(errno, ENOMEM);

    assert_true(segment_to_client(&s, "test-huge", (size_t)1 << 63, &f) < 0);
    assert_non_null(strstr(f.text, "test-huge"));
    assert_int_equal(s.fd, -1);
    assert_null(s.map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(down_is_written_by_the_engine_alone),
                                       cmocka_unit_test(up_is_written_by_the_client_alone),
                                       cmocka_unit_test(a_large_up_is_made_by_its_client),
                                       cmocka_unit_test(frozen_never_changes),
                                       cmocka_unit_test(frees_and_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
