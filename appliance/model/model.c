/* model.c - opens a model file: puts the parts together (parts.h), hands its tensors out, digests
 * it.
 *
 * Invariants
 *   1. What model_open returns is complete: tokenizer, shapes, tensors, frequencies.
 *   2. Pointers in m.net and m.vocab go into the `opened` that m is the start of, or into its
 * file's header in memory; they live until model_close.
 *   3. The digest does not depend on the order or the number of fetches: it is taken over the
 * header and the digests of the tensors, in the order of their bytes in the file.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

_Static_assert(offsetof(struct opened, m) == 0, "a struct model * is a struct opened *");

static struct opened *opened_of(const struct model *m)
{
    return (struct opened *)m;
}

/* ---- names ---- */

/* Bytes of the printable UTF-8 character at the start of s, 0 if there is none. */
static uint32_t printable(const unsigned char *s, uint32_t n)
{
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    uint32_t bytes = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || bytes > n)
        return 0;
    for (uint32_t i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xc2 && s[1] < 0xa0) || (s[0] == 0xe0 && s[1] < 0xa0) ||
        (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0; /* control, overlong, surrogate, beyond Unicode */
    return bytes;
}

/* As much of the text as fits; what is not printable becomes '?'. */
static void copy_printable(char *out, size_t size, struct model_text t)
{
    size_t at = 0;
    for (uint32_t i = 0; i < t.bytes;) {
        uint32_t n = printable((const unsigned char *)t.at + i, t.bytes - i);
        uint32_t take = n ? n : 1;
        if (at + take >= size)
            break;
        memcpy(out + at, n ? t.at + i : "?", take);
        at += take;
        i += take;
    }
    out[at] = 0;
}

/* The file's name without folder and ending. */
static struct model_text stem(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    size_t bytes = dot && dot > name ? (size_t)(dot - name) : strlen(name);
    return (struct model_text){name, (uint32_t)bytes};
}

static int read_name(struct opened *o, struct fail *f)
{
    struct model_text name;
    int rc = gguf_text(o->file, "general.name", GGUF_OPTIONAL, &name, f);
    if (rc < 0)
        return rc;
    if (rc == 0 || name.bytes == 0)
        name = stem(o->m.path);
    copy_printable(o->m.name, sizeof o->m.name, name);
    return 0;
}

/* ---- what kind of file ---- */

static bool text_is(struct model_text t, const char *s)
{
    return t.bytes == strlen(s) && memcmp(t.at, s, t.bytes) == 0;
}

static int read_architecture(struct opened *o, enum gguf_need need, struct fail *f)
{
    struct model_text t;
    int rc = gguf_text(o->file, "general.architecture", need, &t, f);
    if (rc > 0)
        copy_printable(o->m.architecture, sizeof o->m.architecture, t);
    return rc < 0 ? rc : 0;
}

static int check_architecture(struct opened *o, struct fail *f)
{
    struct model_text t;
    char shown[64];
    int rc = gguf_text(o->file, "general.architecture", GGUF_NEEDED, &t, f);
    if (rc < 0)
        return rc;
    if (!text_is(t, "llama"))
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "key 'general.architecture' is %s; this program computes 'llama' only",
                           gguf_quote(shown, sizeof shown, t.at, t.bytes));
    return 0;
}

/* Adapters and parts of split models are GGUF files too. */
static int check_whole_model(struct opened *o, struct fail *f)
{
    struct model_text type;
    char shown[64];
    uint32_t parts = 1;
    int rc = gguf_text(o->file, "general.type", GGUF_OPTIONAL, &type, f);
    if (rc > 0 && !text_is(type, "model"))
        rc = gguf_refuse(o->file, f, -ENOTSUP,
                         "key 'general.type' is %s: this is no model; give the model's own file",
                         gguf_quote(shown, sizeof shown, type.at, type.bytes));
    if (rc >= 0)
        rc = gguf_u32(o->file, "split.count", 0, UINT32_MAX, GGUF_OPTIONAL, &parts, f);
    if (rc < 0)
        return rc;
    if (o->file->n_tensors == 0)
        return gguf_refuse(o->file, f, -EINVAL,
                           "holds no tensors, only a vocabulary; give the model's own file");
    if (parts > 1)
        return gguf_refuse(o->file, f, -ENOTSUP,
                           "is one of %" PRIu32
                           " parts of a split model (key 'split.count'); merge "
                           "them into one file first",
                           parts);
    return 0;
}

