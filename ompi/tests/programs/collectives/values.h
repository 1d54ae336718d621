/* What elements of reductions are: how inputs are made, and what each operation gives, in C.
 *
 * Inputs are such that each order of evaluation gives the same bits: sums stay in range and are exact, products have few
 * factors, and no product of complex numbers has a component of zero, whose sign could depend on the order. */
#ifndef VALUES_H
#define VALUES_H

#include "memory.h"

#include <complex.h>

enum op { SUM, PROD, MIN, MAX, LAND, LOR, LXOR, BAND, BOR, BXOR, MINLOC, MAXLOC, ADD, MULTIPLY, OPS };

/* The most processes for which sums and products stay in range. */
enum { MOST = 6 };

struct kind {
    size_t size;
    uint64_t gaps; /* bit i: byte i of an element is a gap */
    void (*make)(enum op op, uint64_t hash, void *to);
    void (*fold)(enum op op, void *left, const void *right); /* left = left op right */
    bool (*same)(const void *one, const void *other);
};

#define KIND(NAME, T, GAPS)                                                                                            \
    static const struct kind NAME = {sizeof(T), GAPS, make_##NAME, fold_##NAME, same_##NAME};

#define SAME(NAME, T, EQUAL)                                                                                           \
    static bool same_##NAME(const void *one, const void *other)                                                        \
    {                                                                                                                  \
        T a, b;                                                                                                        \
        memcpy(&a, one, sizeof a), memcpy(&b, other, sizeof b);                                                        \
        return EQUAL;                                                                                                  \
    }

#define FOLD(NAME, T, ...)                                                                                             \
    static void fold_##NAME(enum op op, void *left, const void *right)                                                 \
    {                                                                                                                  \
        T a, b;                                                                                                        \
        memcpy(&a, left, sizeof a), memcpy(&b, right, sizeof b);                                                       \
        switch (op) {                                                                                                  \
            __VA_ARGS__                                                                                                \
        default: CHECK(!"an operation of this kind");                                                                  \
        }                                                                                                              \
        memcpy(left, &a, sizeof a);                                                                                    \
    }

#define ARITHMETIC(T)                                                                                                  \
    case SUM: a = (T) (a + b); break;                                                                                  \
    case PROD: a = (T) (a * b); break;
#define ORDER                                                                                                          \
    case MIN: a = b < a ? b : a; break;                                                                                \
    case MAX: a = b > a ? b : a; break;
#define LOGIC(T)                                                                                                       \
    case LAND: a = (T) (a && b); break;                                                                                \
    case LOR: a = (T) (a || b); break;                                                                                 \
    case LXOR: a = (T) (!a != !b); break;
#define BITS(T)                                                                                                        \
    case BAND: a = (T) (a & b); break;                                                                                 \
    case BOR: a = (T) (a | b); break;                                                                                  \
    case BXOR: a = (T) (a ^ b); break;

/* Factors of products grow with the width. Truth values have one bit anywhere. */
#define INTEGER(NAME, T, IS_SIGNED)                                                                                    \
    static void make_##NAME(enum op op, uint64_t hash, void *to)                                                       \
    {                                                                                                                  \
        const int bits = 8 * (int) sizeof(T);                                                                          \
        T value = (T) hash;                                                                                            \
        if (SUM == op) {                                                                                               \
            value = (T) ((hash >> (64 - (bits - 4))) - (IS_SIGNED ? (uint64_t) 1 << (bits - 5) : 0));                  \
        } else if (PROD == op) {                                                                                       \
            value = (T) (1 + hash % (bits < 16 ? 2 : bits < 32 ? 5 : 7));                                              \
            value = (T) (IS_SIGNED && hash >> 63 ? 0 - (uint64_t) value : (uint64_t) value);                           \
        } else if (LAND == op || LOR == op || LXOR == op) {                                                            \
            value = hash >> 62 ? (T) ((uint64_t) 1 << hash % (uint64_t) bits) : 0;                                     \
        }                                                                                                              \
        memcpy(to, &value, sizeof value);                                                                              \
    }                                                                                                                  \
    FOLD(NAME, T, ARITHMETIC(T) ORDER LOGIC(T) BITS(T))                                                                \
    SAME(NAME, T, a == b)                                                                                              \
    KIND(NAME, T, 0)

INTEGER(signed_1, int8_t, true)
INTEGER(signed_2, int16_t, true)
INTEGER(signed_4, int32_t, true)
INTEGER(signed_8, int64_t, true)
INTEGER(unsigned_1, uint8_t, false)
INTEGER(unsigned_2, uint16_t, false)
INTEGER(unsigned_4, uint32_t, false)
INTEGER(unsigned_8, uint64_t, false)

/* The same without the highest bit. */
static void make_unsigned_8_low(enum op op, uint64_t hash, void *to)
{
    uint64_t value;
    make_unsigned_8(op, hash, &value);
    value &= INT64_MAX;
    memcpy(to, &value, sizeof value);
}
static const struct kind unsigned_8_low = {8, 0, make_unsigned_8_low, fold_unsigned_8, same_unsigned_8};

/* True is 1, false is 0. */
#define LOGICAL(NAME, T)                                                                                               \
    static void make_##NAME(enum op op, uint64_t hash, void *to)                                                       \
    {                                                                                                                  \
        T value = (T) (0 != hash >> 62);                                                                               \
        (void) op;                                                                                                     \
        memcpy(to, &value, sizeof value);                                                                              \
    }                                                                                                                  \
    FOLD(NAME, T, LOGIC(T))                                                                                            \
    SAME(NAME, T, a == b)                                                                                              \
    KIND(NAME, T, 0)

LOGICAL(logical_1, uint8_t)
LOGICAL(logical_2, uint16_t)
LOGICAL(logical_4, uint32_t)
LOGICAL(logical_8, uint64_t)

/* Compared as values, because a long double has bytes without meaning. No value is zero with a sign. */
#define FLOATING(NAME, T)                                                                                              \
    static void make_##NAME(enum op op, uint64_t hash, void *to)                                                       \
    {                                                                                                                  \
        T value = (T) ((long) (hash % 257) - 128) / 8;                                                                 \
        if (PROD == op) {                                                                                              \
            const double factors[] = {1, -1, 2, -2, 0.5, 3, 1, 1};                                                     \
            value = (T) factors[hash % 8];                                                                             \
        }                                                                                                              \
        memset(to, 0, sizeof value), memcpy(to, &value, sizeof value);                                                 \
    }                                                                                                                  \
    FOLD(NAME, T, ARITHMETIC(T) ORDER)                                                                                 \
    SAME(NAME, T, a == b)                                                                                              \
    KIND(NAME, T, 0)

FLOATING(float_4, float)
FLOATING(float_8, double)
FLOATING(float_long, long double)
#if defined MPIX_C_FLOAT16 && defined __FLT16_MAX__
FLOATING(float_2, _Float16)
#endif

/* All factors are 2 + i times a power of i. */
#define COMPLEX_NUMBER(NAME, T)                                                                                        \
    static void make_##NAME(enum op op, uint64_t hash, void *to)                                                       \
    {                                                                                                                  \
        T parts[2] = {(T) ((long) (hash % 257) - 128) / 8, (T) ((long) ((hash >> 32) % 257) - 128) / 8};               \
        if (PROD == op) {                                                                                              \
            const int factors[4][2] = {{2, 1}, {-1, 2}, {-2, -1}, {1, -2}};                                            \
            parts[0] = factors[hash % 4][0], parts[1] = factors[hash % 4][1];                                          \
        }                                                                                                              \
        memset(to, 0, sizeof parts), memcpy(to, parts, sizeof parts);                                                  \
    }                                                                                                                  \
    FOLD(NAME, T complex, ARITHMETIC(T complex))                                                                       \
    SAME(NAME, T complex, a == b)                                                                                      \
    KIND(NAME, T complex, 0)

COMPLEX_NUMBER(complex_4, float)
COMPLEX_NUMBER(complex_8, double)
COMPLEX_NUMBER(complex_long, long double)

/* Few different values, so that the place often decides. */
#define PAIR(NAME, V, L, GAPS)                                                                                         \
    struct NAME {                                                                                                      \
        V value;                                                                                                       \
        L place;                                                                                                       \
    };                                                                                                                 \
    static void make_##NAME(enum op op, uint64_t hash, void *to)                                                       \
    {                                                                                                                  \
        V value = (V) ((long) (hash % 7) - 3);                                                                         \
        L place = (L) ((hash >> 32) % 1000);                                                                           \
        (void) op;                                                                                                     \
        memcpy((char *) to + offsetof(struct NAME, value), &value, sizeof value);                                      \
        memcpy((char *) to + offsetof(struct NAME, place), &place, sizeof place);                                      \
    }                                                                                                                  \
    static void fold_##NAME(enum op op, void *left, const void *right)                                                 \
    {                                                                                                                  \
        struct NAME a, b;                                                                                              \
        memcpy(&a, left, sizeof a), memcpy(&b, right, sizeof b);                                                       \
        bool better = MINLOC == op ? b.value < a.value : b.value > a.value;                                            \
        if (better || (b.value == a.value && b.place < a.place)) {                                                     \
            memcpy((char *) left + offsetof(struct NAME, value), &b.value, sizeof b.value);                            \
            memcpy((char *) left + offsetof(struct NAME, place), &b.place, sizeof b.place);                            \
        }                                                                                                              \
    }                                                                                                                  \
    SAME(NAME, struct NAME, a.value == b.value && a.place == b.place)                                                  \
    KIND(NAME, struct NAME, GAPS)

PAIR(pair_float_int, float, int, 0)
PAIR(pair_double_int, double, int, 0xf000)
PAIR(pair_long_int, long, int, 0xf000)
PAIR(pair_int_int, int, int, 0)
PAIR(pair_short_int, short, int, 0xc)
PAIR(pair_long_double_int, long double, int, 0xfff00000)
PAIR(pair_float_float, float, float, 0)
PAIR(pair_double_double, double, double, 0)

/* --- types of the program --- */

/* Two blocks of two ints, each followed by a gap of one int. */
static void make_strided(enum op op, uint64_t hash, void *to)
{
    (void) op;
    for (int i = 0; i < 6; i++) {
        uint32_t value = (uint32_t) mix(hash, (uint64_t) i, 3);
        if (i % 3 < 2) {
            memcpy((char *) to + 4 * i, &value, 4);
        }
    }
}

static void fold_strided(enum op op, void *left, const void *right)
{
    (void) op;
    for (int i = 0; i < 6; i++) {
        uint32_t a, b;
        memcpy(&a, (char *) left + 4 * i, 4), memcpy(&b, (const char *) right + 4 * i, 4);
        a += b;
        if (i % 3 < 2) {
            memcpy((char *) left + 4 * i, &a, 4);
        }
    }
}

static bool same_strided(const void *one, const void *other)
{
    return 0 == memcmp(one, other, 8) && 0 == memcmp((const char *) one + 12, (const char *) other + 12, 8);
}

static const struct kind strided = {24, 0xf00f00, make_strided, fold_strided, same_strided};

/* Matrices of 2 x 2 words, whose product depends on the order of its factors. */
static void make_matrix(enum op op, uint64_t hash, void *to)
{
    uint32_t words[4];
    (void) op;
    for (int i = 0; i < 4; i++) {
        words[i] = (uint32_t) mix(hash, (uint64_t) i, 5);
    }
    memcpy(to, words, sizeof words);
}

static void fold_matrix(enum op op, void *left, const void *right)
{
    uint32_t a[4], b[4];
    (void) op;
    memcpy(a, left, sizeof a), memcpy(b, right, sizeof b);
    const uint32_t product[] = {a[0] * b[0] + a[1] * b[2], a[0] * b[1] + a[1] * b[3], a[2] * b[0] + a[3] * b[2],
                                a[2] * b[1] + a[3] * b[3]};
    memcpy(left, product, sizeof product);
}

static bool same_matrix(const void *one, const void *other)
{
    return 0 == memcmp(one, other, 16);
}

static const struct kind matrix = {16, 0, make_matrix, fold_matrix, same_matrix};

#endif
