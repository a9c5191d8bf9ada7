/* plot.c - see plot.h. Lengths are SVG's user units (pixels at its natural size). */
#include "plot.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    WIDTH = 800,
    HEIGHT = 500,
    LEFT = 72,
    RIGHT = 168, /* for the names at the lines' ends */
    TOP = 118,
    BOTTOM = 64,
    LABEL_HEIGHT = 17,
    LEGEND_Y = 84,
    LEGEND_MARK = 30,
    LEGEND_GAP = 16,
    TICKS = 5
};

static const double letter =
    6.7; /* a mean one of the 12 px font; only the legend's places need it */

/* Colours of the two schemes, by enum plot_look. */
static const char *const light[PLOT_LOOKS] = {"#0a66c2", "#0a66c2", "#c2500a", "#7a3db8",
                                              "#6b7280"};
static const char *const dark[PLOT_LOOKS] = {"#5aa9ff", "#5aa9ff", "#f59a4c", "#c297ff", "#9aa4b2"};
static const char *const dashes[PLOT_LOOKS] = {"none", "2 4", "none", "none", "7 5"};

/* ---- scales ---- */

int plot_ticks(double most, double out[PLOT_TICKS_MAX])
{
    static const double steps[] = {1, 2, 2.5, 5, 10};
    double rough = (most > 0 ? most : 1) / TICKS, power = pow(10, floor(log10(rough))), step = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && step < rough * (1 - 1e-9); i++)
        step = steps[i] * power;
    int n = 0;
    while (n < PLOT_TICKS_MAX && (n < 2 || out[n - 1] < most * (1 - 1e-9))) {
        out[n] = n * step;
        n++;
    }
    return n;
}

int plot_log_ticks(double least, double most, double out[PLOT_TICKS_MAX])
{
    static const double parts[] = {1, 2, 5};
    assert(least > 0 && most >= least);
    double power = pow(10, floor(log10(least)));
    int n = 0;
    for (int i = 0; n < PLOT_TICKS_MAX; i++) {
        double v = parts[i % 3] * power * pow(10, i / 3);
        if (n && v <= least)
            n = 0; /* a later one is low enough */
        out[n++] = v;
        if (v >= most && n > 1)
            break;
    }
    return n;
}

static void order_by_place(const double *at, int n, int *order)
{
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && at[order[j - 1]] > at[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
}

/* Neighbours that are too near become one group around their mean, until none are. */
void plot_spread(double *at, int n, double distance, double from, double to)
{
    struct {
        double sum; /* of the places that its members want, each less its offset in the group */
        int first, n;
        double at; /* of its first member */
    } group[PLOT_LINES_MAX];
    int order[PLOT_LINES_MAX], groups = 0;
    assert(n <= PLOT_LINES_MAX);
    order_by_place(at, n, order);
    for (int i = 0; i < n; i++) {
        group[groups].sum = at[order[i]];
        group[groups].first = i;
        group[groups++].n = 1;
        for (;;) {
            int g = groups - 1;
            double last = to - distance * (group[g].n - 1);
            group[g].at = fmax(from, fmin(group[g].sum / group[g].n, last));
            if (!g || group[g - 1].at + distance * group[g - 1].n <= group[g].at + 1e-9)
                break;
            group[g - 1].sum += group[g].sum - distance * group[g - 1].n * group[g].n;
            group[g - 1].n += group[g].n;
            groups--;
        }
    }
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < group[g].n; i++)
            at[order[group[g].first + i]] = group[g].at + distance * i;
}

/* ---- places ---- */

struct frame {
    const struct plot *p;
    double ticks[PLOT_TICKS_MAX];
    int n_ticks;
    FILE *out;
};

static double place_x(const struct frame *f, double x)
{
    const struct plot *p = f->p;
    double first = log2(p->x[0]), last = log2(p->x[p->n - 1]);
    double share = last > first ? (log2(x) - first) / (last - first) : 0.5;
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double place_y(const struct frame *f, double y)
{
    double low = f->ticks[0], high = f->ticks[f->n_ticks - 1];
    double share = f->p->y_log ? log(y / low) / log(high / low) : (y - low) / (high - low);
    return HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
}

static void widen(double v, double *least, double *most)
{
    *least = fmin(*least, v); /* of a number and NAN: the number */
    *most = fmax(*most, v);
}

static void choose_ticks(struct frame *f)
{
    const struct plot *p = f->p;
    double least = NAN, most = NAN;
    for (int i = 0; i < p->n_lines; i++)
        for (int j = 0; j < p->n; j++) {
            widen(p->lines[i].y[j], &least, &most);
            if (p->lines[i].high)
                widen(p->lines[i].high[j], &least, &most);
            if (p->lines[i].low)
                widen(p->lines[i].low[j], &least, &most);
        }
    if (isnan(most))
        least = most = 1;
    f->n_ticks = p->y_log ? plot_log_ticks(least, most, f->ticks) : plot_ticks(most, f->ticks);
}

/* ---- writing ---- */

static void put_text(FILE *out, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '&':
            fputs("&amp;", out);
            break;
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        default:
            fputc(*text, out);
        }
}