static void sum_weights(struct opened *o)
{
    uint64_t by_type[64] = {0}, most = 0;
    for (uint32_t i = 0; i < o->file->n_tensors; i++) {
        const struct gpu_tensor *t = &o->file->tensors[i];
        assert(t->type < 64);
        o->m.weights_bytes += t->bytes; /* inside the file and disjoint: no overflow */
        by_type[t->type] += t->bytes;
        if (by_type[t->type] > most) {
            most = by_type[t->type];
            snprintf(o->m.quantization, sizeof o->m.quantization, "%s",
                     gpu_type_info(t->type)->name);
        }
    }
}

/* ---- opening ---- */

static int open_parts(struct opened *o, enum gguf_what what, struct fail *f)
{
    int rc = gguf_open(&o->file, o->m.path, what, f);
    if (rc < 0)
        return rc;
    o->m.file_bytes = o->file->file_bytes;
    if ((rc = read_name(o, f)) < 0)
        return rc;
    if (what == GGUF_KEYS_ONLY)
        return read_architecture(o, GGUF_OPTIONAL, f);
    if ((rc = check_architecture(o, f)) < 0 || (rc = check_whole_model(o, f)) < 0 ||
        (rc = read_architecture(o, GGUF_NEEDED, f)) < 0)
        return rc;
    o->tensors = calloc(o->file->n_tensors ? o->file->n_tensors : 1, sizeof o->tensors[0]);
    if (!o->tensors)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory for its tensors");
    sum_weights(o);
    return fetch_open(&o->fetch, o->file, FETCH_DEPTH, f);
}

static int open_as(struct model **out, const char *path, enum gguf_what what, struct fail *f)
{
    *out = NULL;
    struct opened *o = calloc(1, sizeof *o);
    if (!o)
        return fail(f, -ENOMEM, "no memory to open %.200s", path);
    int rc;
    if (strlen(path) >= sizeof o->m.path) {
        rc = fail(f, -ENAMETOOLONG, "the model's path is longer than %zu bytes: %.100s...",
                  sizeof o->m.path - 1, path);
    } else {
        memcpy(o->m.path, path, strlen(path) + 1);
        rc = open_parts(o, what, f);
    }
    if (rc == 0)
        rc = vocab_read(o, f);
    if (rc == 0)
        o->m.net.vocab = o->m.vocab.n_tokens;
    if (rc == 0 && what == GGUF_ALL)
        rc = llama_read(o, f);
    if (rc < 0) {
        model_close(&o->m);
        return rc;
    }
    *out = &o->m;
    return 0;
}

int model_open(struct model **out, const char *path, struct fail *f)
{
    return open_as(out, path, GGUF_ALL, f);
}

int model_open_vocab(struct model **out, const char *path, struct fail *f)
{
    return open_as(out, path, GGUF_KEYS_ONLY, f);
}

void model_close(struct model *m)
{
    if (!m)
        return;
    struct opened *o = opened_of(m);
    fetch_close(o->fetch);
    gguf_close(o->file);
    free(o->tensors);
    free(o->rope_freq);
    free(o->texts);
    free(o->merges);
    free(o->types);
    free(o->scores);
    free(o->eog);
    free(m->net.layers);
    free(o);
}

/* ---- weights ---- */

struct arrival {
    struct opened *o;
    XXH3_state_t *state;
    uint64_t bytes; /* of this tensor so far; counted only at its first fetch */
    bool first;
};

static void arrived(void *context, const void *at, uint64_t bytes)
{
    struct arrival *a = context;
    XXH3_128bits_update(a->state, at, bytes);
    a->bytes += bytes;
    if (a->first && a->o->progress)
        a->o->progress(a->o->progress_context, a->o->fetched_bytes + a->bytes,
                       a->o->m.weights_bytes);
}

/* Notes the digest; a tensor that is fetched again must be the same. */
static int note_digest(struct opened *o, const struct gpu_tensor *t, XXH128_hash_t digest,
                       struct fail *f)
{
    struct opened_tensor *state = &o->tensors[t - o->file->tensors];
    if (state->fetched && !XXH128_isEqual(state->digest, digest))
        return gguf_refuse(
            o->file, f, -EIO,
            "tensor '%s' changed while the model was loaded; start again, and replace "
            "a model file by renaming, not by writing into it",
            t->name);
    if (!state->fetched)
        o->fetched_bytes += t->bytes;
    state->fetched = true;
    state->digest = digest;
    return 0;
}

