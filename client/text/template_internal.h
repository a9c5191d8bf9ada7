/* template_internal.h - the chat template interpreter's own types: what its parts share.
 *
 * template_lex.c      source text -> tokens
 * template_parse.c, template_parse_expr.c   tokens -> nodes
 * template_symbols.c, template_walk.c, template_scope.c
 *                     nodes -> nodes whose names are slots of activations
 * template_exec.c, template_eval.c, template_call.c   run statements, expressions, calls
 * template_value.c, template_dict.c, template_number.c, template_iter.c   values
 * template_methods.c, template_filters*.c, template_tests.c, template_format.c, template_json.c,
 * template_markup.c, template_unicode.c   what templates can call
 * template_core.c     memory, limits, errors
 * template_api.c      the public API
 *
 * Invariants
 * 1. One `struct tpl` serves one parse or one rendering, and owns all memory made by it: nothing is
 *    freed singly, and a failure jumps to the entry point (tpl_fail), which frees all. No function
 *    between holds anything that the arena or the output buffer does not own.
 * 2. Nodes and whatever hangs on them are not written after the parse: renderings share them.
 * 3. Texts are UTF-8, and may hold lone surrogates in their three-byte form, as Python's can;
 *    the finished output may not.
 * 4. Every loop over data of unbounded length charges tpl_step; every recursion tpl_enter.
 */
#ifndef LLMD_CLIENT_TEMPLATE_INTERNAL_H
#define LLMD_CLIENT_TEMPLATE_INTERNAL_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "../llm_template.h"

/* ---- values ---- */

enum value_kind {
    V_MISSING, /* no value: an unset slot, an argument that was not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer that does not fit V_INT */
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_RANGE,
    V_VIEW, /* keys(), values(), items() */
    V_ITER, /* generators and the like: usable once */
    V_NAMESPACE,
    V_MACRO,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
    V_BOUND,    /* a method of a value */
    V_FUNCTION, /* a function of the environment */
    V_SELF,
    V_BLOCK
};

struct value {
    enum value_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const struct undefined *undefined;
        const struct big *big;
        const struct str *s;
        const struct list *l; /* lists and tuples */
        const struct dict *d;
        const struct range *range;
        const struct view *view;
        struct iter *iter;
        struct dict *ns; /* namespace: its attributes */
        const struct macro *macro;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
        const struct bound *bound;
        const struct function *function;
        const struct block_ref *block;
    } u;
};

struct str {
    const char *p; /* (bytes); not NUL-terminated */
    uint32_t bytes, chars;
    bool markup;       /* a Markup: safe for HTML, and escapes what joins it */
    struct grow *grow; /* the buffer it ends in, if that can grow in place */
};

struct undefined {
    const char *hint; /* or NULL: made of the name and the object */
    const struct str *name;
    struct value obj, key; /* V_MISSING: a variable; key: the subscript, if it was no string */
};

struct list {
    struct value *v; /* (n) */
    uint32_t n, room;
    bool group; /* a pair of `groupby`, with names for its members */
};

struct entry {
    struct value key, value;
    uint64_t hash;
};
struct dict {
    struct entry *e; /* (n), in order of insertion */
    uint32_t n, room;
    uint32_t *index; /* (index_size): entry + 1, or 0; NULL while small */
    uint32_t index_size;
};

struct range {
    int64_t start, stop, step, length;
};

enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };
struct view {
    enum view_kind kind;
    const struct dict *d;
};

struct cycler {
    const struct list *items;
    uint32_t at;
};
struct joiner {
    struct value separator;
    bool used;
};

struct tpl;
struct args;
struct method {
    const char *name;
    struct value (*call)(struct tpl *t, struct value self, const struct args *a);
};
struct bound {
    struct value self;
    const struct method *method;
};
struct function {
    const char *name, *python_name;
    bool is_class;
    struct value (*call)(struct tpl *t, const struct args *a);
};

