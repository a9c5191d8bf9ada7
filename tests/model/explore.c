/* explore.c - see explore.h
 *
 * Actions 0 .. T - 1 are steps of the threads, T .. 2T - 1 drain their store buffers. An edge keeps
 * how a state was reached: its parent, the action and the picks, from which a counterexample is
 * played again. Two layers of states are held, packed.
 */
#include "explore.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { STATES_MAX = 40 << 20, NO_EDGE = UINT32_MAX };

struct edge {
    uint32_t parent;
    uint8_t action, n_picks;
    uint32_t picks; /* 4 bits each */
};

struct layer {
    uint8_t *bytes; /* per state: edge u32, length u32, packed state */
    size_t used, capacity;
};

struct search {
    const struct model *m;
    struct edge *edges;
    size_t n_edges, edges_capacity;
    uint64_t *seen;
    size_t n_seen, seen_capacity; /* a power of two */
    struct layer now, next;
    const char *violation;
    uint32_t end; /* edge into the bad state */
};

static void *enlarge(void *p, size_t bytes)
{
    p = realloc(p, bytes);
    if (!p) {
        fprintf(stderr, "explore: no memory for %zu bytes\n", bytes);
        abort();
    }
    return p;
}

/* ---- states that were seen ---- */

static uint64_t mix(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0xff51afd7ed558ccdu;
    return h ^ h >> 32;
}

static uint64_t hash(const uint8_t *p, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n, word;
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    memcpy(&word, p, n);
    h = mix(mix(h, word), 0xc4ceb9fe1a85ec53u);
    return h ? h : 1;
}

static bool insert(uint64_t *table, size_t capacity, uint64_t h)
{
    size_t i = h & (capacity - 1);
    for (; table[i]; i = (i + 1) & (capacity - 1))
        if (table[i] == h)
            return false;
    table[i] = h;
    return true;
}

static void grow_seen(struct search *s)
{
    size_t capacity = s->seen_capacity ? 2 * s->seen_capacity : 1 << 14;
    uint64_t *table = enlarge(NULL, capacity * sizeof *table);
    memset(table, 0, capacity * sizeof *table);
    for (size_t i = 0; i < s->seen_capacity; i++)
        if (s->seen[i])
            insert(table, capacity, s->seen[i]);
    free(s->seen);
    s->seen = table;
    s->seen_capacity = capacity;
}

/* True if it is new. */
static bool note(struct search *s, uint64_t h)
{
    if (2 * s->n_seen >= s->seen_capacity)
        grow_seen(s);
    bool fresh = insert(s->seen, s->seen_capacity, h);
    s->n_seen += fresh;
    return fresh;
}

/* ---- edges and layers ---- */

static uint32_t add_edge(struct search *s, uint32_t parent, unsigned action,
                         const struct choices *c)
{
    if (s->n_edges == s->edges_capacity) {
        s->edges_capacity = s->edges_capacity ? 2 * s->edges_capacity : 1 << 12;
        s->edges = enlarge(s->edges, s->edges_capacity * sizeof *s->edges);
    }
    struct edge e = {.parent = parent, .action = (uint8_t)action, .n_picks = (uint8_t)c->n};
    for (unsigned i = 0; i < c->n; i++)
        e.picks |= (uint32_t)c->pick[i] << 4 * i;
    s->edges[s->n_edges] = e;
    return (uint32_t)s->n_edges++;
}

/* Room for one more state at the layer's end. */
static uint8_t *layer_room(struct layer *l)
{
    size_t most = 2 * sizeof(uint32_t) + sizeof(struct state);
    if (l->capacity - l->used < most) {
        l->capacity = 2 * l->capacity + 16 * most;
        l->bytes = enlarge(l->bytes, l->capacity);
    }
    return l->bytes + l->used + 2 * sizeof(uint32_t);
}

static void layer_add(struct layer *l, uint32_t edge, size_t bytes)
{
    uint32_t head[2] = {edge, (uint32_t)bytes};
    memcpy(l->bytes + l->used, head, sizeof head);
    l->used += sizeof head + bytes;
}

/* ---- a step ---- */

static bool act(struct run *x, const struct model *m, unsigned action)
{
    unsigned n = m->machine.n_threads;
    x->thread = action % n;
    x->thread_name = m->thread[x->thread];
    if (action >= n)
        return machine_drain(x);
    if (x->s->ended >> x->thread & 1)
        return false;
    enum progress p = m->step(x);
    if (p == DONE)
        x->s->ended |= (uint8_t)(1u << x->thread);
    return p != BLOCKED;
}

