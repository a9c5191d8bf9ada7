/* top.c - `top`: the board of an engine, live on the terminal, or once as plain text.
 *
 *   watching --q, SIGINT, SIGTERM--> end
 *   the board goes away (an orderly stop): the last figures stay, and it looks on for the next start
 *   of the engine; its lock is free (it died): the same, with the post-mortem
 */
#include <curses.h>
#include <errno.h>
#include <getopt.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "frame.h"

/* curses.h has a macro of that name */
#undef clear

static volatile sig_atomic_t ending; /* set by the signal handler alone */

static void on_signal(int number)
{
    ending = number;
}

struct top {
    struct board_view *now, *before, *spare; /* before: of the last interval, where `has_before` */
    bool has_before, gone;
};

static bool top_create(struct top *t)
{
    *t = (struct top){board_view_create(), board_view_create(), board_view_create(), false, false};
    return t->now && t->before && t->spare;
}

static void top_destroy(struct top *t)
{
    free(t->now);
    free(t->before);
    free(t->spare);
}

/* The next interval. What cannot be read leaves the figures as they are. */
static void look(struct top *t)
{
    int rc = board_view_read_quiet(t->spare);
    t->gone = rc == -ENOENT;
    if (rc)
        return;
    struct board_view *oldest = t->before;
    t->before = t->now;
    t->now = t->spare;
    t->spare = oldest;
    t->has_before = t->now->lives;
}

/* ---- once ---- */

static unsigned columns(void)
{
    const char *given = getenv("COLUMNS");
    struct winsize size;
    if (given && atoi(given) > 0)
        return (unsigned)atoi(given);
    return !ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : 80;
}

static int print_once(struct top *t)
{
    struct frame *f = malloc(sizeof *f);
    if (!f)
        return ctl_error("out of memory for the figures");
    frame_build(f, columns(), 0, t->now, NULL, false);
    for (unsigned i = 0; i < f->n; i++)
        puts(f->lines[i]);
    free(f);
    return fflush(stdout) ? ctl_error("cannot write to standard output") : 0;
}

/* ---- live ---- */

static void draw(const struct top *t, struct frame *f)
{
    int rows, cols;
    getmaxyx(stdscr, rows, cols);
    unsigned room = rows > 1 ? (unsigned)rows - 1 : 1;
    frame_build(f, (unsigned)cols, room, t->now, t->has_before ? t->before : NULL, t->gone);
    erase();
    for (unsigned i = 0; i < f->n; i++)
        mvaddnstr((int)i, 0, f->lines[i], cols);
    if (rows > 1)
        mvaddnstr(rows - 1, 0, "q: quit", cols);
    refresh();
}

/* Until a key says so. KEY_RESIZE only draws again. */
static void watch(struct top *t, struct frame *f, int interval_ms)
{
    timeout(interval_ms);
    while (!ending) {
        draw(t, f);
        int key = getch();
        if (key == 'q' || key == 'Q')
            return;
        if (key == ERR && !ending)
            look(t);
    }
}

static int show_live(struct top *t, int interval_ms)
{
    struct frame *f = malloc(sizeof *f);
    if (!f)
        return ctl_error("out of memory for the figures");
    setlocale(LC_CTYPE, ""); /* names may be UTF-8; numbers stay as they are */
    SCREEN *screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        free(f);
        return ctl_error("the terminal \"%.40s\" is not known here: use llmctl top --once",
                         getenv("TERM") ? getenv("TERM") : "");
    }
    struct sigaction act = {.sa_handler = on_signal};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    watch(t, f, interval_ms);
    endwin();
    delscreen(screen);
    free(f);
    return ending == SIGINT ? 130 : ending ? 128 + ending : 0;
}

/* ---- the command ---- */

static int top(bool once, int interval_ms)
{
    struct top t;
    int rc = top_create(&t) ? board_view_read(t.now) : 1;
    if (!rc)
        rc = once ? print_once(&t) : show_live(&t, interval_ms);
    top_destroy(&t);
    return rc;
}

int cmd_top(int argc, char **argv)
{
    static const struct option options[] = {{"once", no_argument, NULL, 'o'},
                                            {"interval", required_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    bool once = false;
    double interval_s = 1;
    int c, rc = 0;
    while (!rc && (c = ctl_getopt(argc, argv, ":h", options)) != -1)
        switch (c) {
        case 'o':
            once = true;
            break;
        case 'i':
            rc = ctl_parse_amount("--interval", optarg, &interval_s);
            break;
        case 'h':
            puts("usage: llmctl [-i INSTANCE] top [--once] [--interval SECONDS]\n\n"
                 "State, load and latencies of an engine, live; of one that has died, its last "
                 "figures. q ends.\n"
                 "  --once                one frame as plain text, over the time since its start\n"
                 "  --interval SECONDS    how often it looks, 0.1 to 3600 (1)");
            return 0;
        default:
            return 2;
        }
    if (rc)
        return rc;
    if (optind < argc)
        return ctl_usage("unexpected \"%.40s\"", argv[optind]);
    if (interval_s < 0.1 || interval_s > 3600)
        return ctl_usage("--interval: give 0.1 to 3600 seconds");
    if (!once && !(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)))
        return ctl_usage("top needs a terminal: use llmctl top --once");
    return top(once, (int)(interval_s * 1000));
}