/* Arguments of a call. */
struct keyword {
    const struct str *name;
    struct value value;
};
struct args {
    struct value *v;    /* (n) */
    struct keyword *kw; /* (n_kw) */
    uint32_t n, n_kw;
};

/* ---- nodes ---- */

enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_NSREF,
    N_TUPLE,
    N_LIST,
    N_DICT, /* items: key, value, key, value, ... */
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_COND,
    N_AND,
    N_OR,
    N_NOT,
    N_NEG,
    N_POS,
    N_ADD,
    N_SUB,
    N_MUL,
    N_DIV,
    N_FLOORDIV,
    N_MOD,
    N_POW,
    N_CONCAT,
    N_COMPARE,
    /* statements */
    N_OUTPUT, /* items */
    N_FOR,
    N_IF,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_GENERATION,
    N_FILTER_BLOCK,
    N_WITH,
    N_AUTOESCAPE,
    N_BLOCK,
    N_BREAK,
    N_CONTINUE,
    N_EXTERNAL /* include, import, from, extends */
};

enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };
enum name_use { USE_LOAD, USE_STORE, USE_PARAM };

struct nodes {
    struct node **v; /* (n) */
    uint32_t n;
};

struct node_args { /* of calls, filters and tests */
    struct nodes positional;
    struct node *dyn_args, *dyn_kwargs;
    const struct str **kw_names; /* (kw.n) */
    struct nodes kw;
};

/* Where a name lives: `hops` activations out, then a slot. */
struct slot_ref {
    uint16_t hops, slot;
};

/* What a scope does with its slots when it is entered. */
enum load_kind { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED };
struct load {
    uint8_t kind; /* enum load_kind */
    uint16_t slot;
    struct slot_ref from;   /* LOAD_ALIAS */
    const struct str *name; /* LOAD_RESOLVE */
};
struct scope {
    struct load *loads; /* (n) */
    uint32_t n;
};

/* The signature and body of a macro or call block. */
struct macro_def {
    const struct str *name; /* NULL: a call block */
    struct nodes args;      /* names */
    struct nodes defaults;  /* of the last args */
    struct nodes body;
    struct scope scope;
    uint16_t *arg_slots; /* (args.n) */
    uint32_t n_slots;
    int caller_slot, kwargs_slot, varargs_slot; /* -1: not used */
    bool takes_caller, explicit_caller;
};

struct for_def {
    struct node *target, *test_target, *iter, *test;
    struct nodes body, else_body;
    struct scope scope, else_scope, test_scope;
    int loop_slot; /* -1: the body does not use `loop` */
    bool recursive;
    uint32_t n_slots, n_test_slots; /* of the functions that a recursive loop and a test are */
};

struct branch {
    struct node *test; /* NULL: else */
    struct nodes body;
};

struct block_def {
    const struct str *name;
    struct nodes body;
    struct scope scope;
    uint32_t n_slots;
    bool scoped, required;
    int self_slot, super_slot;
    struct named_slot {
        const struct str *name;
        struct slot_ref ref;
    } * locals; /* (n_locals): what a scoped block sees of the scopes around it */
    uint32_t n_locals;
};