static void put_line_of_text(FILE *out, double x, double y, const char *classes, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, classes);
    put_text(out, text);
    fputs("</text>\n", out);
}

static void put_style(FILE *out)
{
    fputs("<style>\n"
          "  svg { color-scheme: light dark; --paper: #ffffff; --ink: #1c2128; --quiet: #57606a; "
          "--grid: #e3e7ec;",
          out);
    for (int i = 0; i < PLOT_LOOKS; i++)
        fprintf(out, " --c%d: %s;", i, light[i]);
    fputs(" }\n  @media (prefers-color-scheme: dark) {\n"
          "    svg { --paper: #0f141a; --ink: #e6edf3; --quiet: #9aa4b2; --grid: #28303a;",
          out);
    for (int i = 0; i < PLOT_LOOKS; i++)
        fprintf(out, " --c%d: %s;", i, dark[i]);
    fputs(" }\n  }\n"
          "  text { font: 12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', "
          "sans-serif; fill: var(--quiet); }\n"
          "  .title { font-size: 18px; font-weight: 600; fill: var(--ink); }\n"
          "  .axis { fill: var(--ink); }\n  .middle { text-anchor: middle; }\n"
          "  .end { text-anchor: end; }\n  .value { font-weight: 600; }\n"
          "  .grid { stroke: var(--grid); }\n  .base { stroke: var(--quiet); }\n"
          "  .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; "
          "stroke-linecap: round; }\n"
          "  .whisker { stroke-width: 1.2; opacity: 0.6; }\n"
          "  .lead { stroke-width: 1; opacity: 0.5; }\n",
          out);
    for (int i = 0; i < PLOT_LOOKS; i++)
        fprintf(out,
                "  .s%d { stroke: var(--c%d); } .f%d { fill: var(--c%d); } .d%d { "
                "stroke-dasharray: %s; }\n",
                i, i, i, i, i, dashes[i]);
    fputs("</style>\n", out);
}

/* A mark of its own for each look, so that colour is not all that tells them apart. */
static void put_mark(FILE *out, enum plot_look look, double x, double y)
{
    switch (look) {
    case PLOT_OURS:
        fprintf(out, "<circle class=\"f%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", look, x, y);
        break;
    case PLOT_PEER:
        fprintf(out, "<rect class=\"f%d\" x=\"%.1f\" y=\"%.1f\" width=\"7.4\" height=\"7.4\"/>\n",
                look, x - 3.7, y - 3.7);
        break;
    case PLOT_PEER_BEST:
        fprintf(out, "<path class=\"f%d\" d=\"M%.1f %.1fl5.2 5.2l-5.2 5.2l-5.2 -5.2z\"/>\n", look,
                x, y - 5.2);
        break;
    default:
        break; /* a line says it all */
    }
}

static void put_head(const struct frame *f)
{
    const struct plot *p = f->p;
    put_line_of_text(f->out, 20, 32, "title", p->title);
    put_line_of_text(f->out, 20, 54, "", p->subtitle);
    double x = 20;
    for (int i = 0; i < p->n_lines; i++) {
        const struct plot_line *l = &p->lines[i];
        fprintf(f->out, "<path class=\"line s%d d%d\" d=\"M%.1f %dh%d\"/>\n", l->look, l->look, x,
                LEGEND_Y - 4, LEGEND_MARK - 6);
        put_mark(f->out, l->look, x + (LEGEND_MARK - 6) / 2.0, LEGEND_Y - 4);
        put_line_of_text(f->out, x + LEGEND_MARK, LEGEND_Y, "", l->name);
        x += LEGEND_MARK + letter * (double)strlen(l->name) + LEGEND_GAP;
    }
}

static void put_number(char *out, size_t size, double v)
{
    if (v >= 99.95 || v == floor(v))
        snprintf(out, size, "%.0f", v);
    else
        snprintf(out, size, "%.*f", v >= 9.995 ? 1 : 2, v);
}

