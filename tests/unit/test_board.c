/* test_board.c - the board outlives what others do to it: truncated under the engine, stale from a
 * crash; and its ring of errors.
 */
#include "../../appliance/board.h"
#include "../../shm/control.h"
#include "../support/support.h" /* after: cmocka has a macro named fail */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct board b;
static char instance[48];

static int make(void **state)
{
    (void)state;
    struct fail f = {0};
    snprintf(instance, sizeof instance, "board-%d", (int)getpid());
    if (board_create(&b, instance, &f))
        fail_msg("%s", f.text);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    board_remove(&b);
    return 0;
}

static int open_board(int flags)
{
    char name[80];
    assert_int_equal(llm_board_name(instance, name, sizeof name), 0);
    return shm_open(name, flags, 0);
}

static void is_there_for_observers_once_published(void **state)
{
    (void)state;
    int fd = open_board(O_RDONLY);
    assert_true(fd >= 0);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, LLM_BOARD_BYTES);
    assert_int_equal(st.st_mode & 0777, 0640);
    const struct llm_board *seen = mmap(NULL, LLM_BOARD_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(seen, MAP_FAILED);
    close(fd);
    assert_true(order_acquire64(&seen->magic) == 0);
    assert_int_equal(order_acquire(&seen->state), LLM_STATE_STARTING);
    b.map->pid = 77;
    board_publish(&b);
    assert_true(order_acquire64(&seen->magic) == LLM_MAGIC_BOARD);
    assert_int_equal(seen->pid, 77);
    munmap((void *)seen, LLM_BOARD_BYTES);
}

static ino_t inode_of_board(void)
{
    struct stat st;
    int fd = open_board(O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    close(fd);
    return st.st_ino;
}

/* The lock of the instance may lie in another runtime directory: the board itself says whose it is.
 */
static void a_living_engines_is_left_alone(void **state)
{
    (void)state;
    struct board next;
    struct fail f = {0};
    ino_t ours = inode_of_board();
    b.map->pid = 4321;
    assert_int_equal(board_create(&next, instance, &f), -EBUSY);
    assert_non_null(strstr(f.text, "process 4321"));
    assert_null(next.map);
    board_remove(&next);
    assert_true(inode_of_board() == ours);
    int looks = open_board(O_RDONLY);
    assert_int_equal(flock(looks, LOCK_SH | LOCK_NB), -1); /* held: it lives */
    assert_int_equal(errno, EWOULDBLOCK);
    close(looks);
}

/* Somebody removed our board, and another engine has made its own. */
static void a_strangers_is_not_removed(void **state)
{
    (void)state;
    struct board next;
    struct fail f = {0};
    char name[80];
    assert_int_equal(llm_board_name(instance, name, sizeof name), 0);
    assert_int_equal(shm_unlink(name), 0);
    assert_int_equal(board_create(&next, instance, &f), 0);
    ino_t theirs = inode_of_board();
    board_remove(&b);
    assert_true(inode_of_board() == theirs);
    board_remove(&next);
}

static void a_stale_one_is_replaced(void **state)
{
    (void)state;
    int old = open_board(O_RDWR);
    assert_true(old >= 0);
    b.map->pid = 1234;
    assert_int_equal(flock(b.fd, LOCK_UN), 0); /* as its end does */
    struct board next;
    struct fail f = {0};
    assert_int_equal(board_create(&next, instance, &f), 0);
    assert_int_equal(next.map->pid, 0);
    struct stat was, is;
    int fd = open_board(O_RDONLY);
    assert_int_equal(fstat(old, &was), 0);
    assert_int_equal(fstat(fd, &is), 0);
    assert_true(was.st_ino != is.st_ino);
    close(old);
    close(fd);
    board_remove(&next);
    board_remove(&next); /* twice is allowed */
    assert_int_equal(open_board(O_RDONLY), -1);
    assert_int_equal(errno, ENOENT);
}

static void truncation_costs_the_view_not_the_engine(void **state)
{
    make(state); /* here, not as a setup: cmocka replaces SIGBUS handlers when a test begins */
    int fd = open_board(O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    order_set64(&b.map->steps, 41); /* SIGBUS, handled */
    assert_true(order_read64(&b.map->steps) == 41);
    assert_true(order_read64(&b.map->board_lost) == 1);
    board_error(&b, -5, "after the loss");
    assert_string_equal(b.map->errors[0].text, "after the loss");
    order_set64(&b.map->heartbeat_ns, 1);
    assert_true(order_read64(&b.map->board_lost) == 1); /* lost once, not at every store */
    close(fd);
}

static void keeps_the_last_errors(void **state)
{
    (void)state;
    char text[32];
    for (int i = 0; i < LLM_BOARD_ERRORS + 3; i++)
        board_error(&b, -i, "error %d", i);
    assert_true(order_read64(&b.map->errors_written) == LLM_BOARD_ERRORS + 3);
    for (int i = 3; i < LLM_BOARD_ERRORS + 3; i++) {
        const struct llm_board_error *e = &b.map->errors[i % LLM_BOARD_ERRORS];
        snprintf(text, sizeof text, "error %d", i);
        assert_string_equal(e->text, text);
        assert_int_equal(e->code, -i);
        assert_true(order_read64(&e->t_ns) > 0);
    }
    char long_text[1000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    board_error(&b, -1, "%s", long_text);
    const struct llm_board_error *e = &b.map->errors[(LLM_BOARD_ERRORS + 3) % LLM_BOARD_ERRORS];
    assert_int_equal(strlen(e->text), LLM_BOARD_ERROR_TEXT - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(is_there_for_observers_once_published, make, unmake),
        cmocka_unit_test_setup_teardown(a_living_engines_is_left_alone, make, unmake),
        cmocka_unit_test_setup_teardown(a_strangers_is_not_removed, make, unmake),
        cmocka_unit_test_setup_teardown(a_stale_one_is_replaced, make, unmake),
        cmocka_unit_test_teardown(truncation_costs_the_view_not_the_engine, unmake),
        cmocka_unit_test_setup_teardown(keeps_the_last_errors, make, unmake)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