int model_fetch(struct opened *o, const struct gpu_tensor *t, void *dst, struct fail *f)
{
    assert(t >= o->file->tensors && t < o->file->tensors + o->file->n_tensors);
    struct arrival a = {o, XXH3_createState(), 0, !o->tensors[t - o->file->tensors].fetched};
    const struct fetch_job job = {.what = t->name,
                                  .offset = t->offset,
                                  .bytes = t->bytes,
                                  .dst = dst,
                                  .arrived = arrived,
                                  .context = &a};
    if (!a.state)
        return gguf_refuse(o->file, f, -ENOMEM, "no memory to read tensor '%s'", t->name);
    XXH3_128bits_reset(a.state);
    int rc = fetch_read(o->fetch, &job, f);
    if (rc == 0)
        rc = note_digest(o, t, XXH3_128bits_digest(a.state), f);
    XXH3_freeState(a.state);
    return rc;
}

static int fetch_tensor(void *context, const struct gpu_tensor *t, void *dst, struct fail *f)
{
    return model_fetch(context, t, dst, f);
}

struct gpu_source model_source(struct model *m)
{
    return (struct gpu_source){fetch_tensor, opened_of(m)};
}

void model_on_progress(struct model *m,
                       void (*progress)(void *context, uint64_t done, uint64_t total),
                       void *context)
{
    struct opened *o = opened_of(m);
    o->progress = progress;
    o->progress_context = context;
}

/* ---- digests ---- */

static void put_digest(XXH3_state_t *s, XXH128_hash_t digest)
{
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, digest);
    XXH3_128bits_update(s, &bytes, sizeof bytes);
}

/* Ends the state's life. */
static void finish_digest(XXH3_state_t *s, uint8_t out[16])
{
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(s));
    memcpy(out, &bytes, 16);
    XXH3_freeState(s);
}

static XXH3_state_t *start_digest(void)
{
    XXH3_state_t *s = XXH3_createState();
    assert(s); /* 576 bytes, while the engine starts */
    XXH3_128bits_reset(s);
    return s;
}

void model_digest(const struct model *m, uint8_t out[16])
{
    const struct opened *o = opened_of(m);
    XXH3_state_t *s = start_digest();
    put_digest(s, XXH3_128bits(o->file->meta, o->file->meta_bytes));
    for (uint32_t i = 0; i < o->file->n_tensors; i++) {
        const struct opened_tensor *t = &o->tensors[o->file->by_offset[i]];
        assert(t->fetched || !t->used);
        if (t->used)
            put_digest(s, t->digest);
    }
    finish_digest(s, out);
}

static void put_texts(XXH3_state_t *s, const struct model_text *texts, uint32_t n)
{
    XXH3_128bits_update(s, &n, sizeof n);
    for (uint32_t i = 0; i < n; i++) {
        XXH3_128bits_update(s, &texts[i].bytes, sizeof texts[i].bytes);
        XXH3_128bits_update(s, texts[i].at, texts[i].bytes);
    }
}

void model_vocab_digest(const struct model *m, uint8_t out[16])
{
    const struct model_vocab *v = &m->vocab;
    const int32_t numbers[] = {(int32_t)v->tokenizer,
                               v->bos,
                               v->eos,
                               v->eot,
                               v->eom,
                               v->unk,
                               v->pad,
                               v->add_bos,
                               v->add_eos,
                               v->add_space_prefix,
                               v->scores != NULL};
    const struct model_text rest[] = {{v->pre, (uint32_t)strlen(v->pre)}, v->chat_template};
    XXH3_state_t *s = start_digest();
    XXH3_128bits_update(s, numbers, sizeof numbers);
    put_texts(s, v->texts, v->n_tokens);
    put_texts(s, v->merges, v->n_merges);
    put_texts(s, rest, 2);
    XXH3_128bits_update(s, v->types, v->n_tokens);
    if (v->scores)
        XXH3_128bits_update(s, v->scores, v->n_tokens * sizeof(float));
    XXH3_128bits_update(s, v->eog, v->n_eog * sizeof(int32_t));
    finish_digest(s, out);
}