static void put_axes(const struct frame *f)
{
    const struct plot *p = f->p;
    char number[32];
    for (int i = 0; i < f->n_ticks; i++) {
        double y = place_y(f, f->ticks[i]);
        fprintf(f->out, "<path class=\"%s\" d=\"M%d %.1fH%d\"/>\n", i ? "grid" : "base", LEFT, y,
                WIDTH - RIGHT);
        snprintf(number, sizeof number, "%g", f->ticks[i]);
        put_line_of_text(f->out, LEFT - 8, y + 4, "end", number);
    }
    for (int i = 0; i < p->n; i++) {
        double x = place_x(f, p->x[i]);
        fprintf(f->out, "<path class=\"base\" d=\"M%.1f %dv5\"/>\n", x, HEIGHT - BOTTOM);
        snprintf(number, sizeof number, "%g", p->x[i]);
        put_line_of_text(f->out, x, HEIGHT - BOTTOM + 20, "middle", number);
    }
    put_line_of_text(f->out, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 20, "axis middle", p->x_label);
    put_line_of_text(f->out, 20, TOP - 12, "axis", p->y_label);
}

static void put_whiskers(const struct frame *f, const struct plot_line *l)
{
    for (int i = 0; l->low && l->high && i < f->p->n; i++)
        if (!isnan(l->y[i]) && !isnan(l->low[i]) && !isnan(l->high[i]))
            fprintf(f->out, "<path class=\"whisker s%d\" d=\"M%.1f %.1fV%.1f\"/>\n", l->look,
                    place_x(f, f->p->x[i]), place_y(f, l->low[i]), place_y(f, l->high[i]));
}

static void put_line(const struct frame *f, const struct plot_line *l)
{
    put_whiskers(f, l);
    fprintf(f->out, "<path class=\"line s%d d%d\" d=\"", l->look, l->look);
    bool drawn = false;
    for (int i = 0; i < f->p->n; i++) {
        bool there = !isnan(l->y[i]);
        if (there)
            fprintf(f->out, "%c%.1f %.1f", drawn ? 'L' : 'M', place_x(f, f->p->x[i]),
                    place_y(f, l->y[i]));
        drawn = there;
    }
    fputs("\"/>\n", f->out);
    for (int i = 0; i < f->p->n; i++)
        if (!isnan(l->y[i]))
            put_mark(f->out, l->look, place_x(f, f->p->x[i]), place_y(f, l->y[i]));
}

static void put_label(const struct frame *f, const struct plot_line *l, double at)
{
    double value = l->y[f->p->n - 1], y = place_y(f, value);
    char number[32];
    put_number(number, sizeof number, value);
    if (fabs(at - y) > 3)
        fprintf(f->out, "<path class=\"lead s%d\" d=\"M%.1f %.1fL%d %.1f\"/>\n", l->look,
                place_x(f, f->p->x[f->p->n - 1]) + 6, y, WIDTH - RIGHT + 14, at);
    fprintf(f->out, "<text x=\"%d\" y=\"%.1f\" class=\"f%d\"><tspan class=\"value\">%s</tspan> ",
            WIDTH - RIGHT + 18, at + 4, l->look, number);
    put_text(f->out, l->label);
    fputs("</text>\n", f->out);
}

static void put_labels(const struct frame *f)
{
    const struct plot *p = f->p;
    const struct plot_line *named[PLOT_LINES_MAX];
    double at[PLOT_LINES_MAX];
    int n = 0;
    for (int i = 0; i < p->n_lines; i++) {
        double last = p->lines[i].y[p->n - 1];
        if (isnan(last))
            continue; /* the legend names it */
        at[n] = place_y(f, last);
        named[n++] = &p->lines[i];
    }
    plot_spread(at, n, LABEL_HEIGHT, TOP, HEIGHT - BOTTOM);
    for (int i = 0; i < n; i++)
        put_label(f, named[i], at[i]);
}

bool plot_write(const struct plot *p, FILE *file)
{
    struct frame f = {.p = p, .out = file};
    assert(p->n >= 1 && p->n_lines <= PLOT_LINES_MAX);
    choose_ticks(&f);
    fprintf(file,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" role=\"img\">\n<title>",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_text(file, p->title);
    fputs("</title>\n", file);
    put_style(file);
    fprintf(file, "<rect width=\"%d\" height=\"%d\" style=\"fill: var(--paper)\"/>\n", WIDTH,
            HEIGHT);
    put_head(&f);
    put_axes(&f);
    for (int i = p->n_lines; i-- > 0;) /* the first one on top */
        put_line(&f, &p->lines[i]);
    put_labels(&f);
    fputs("</svg>\n", file);
    return !ferror(file);
}