struct node {
    uint8_t kind; /* enum node_kind */
    bool data;    /* N_CONST: text of the template itself */
    uint16_t height;
    uint32_t line;
    union {
        struct value constant;
        struct {
            const struct str *name;
            uint8_t use; /* enum name_use */
            bool export; /* a store that the context learns of */
            struct slot_ref ref;
        } name;
        struct {
            const struct str *name, *attr;
            struct slot_ref ref;
        } nsref;
        struct nodes items;
        struct {
            struct node *of;
            const struct str *name;
        } attr;
        struct {
            struct node *of, *key;
        } item;
        struct {
            struct node *start, *stop, *step;
        } slice;
        struct {
            struct node *of;
            const struct node_args *args;
        } call;
        struct {
            struct node *of; /* NULL: the text of a filter block */
            const struct str *name;
            const struct filter *filter; /* NULL: there is none of that name */
            const struct node_args *args;
        } filter;
        struct {
            struct node *of;
            const struct str *name;
            const struct test *test;
            const struct node_args *args;
        } test;
        struct {
            struct node *test, *yes, *no;
        } cond;
        struct {
            struct node *left, *right;
        } pair; /* and, or, arithmetic */
        struct node *operand;
        struct {
            struct node *first;
            uint8_t *ops; /* (rest.n) enum compare_op */
            struct nodes rest;
        } compare;
        struct for_def *loop;
        struct {
            struct branch *v; /* (n) */
            uint32_t n;
        } branches;
        struct {
            struct node *target, *value;
        } set;
        struct {
            struct node *target, *filter;
            struct nodes body;
            struct scope *scope;
        } set_block;
        struct {
            struct macro_def *def;
            struct slot_ref ref;
            bool export;
        } macro;
        struct {
            struct node *call;
            struct macro_def *def;
        } call_block;
        struct {
            struct node *filter;
            struct nodes body;
            struct scope *scope;
        } filter_block;
        struct {
            struct nodes targets, values, body;
            struct scope *scope;
        } with;
        struct {
            struct node *value;
            struct nodes body;
            struct scope *scope;
        } autoescape;
        struct block_def *block;
        const char *external; /* the tag */
    } u;
};

/* ---- running ---- */

struct activation {
    struct activation *outer;
    struct value slot[];
};

struct macro {
    const struct macro_def *def;
    struct activation *outer;
    struct context *context; /* where it was defined */
};

struct block_ref {
    const struct block_def *def;
};

struct loop {
    struct iter *it;
    struct value iterable; /* asked for its length */
    struct value before, current, after, last_changed;
    int64_t index0, length; /* length -1: not known yet */
    uint32_t depth0;
    const struct node *recursive; /* or NULL */
    struct activation *outer;     /* of the recursive function */
};

/* The context: what names that no scope knows resolve to. */
struct context {
    struct dict *vars;          /* exported at top level */
    const struct dict *parent;  /* the input */
    const struct dict *globals; /* of the environment */
};

struct sb { /* a text being made in the arena */
    struct tpl *t;
    char *p;
    size_t n, room;
};

struct tpl {
    jmp_buf failed;
    int code;
    char *why;
    size_t why_size;

    /* where we are, for errors */
    uint32_t line;
    const char *what; /* "filter", "operator", ... */
    const char *what_name;
    size_t what_bytes;

    struct chunk *chunks;
    size_t memory, max_memory;
    uint64_t steps, max_steps;
    uint32_t depth, max_depth;

    /* rendering */
    char *out;
    size_t out_bytes, out_room, max_out;
    struct context *context;
    const struct llm_template *source;
    bool autoescape;
    bool has_now;
    struct tm now; /* the input's */
};

struct llm_template {
    struct tpl *memory;
    struct nodes body;
    struct scope scope;
    uint32_t n_slots;
    int self_slot;
    struct block_def **blocks; /* (n_blocks) */
    uint32_t n_blocks;
};

/* ---- template_core.c ---- */

