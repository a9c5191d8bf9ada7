/* template_big.h - integers beyond 64 bits, for template_number.c. */
#ifndef LLMD_CLIENT_TEMPLATE_BIG_H
#define LLMD_CLIENT_TEMPLATE_BIG_H

#include "template_internal.h"

#define BIG_BITS 65536

struct big {
    bool negative;
    uint32_t n;
    uint32_t d[]; /* (n), lowest first, the highest not zero */
};

const struct big *tpl_big_of(struct tpl *t, struct value v); /* of a V_BOOL, V_INT or V_BIG */
struct value tpl_big_value(struct big *b);                   /* V_INT where it fits */
int tpl_big_cmp(const struct big *a, const struct big *b);
int tpl_big_cmp_magnitude(const struct big *a, const struct big *b);
struct big *tpl_big_add(struct tpl *t, const struct big *a, const struct big *b, bool subtract);
struct big *tpl_big_mul(struct tpl *t, const struct big *a, const struct big *b);
struct big *tpl_big_mul_small(struct tpl *t, const struct big *a, uint32_t factor, uint32_t plus);
uint32_t tpl_big_div_small(struct big *a, uint32_t by);
struct big *tpl_big_shift_left(struct tpl *t, const struct big *a, uint32_t bits);
void tpl_big_divmod(struct tpl *t, const struct big *a, const struct big *b, struct big **quotient,
                    struct big **modulus);
unsigned tpl_big_bits(const struct big *b);
double tpl_big_double(const struct big *b, bool sticky);
double tpl_big_true_div(struct tpl *t, const struct big *a, const struct big *b);

#endif