/* The next sequence of picks; false after the last. */
static bool next_picks(struct choices *c)
{
    while (c->n && c->pick[c->n - 1] + 1 == c->of[c->n - 1])
        c->n--;
    if (!c->n)
        return false;
    c->pick[c->n - 1]++;
    return true;
}

/* One action with one sequence of picks, from the packed state. True if the thread could move. */
static bool try_action(struct search *s, const uint8_t *from, uint32_t edge, unsigned action,
                       struct choices *c)
{
    const struct machine *machine = &s->m->machine;
    struct state state;
    struct run x = {.machine = machine, .model = s->m->config, .s = &state, .choices = c};
    machine_unpack(machine, &state, from);
    c->at = 0;
    if (!act(&x, s->m, action))
        return false;
    machine_canonical(machine, &state);
    uint8_t *to = layer_room(&s->next);
    size_t bytes = machine_pack(machine, &state, to);
    if (!x.violation && !note(s, hash(to, bytes)))
        return true;
    uint32_t e = add_edge(s, edge, action, c);
    if (x.violation) {
        s->violation = x.violation;
        s->end = e;
    } else {
        layer_add(&s->next, e, bytes);
    }
    return true;
}

static void expand(struct search *s, const uint8_t *from, uint32_t edge)
{
    bool moved = false;
    for (unsigned action = 0; action < 2 * s->m->machine.n_threads; action++) {
        struct choices c = {0};
        do
            moved |= try_action(s, from, edge, action, &c);
        while (!s->violation && next_picks(&c));
        if (s->violation)
            return;
    }
    if (moved)
        return;
    struct state state;
    machine_unpack(&s->m->machine, &state, from);
    s->violation = s->m->stuck(s->m, &state);
    s->end = edge;
}

static void expand_layer(struct search *s)
{
    size_t at = 0;
    while (at < s->now.used && !s->violation) {
        uint32_t head[2];
        memcpy(head, s->now.bytes + at, sizeof head);
        expand(s, s->now.bytes + at + sizeof head, head[0]);
        at += sizeof head + head[1];
    }
}

static void start(struct search *s)
{
    struct state state;
    machine_start(&s->m->machine, &state);
    s->m->init(s->m, &state);
    uint8_t *to = layer_room(&s->now);
    size_t bytes = machine_pack(&s->m->machine, &state, to);
    note(s, hash(to, bytes));
    layer_add(&s->now, NO_EDGE, bytes);
}

/* ---- counterexamples ---- */

static unsigned path_to(const struct search *s, uint32_t end, uint32_t *path)
{
    unsigned n = 0;
    for (uint32_t e = end; e != NO_EDGE; e = s->edges[e].parent, n++)
        if (path)
            path[n] = e;
    return n;
}

static void replay_edge(const struct search *s, const struct edge *e, struct state *state,
                        FILE *out)
{
    struct choices c = {.n = e->n_picks};
    for (unsigned i = 0; i < c.n; i++) {
        c.pick[i] = e->picks >> 4 * i & 15;
        c.of[i] = CHOICE_MAX;
    }
    struct run x = {
        .machine = &s->m->machine, .model = s->m->config, .s = state, .choices = &c, .trace = out};
    act(&x, s->m, e->action);
    machine_canonical(&s->m->machine, state);
}

static char *replay(const struct search *s, unsigned steps)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    uint32_t *path = enlarge(NULL, (steps + 1) * sizeof *path);
    assert(out);
    path_to(s, s->end, path);
    struct state state;
    machine_start(&s->m->machine, &state);
    s->m->init(s->m, &state);
    for (unsigned i = steps; i-- > 0;)
        replay_edge(s, &s->edges[path[i]], &state, out);
    free(path);
    fclose(out);
    return text;
}

/* ---- the search ---- */

void explore(const struct model *m, bool traced, struct finding *f)
{
    struct search s = {.m = m, .end = NO_EDGE};
    start(&s);
    while (s.now.used && !s.violation && s.n_seen < STATES_MAX) {
        expand_layer(&s);
        struct layer done = s.now;
        s.now = s.next;
        s.next = (struct layer){done.bytes, 0, done.capacity};
    }
    if (s.n_seen >= STATES_MAX && !s.violation)
        s.violation = "too many states: make the model smaller";
    *f = (struct finding){.violation = s.violation, .states = s.n_seen};
    f->steps = s.violation ? path_to(&s, s.end, NULL) : 0;
    f->trace = s.violation && traced ? replay(&s, f->steps) : NULL;
    free(s.edges);
    free(s.seen);
    free(s.now.bytes);
    free(s.next.bytes);
}

void finding_free(struct finding *f)
{
    free(f->trace);
    f->trace = NULL;
}