_Noreturn void tpl_fail(struct tpl *t, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* LLM_TEMPLATE_EFAILED */
_Noreturn void tpl_error(struct tpl *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void tpl_limit(struct tpl *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void *tpl_alloc(struct tpl *t, size_t bytes);
void *tpl_zalloc(struct tpl *t, size_t bytes);
/* Makes room for `n + 1` elements; the array may move. */
void *tpl_room(struct tpl *t, void *array, uint32_t n, uint32_t *room, size_t element);
void tpl_free_all(struct tpl *t);

_Noreturn void tpl_too_many_steps(struct tpl *t);
static inline void tpl_step(struct tpl *t, uint64_t n)
{
    if (__builtin_expect(n > t->max_steps - t->steps, 0))
        tpl_too_many_steps(t);
    t->steps += n;
}
_Noreturn void tpl_too_deep(struct tpl *t);
static inline void tpl_enter(struct tpl *t)
{
    if (++t->depth > t->max_depth)
        tpl_too_deep(t);
}
static inline void tpl_leave(struct tpl *t)
{
    t->depth--;
}

static inline void tpl_at(struct tpl *t, uint32_t line, const char *what, const struct str *name)
{
    t->line = line;
    t->what = what;
    t->what_name = name ? name->p : NULL;
    t->what_bytes = name ? name->bytes : 0;
}

void tpl_sb_init(struct sb *b, struct tpl *t);
void tpl_sb_put(struct sb *b, const char *p, size_t bytes);
void tpl_sb_char(struct sb *b, char c);
void tpl_sb_fill(struct sb *b, const char *p, size_t bytes, uint64_t times); /* p repeated */
void tpl_sb_text(struct sb *b, const char *text);                            /* NUL-terminated */
void tpl_sb_cp(struct sb *b, uint32_t code_point);
void tpl_sb_str(struct sb *b, const struct str *s);
void tpl_sb_format(struct sb *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
const struct str *tpl_sb_done(struct sb *b);
struct value tpl_sb_value(struct sb *b); /* a V_STR, not Markup */

void tpl_out(struct tpl *t, const char *p, size_t bytes);
/* What was written since the mark, taken back out of the output. */
const struct str *tpl_out_take(struct tpl *t, size_t mark);

/* ---- template_unicode.c ---- */

enum uni_flag {
    UNI_ALPHA = 1,
    UNI_DECIMAL = 2,
    UNI_DIGIT = 4,
    UNI_NUMERIC = 8,
    UNI_LOWER = 16,
    UNI_UPPER = 32,
    UNI_PRINTABLE = 64,
    UNI_ID_START = 128,
    UNI_ID_CONTINUE = 256,
    UNI_CASED = 512,
    UNI_IGNORABLE = 1024 /* case-ignorable */
};
#define UNI_ALNUM (UNI_ALPHA | UNI_DECIMAL | UNI_DIGIT | UNI_NUMERIC)
unsigned tpl_uni_flags(uint32_t cp);
bool tpl_uni_is_space(uint32_t cp);
bool tpl_uni_is_title(uint32_t cp);
int tpl_uni_decimal(uint32_t cp); /* 0 to 9, or -1 */
/* Up to three code points; returns how many. */
unsigned tpl_uni_upper(uint32_t cp, uint32_t out[3]);
unsigned tpl_uni_lower(uint32_t cp, uint32_t out[3]);
unsigned tpl_uni_title(uint32_t cp, uint32_t out[3]);
unsigned tpl_uni_fold(uint32_t cp, uint32_t out[3]);

/* The code point at p, which is well-formed but for surrogates; *bytes gets its length. */
static inline uint32_t uni_at(const char *p, unsigned *bytes)
{
    const unsigned char *c = (const unsigned char *)p;
    if (c[0] < 0x80)
        return *bytes = 1, c[0];
    if (c[0] < 0xe0)
        return *bytes = 2, (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
    if (c[0] < 0xf0)
        return *bytes = 3, (c[0] & 0xfu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
    return *bytes = 4,
           (c[0] & 7u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 | (c[3] & 0x3fu);
}
/* The code point that ends at end > begin. */
static inline uint32_t uni_before(const char *begin, const char *end, unsigned *bytes)
{
    const char *p = end - 1;
    while (p > begin && ((unsigned char)*p & 0xc0) == 0x80)
        p--;
    return uni_at(p, bytes);
}
unsigned tpl_uni_put(char out[4], uint32_t cp);

/* ---- template_value.c ---- */

#define NONE      ((struct value){V_NONE, {0}})
#define MISSING   ((struct value){V_MISSING, {0}})
#define BOOL(x)   ((struct value){V_BOOL, {.b = (x)}})
#define INT(x)    ((struct value){V_INT, {.i = (x)}})
#define FLOAT(x)  ((struct value){V_FLOAT, {.f = (x)}})
#define STR(x)    ((struct value){V_STR, {.s = (x)}})
#define LIST(x)   ((struct value){V_LIST, {.l = (x)}})
#define TUPLE(x)  ((struct value){V_TUPLE, {.l = (x)}})
#define DICT(x)   ((struct value){V_DICT, {.d = (x)}})
#define ITER(x)   ((struct value){V_ITER, {.iter = (x)}})
#define GIVEN(v)  ((v).kind != V_MISSING)
#define ABSENT(v) ((v).kind == V_MISSING || (v).kind == V_NONE)

const struct str *tpl_str_new(struct tpl *t, const char *p, size_t bytes); /* copies */
const struct str *tpl_str_ref(struct tpl *t, const char *p, size_t bytes); /* refers to p */
const struct str *tpl_str_text(struct tpl *t, const char *text);
struct value tpl_str_markup(struct tpl *t, const struct str *s, bool markup);
bool tpl_str_eq(const struct str *a, const struct str *b);
bool tpl_str_is(const struct str *s, const char *text);
int tpl_str_cmp(const struct str *a, const struct str *b);
size_t tpl_str_offset(struct tpl *t, const struct str *s, uint32_t chars); /* byte of a character */
const struct str *tpl_str_sub(struct tpl *t, const struct str *s, size_t from,
                              size_t to); /* bytes */
const struct str *tpl_str_reverse(struct tpl *t, const struct str *s);
const char *tpl_mem_find(const char *hay, size_t hay_bytes, const char *needle, size_t bytes);
const struct str *tpl_str_concat(struct tpl *t, const struct str *a, const struct str *b);

struct list *tpl_list_new(struct tpl *t, uint32_t room);
void tpl_list_add(struct tpl *t, struct list *l, struct value v);
struct value tpl_tuple_of(struct tpl *t, uint32_t n, const struct value *v);

struct value tpl_undefined_hint(struct tpl *t, const char *hint);
struct value tpl_undefined_name(struct tpl *t, const struct str *name);
struct value tpl_undefined_of(struct tpl *t, struct value obj, struct value key);
_Noreturn void tpl_undefined_fail(struct tpl *t, struct value v);

const char *tpl_type_name(struct value v);
bool tpl_value_true(struct tpl *t, struct value v);
bool tpl_value_eq(struct tpl *t, struct value a, struct value b);
bool tpl_value_same(struct value a, struct value b); /* `is` */
bool tpl_value_compare(struct tpl *t, enum compare_op op, struct value a, struct value b);
bool tpl_value_in(struct tpl *t, struct value needle, struct value hay);
uint64_t tpl_value_hash(struct tpl *t, struct value v);
bool tpl_value_number(struct value v);
int64_t tpl_value_length(struct tpl *t, struct value v); /* len(): fails if it has none */
bool tpl_value_has_length(struct value v);

void tpl_value_str_to(struct sb *b, struct value v);
void tpl_value_repr_to(struct sb *b, struct value v);
void tpl_str_repr_to(struct sb *b, const struct str *s);
const struct str *tpl_value_str(struct tpl *t, struct value v);  /* str(v), never Markup */
const struct str *tpl_value_soft(struct tpl *t, struct value v); /* keeps a Markup */
const struct str *tpl_value_repr(struct tpl *t, struct value v);

/* Of arguments: an integer as Python's __index__ takes it, clamped to int64. */
int64_t tpl_value_index(struct tpl *t, struct value v);
const struct str *tpl_value_need_str(struct tpl *t, struct value v, const char *what);

struct value tpl_value_getattr(struct tpl *t, struct value of, const struct str *name);
struct value tpl_value_getitem(struct tpl *t, struct value of, struct value key);
/* Only what Python's getattr would find: V_MISSING if nothing. */
struct value tpl_value_attr(struct tpl *t, struct value of, const struct str *name);
struct value tpl_value_slice(struct tpl *t, struct value of, struct value start, struct value stop,
                             struct value step);

/* ---- template_dict.c ---- */

struct dict *tpl_dict_new(struct tpl *t);
void tpl_dict_set(struct tpl *t, struct dict *d, struct value key, struct value v);
const struct value *tpl_dict_get(struct tpl *t, const struct dict *d, struct value key);
const struct value *tpl_dict_get_str(const struct dict *d, const char *name, size_t bytes);
struct dict *tpl_dict_copy(struct tpl *t, const struct dict *d);
/* dict(): of a mapping or pairs, and keywords. */
struct dict *tpl_dict_make(struct tpl *t, const struct args *a, const char *what);

/* ---- template_number.c ---- */

struct value tpl_num_arith(struct tpl *t, enum node_kind op, struct value a, struct value b);
struct value tpl_num_neg(struct tpl *t, struct value v);
int tpl_num_compare(struct value a, struct value b); /* -1, 0, 1, or 2: unordered */
double tpl_num_double(struct tpl *t, struct value v);
struct value tpl_num_from_double(struct tpl *t, double f); /* truncated towards zero */
struct value tpl_num_round(struct tpl *t, struct value v, int64_t digits); /* round(v, digits) */
bool tpl_num_is_zero(struct value v);
/* Integer text: optional sign, digits with single underscores, a prefix where base is 0 or fits it.
 * false if it is none. */
bool tpl_num_parse_int(struct tpl *t, const char *p, size_t bytes, int base, struct value *out);
bool tpl_num_parse_float(struct tpl *t, const char *p, size_t bytes, double *out);
/* Digits of the magnitude of an integer. */
const struct str *tpl_num_digits(struct tpl *t, struct value v, unsigned base, bool upper);
bool tpl_num_is_negative(struct value v);
uint64_t tpl_num_hash(struct value v);
unsigned tpl_num_bit_length(struct value v);
#define FLOAT_TEXT 40
void tpl_num_float_repr(char out[FLOAT_TEXT], double f);
void tpl_num_repr_to(struct sb *b, struct value v);
struct value tpl_num_as_int(struct value v); /* True and False as 1 and 0 */

/* ---- template_iter.c ---- */

struct iter {
    bool (*next)(struct tpl *t, struct iter *it, struct value *out);
    const char *type;
    struct value of;
    struct iter *source;
    int64_t at, end, step;
    size_t byte;
    bool started, done;
    void *state;
};
struct iter *tpl_iter_of(struct tpl *t, struct value v); /* iter(): fails if it is not iterable */
bool tpl_iter_next(struct tpl *t, struct iter *it, struct value *out);
bool tpl_value_iterable(struct value v);
bool tpl_value_reversible(struct value v);
struct iter *tpl_iter_reversed(struct tpl *t, struct value v);
/* A generator that `next` makes; it may keep what it wants in `state`. */
struct value tpl_iter_generator(struct tpl *t, const char *type,
                                bool (*next)(struct tpl *, struct iter *, struct value *),
                                struct value of, void *state);
struct list *tpl_list_of(struct tpl *t, struct value v); /* list() */

/* ---- template_lex.c ---- */

enum token_kind {
    T_EOF,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INTEGER,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_MUL,
    T_DIV,
    T_FLOORDIV,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON
};
struct token {
    enum token_kind kind;
    uint32_t line;
    struct value value; /* names, strings, numbers, data */
};
struct tokens {
    struct token *v; /* (n), the last one T_EOF */
    uint32_t n, room;
};
struct tokens tpl_lex(struct tpl *t, const char *source, size_t bytes);
const char *tpl_token_text(struct tpl *t, const struct token *token);

/* ---- template_parse.c, template_parse_expr.c ---- */

struct parser {
    struct tpl *t;
    struct token *at; /* the current token */
    uint32_t depth, statement_depth;
    uint32_t loop_stores; /* assignments to `loop` so far */
    uint32_t loops;       /* loops around that `break` may end */
    const char *open_tag;
    struct nodes blocks;
    uint32_t blocks_room;
};
struct nodes tpl_parse_template(struct parser *p);
struct node *tpl_node_new(struct parser *p, enum node_kind kind, uint32_t line);
void tpl_node_list_add(struct parser *p, struct nodes *list, uint32_t *room, struct node *n);
void tpl_node_above(struct parser *p, struct node *n, const struct node *child);
struct token *tpl_parse_next(struct parser *p);
bool tpl_token_is_name(const struct token *token, const char *name);
bool tpl_parse_skip(struct parser *p, enum token_kind kind);
bool tpl_parse_skip_name(struct parser *p, const char *name);
struct token *tpl_parse_expect(struct parser *p, enum token_kind kind);
_Noreturn void tpl_parse_fail(struct parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct node *tpl_parse_expression(struct parser *p, bool with_condition);
struct node *tpl_parse_tuple(struct parser *p, bool with_condition, const char *end_name,
                             bool parentheses);
struct node *tpl_parse_target(struct parser *p, const char *end_name, bool with_namespace);
struct node *tpl_parse_target_name(struct parser *p);
struct node *tpl_parse_filters(struct parser *p, struct node *of, bool inline_start);
void tpl_parse_signature(struct parser *p, struct macro_def *def);

/* ---- template_scope.c ---- */

void tpl_scope_resolve(struct tpl *t, struct llm_template *out, struct nodes blocks);

/* ---- template_eval.c, template_exec.c, template_call.c ---- */

struct value tpl_eval(struct tpl *t, struct activation *a, const struct node *n);
struct args tpl_eval_args(struct tpl *t, struct activation *a, const struct node_args *args);
/* The value of a filter block or set block with a filter: its text goes in as `input`. */
struct value tpl_eval_filter(struct tpl *t, struct activation *a, const struct node *n,
                             struct value input);
struct value tpl_eval_call_with(struct tpl *t, struct activation *a, const struct node *n,
                                const struct value *caller);
struct value tpl_op_add(struct tpl *t, struct value a, struct value b);
struct value tpl_op_mod(struct tpl *t, struct value a, struct value b);
struct value tpl_op_binary(struct tpl *t, enum node_kind op, struct value a, struct value b);

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };
void tpl_exec_template(struct tpl *t, const struct llm_template *source);
void tpl_assign(struct tpl *t, struct activation *a, const struct node *target, struct value v);
void tpl_scope_enter(struct tpl *t, struct activation *a, const struct scope *s);
struct activation *tpl_activation_new(struct tpl *t, struct activation *outer, uint32_t n_slots);
struct value tpl_call_macro(struct tpl *t, const struct macro *m, const struct args *a);
struct value tpl_call_block(struct tpl *t, const struct block_def *def, struct context *context);
struct value tpl_call_loop(struct tpl *t, struct loop *loop, const struct args *a);
struct value tpl_loop_attr(struct tpl *t, struct loop *loop, const struct str *name);
struct value tpl_context_get(struct tpl *t, const struct context *c, const struct str *name);

struct value tpl_call_value(struct tpl *t, struct value f, const struct args *a);
bool tpl_value_callable(struct value v);
const struct dict *tpl_call_globals(struct tpl *t);
bool tpl_read_time(const struct str *s, struct tm *tm);

/* Binds arguments to parameter names: out[i] is V_MISSING where none came. `names` end in NULL, the
 * first `required` must be given; `positional`: no keywords. */
struct signature {
    const char *names[8];
    uint8_t required;
    bool positional;
};
void tpl_args_bind(struct tpl *t, const char *who, const struct signature *s, const struct args *a,
                   struct value *out);

/* ---- template_methods.c, template_methods_str.c ---- */

const struct method *tpl_method_find(struct value self, const struct str *name);
extern const struct method tpl_str_methods[], tpl_markup_methods[];

/* ---- template_case.c, template_split.c ---- */

const struct str *tpl_str_upper(struct tpl *t, const struct str *s);
const struct str *tpl_str_lower(struct tpl *t, const struct str *s);
const struct str *tpl_str_title(struct tpl *t, const struct str *s);
const struct str *tpl_str_capitalize(struct tpl *t, const struct str *s);
const struct str *tpl_str_swapcase(struct tpl *t, const struct str *s);
const struct str *tpl_str_casefold(struct tpl *t, const struct str *s);
bool tpl_str_all(struct tpl *t, const struct str *s, unsigned flags);
bool tpl_str_is_lower(struct tpl *t, const struct str *s);
bool tpl_str_is_upper(struct tpl *t, const struct str *s);
bool tpl_str_is_title(struct tpl *t, const struct str *s);
bool tpl_str_is_space(struct tpl *t, const struct str *s);
bool tpl_str_is_identifier(struct tpl *t, const struct str *s);

struct value tpl_str_strip(struct tpl *t, const struct str *s, struct value chars, bool left,
                           bool right);
struct value tpl_str_split(struct tpl *t, const struct str *s, struct value by, int64_t max,
                           bool right);
const char *tpl_str_find_last(struct tpl *t, const char *p, size_t bytes, const struct str *needle);
struct value tpl_str_words(struct tpl *t, const struct str *s, int64_t max);
struct value tpl_str_lines(struct tpl *t, const struct str *s, bool keep_ends);
struct value tpl_str_partition(struct tpl *t, const struct str *s, const struct str *by,
                               bool right);
struct value tpl_str_replace(struct tpl *t, const struct str *s, const struct str *old,
                             const struct str *by, int64_t count);
/* Pads to a width in characters: align '<', '>', '^' (as format() centres) or 'c' (as center()). */
void tpl_pad_to(struct sb *b, const struct str *s, int64_t width, const struct str *fill,
                char align);

/* ---- template_filters*.c, template_tests.c ---- */

struct filter {
    const char *name;
    struct signature signature; /* of the arguments after the value */
    struct value (*call)(struct tpl *t, struct value in, const struct value *a);
    struct value (*call_raw)(struct tpl *t, struct value in, const struct args *a);
};
extern const struct filter tpl_filters_value[], tpl_filters_text[], tpl_filters_sequence[],
    tpl_filters_lazy[], tpl_filters_markup[];
const struct filter *tpl_filter_find(const struct str *name);
struct value tpl_filter_apply(struct tpl *t, const struct filter *f, struct value in,
                              const struct args *a);

struct test {
    const char *name;
    uint8_t n_args;
    bool (*call)(struct tpl *t, struct value v, struct value arg);
};
const struct test *tpl_test_find(const struct str *name);
bool tpl_test_apply(struct tpl *t, const struct test *f, struct value v, const struct args *a);
/* list.sort(): stable, by keys (n), which are permuted along. */
void tpl_sort_values(struct tpl *t, struct value *v, struct value *keys, uint32_t n, bool reverse);

/* ---- template_format.c, template_format_spec.c ---- */

struct value tpl_format_percent(struct tpl *t, const struct str *format, struct value args);
/* `mapping`: of format_map(), else NULL. */
struct value tpl_format_braces(struct tpl *t, const struct str *format, const struct args *a,
                               const struct value *mapping);
/* format(v, spec) */
void tpl_format_value(struct sb *b, struct value v, const struct str *spec);
/* A float as %e %f %g of Python write it: lower or upper case letter in `type`. */
void tpl_format_float(struct sb *b, double f, char type, int precision, bool alternate);

/* ---- template_json.c, template_json_write.c ---- */

struct value tpl_json_parse(struct tpl *t, const char *text, size_t bytes);
struct value tpl_json_dumps(struct tpl *t, struct value v, const struct value *a);

/* ---- template_markup.c ---- */

struct value tpl_pretty_print(struct tpl *t, struct value in,
                              const struct value *v);                           /* _pretty.c */
struct value tpl_urlize(struct tpl *t, struct value in, const struct value *v); /* _urlize.c */
void tpl_escape_to(struct sb *b, const struct str *s);
const struct str *tpl_escape(struct tpl *t, struct value v); /* a Markup */

#endif
