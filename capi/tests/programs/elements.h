/* The elements of reductions, and a reference of the operations on small whole numbers. */
#ifndef ELEMENTS_H
#define ELEMENTS_H

#include "job.h"

enum class_of_element { INTEGER, FLOATING, COMPLEX, PAIR };

struct element {
    int id;
    size_t size;
    enum class_of_element kind;
};

/* The value of a number or pair, and the imaginary part or index. */
struct number {
    long first, second;
};

/* Pairs as the header describes them. */
struct float_int { float value; int32_t index; };
struct double_int { double value; int32_t index; };
struct int64_int { int64_t value; int32_t index; };
struct two_int { int32_t value, index; };
struct int16_int { int16_t value; int32_t index; };
struct two_float { float value, index; };
struct two_double { double value, index; };

enum { ELEMENTS = 20 };

static const struct element elements[ELEMENTS] = {
    {CABLEWAY_INT8, sizeof(int8_t), INTEGER},
    {CABLEWAY_INT16, sizeof(int16_t), INTEGER},
    {CABLEWAY_INT32, sizeof(int32_t), INTEGER},
    {CABLEWAY_INT64, sizeof(int64_t), INTEGER},
    {CABLEWAY_UINT8, sizeof(uint8_t), INTEGER},
    {CABLEWAY_UINT16, sizeof(uint16_t), INTEGER},
    {CABLEWAY_UINT32, sizeof(uint32_t), INTEGER},
    {CABLEWAY_UINT64, sizeof(uint64_t), INTEGER},
    {CABLEWAY_FLOAT16, sizeof(uint16_t), FLOATING},
    {CABLEWAY_FLOAT, sizeof(float), FLOATING},
    {CABLEWAY_DOUBLE, sizeof(double), FLOATING},
    {CABLEWAY_FLOAT_COMPLEX, 2 * sizeof(float), COMPLEX},
    {CABLEWAY_DOUBLE_COMPLEX, 2 * sizeof(double), COMPLEX},
    {CABLEWAY_FLOAT_INT, sizeof(struct float_int), PAIR},
    {CABLEWAY_DOUBLE_INT, sizeof(struct double_int), PAIR},
    {CABLEWAY_INT64_INT, sizeof(struct int64_int), PAIR},
    {CABLEWAY_2INT, sizeof(struct two_int), PAIR},
    {CABLEWAY_INT16_INT, sizeof(struct int16_int), PAIR},
    {CABLEWAY_2FLOAT, sizeof(struct two_float), PAIR},
    {CABLEWAY_2DOUBLE, sizeof(struct two_double), PAIR},
};

static inline int has_second(const struct element *element)
{
    return COMPLEX == element->kind || PAIR == element->kind;
}

/* IEEE 754 binary16 of a whole number up to 2048, and back. */
static inline uint16_t half_of(long number)
{
    uint16_t sign = number < 0 ? 0x8000u : 0;
    unsigned long magnitude = (unsigned long) labs(number);
    int exponent = 0;
    if (0 == magnitude) {
        return sign;
    }
    while (magnitude >> (exponent + 1)) {
        exponent++;
    }
    return (uint16_t) (sign | (exponent + 15) << 10 | ((magnitude << 10 >> exponent) & 0x3ff));
}

static inline long of_half(uint16_t half)
{
    int exponent = (half >> 10 & 31) - 15;
    long magnitude = 0 == (half & 0x7fff) ? 0 : (0x400L | (half & 0x3ff)) << exponent >> 10;
    return half & 0x8000 ? -magnitude : magnitude;
}

#define EACH_NUMBER(MACRO)                                                                                            \
    MACRO(CABLEWAY_INT8, int8_t)                                                                                      \
    MACRO(CABLEWAY_INT16, int16_t)                                                                                    \
    MACRO(CABLEWAY_INT32, int32_t)                                                                                    \
    MACRO(CABLEWAY_INT64, int64_t)                                                                                    \
    MACRO(CABLEWAY_UINT8, uint8_t)                                                                                    \
    MACRO(CABLEWAY_UINT16, uint16_t)                                                                                  \
    MACRO(CABLEWAY_UINT32, uint32_t)                                                                                  \
    MACRO(CABLEWAY_UINT64, uint64_t)                                                                                  \
    MACRO(CABLEWAY_FLOAT, float)                                                                                      \
    MACRO(CABLEWAY_DOUBLE, double)

#define EACH_COUPLE(MACRO)                                                                                            \
    MACRO(CABLEWAY_FLOAT_COMPLEX, struct two_float, float, float)                                                     \
    MACRO(CABLEWAY_DOUBLE_COMPLEX, struct two_double, double, double)                                                 \
    MACRO(CABLEWAY_FLOAT_INT, struct float_int, float, int32_t)                                                       \
    MACRO(CABLEWAY_DOUBLE_INT, struct double_int, double, int32_t)                                                    \
    MACRO(CABLEWAY_INT64_INT, struct int64_int, int64_t, int32_t)                                                     \
    MACRO(CABLEWAY_2INT, struct two_int, int32_t, int32_t)                                                            \
    MACRO(CABLEWAY_INT16_INT, struct int16_int, int16_t, int32_t)                                                     \
    MACRO(CABLEWAY_2FLOAT, struct two_float, float, float)                                                            \
    MACRO(CABLEWAY_2DOUBLE, struct two_double, double, double)

static inline void store(const struct element *element, void *at, struct number number)
{
#define STORE_NUMBER(id, type)                                                                                        \
    case id: {                                                                                                        \
        type value_ = (type) number.first;                                                                            \
        memcpy(at, &value_, sizeof value_);                                                                           \
        return;                                                                                                       \
    }
#define STORE_COUPLE(id, type, first_type, second_type)                                                               \
    case id: {                                                                                                        \
        type couple_;                                                                                                 \
        memset(&couple_, 0, sizeof couple_);                                                                          \
        couple_.value = (first_type) number.first;                                                                    \
        couple_.index = (second_type) number.second;                                                                  \
        memcpy(at, &couple_, sizeof couple_);                                                                         \
        return;                                                                                                       \
    }
    uint16_t half = half_of(number.first);
    switch (element->id) {
        EACH_NUMBER(STORE_NUMBER)
        EACH_COUPLE(STORE_COUPLE)
    case CABLEWAY_FLOAT16:
        memcpy(at, &half, sizeof half);
        return;
    }
    CHECK(!"an element of the table");
}

static inline struct number load(const struct element *element, const void *at)
{
#define LOAD_NUMBER(id, type)                                                                                         \
    case id: {                                                                                                        \
        type value_;                                                                                                  \
        memcpy(&value_, at, sizeof value_);                                                                           \
        number.first = (long) value_;                                                                                 \
        break;                                                                                                        \
    }
#define LOAD_COUPLE(id, type, first_type, second_type)                                                                \
    case id: {                                                                                                        \
        type couple_;                                                                                                 \
        memcpy(&couple_, at, sizeof couple_);                                                                         \
        number.first = (long) couple_.value;                                                                          \
        number.second = (long) couple_.index;                                                                         \
        break;                                                                                                        \
    }
    struct number number = {0, 0};
    uint16_t half;
    switch (element->id) {
        EACH_NUMBER(LOAD_NUMBER)
        EACH_COUPLE(LOAD_COUPLE)
    case CABLEWAY_FLOAT16:
        memcpy(&half, at, sizeof half);
        number.first = of_half(half);
        break;
    default:
        CHECK(!"an element of the table");
    }
    return number;
}

static inline int is_defined(const struct element *element, int operation)
{
    switch (operation) {
    case CABLEWAY_SUM:
    case CABLEWAY_PRODUCT:
        return PAIR != element->kind;
    case CABLEWAY_MIN:
    case CABLEWAY_MAX:
        return INTEGER == element->kind || FLOATING == element->kind;
    case CABLEWAY_MINLOC:
    case CABLEWAY_MAXLOC:
        return PAIR == element->kind;
    default:
        return INTEGER == element->kind;
    }
}

static inline struct number combined(const struct element *element, int operation, struct number a, struct number b)
{
    struct number result = {0, 0};
    switch (operation) {
    case CABLEWAY_SUM:
        result.first = a.first + b.first;
        result.second = a.second + b.second;
        return result;
    case CABLEWAY_PRODUCT:
        result.first = a.first * b.first - (COMPLEX == element->kind ? a.second * b.second : 0);
        result.second = a.first * b.second + a.second * b.first;
        return result;
    case CABLEWAY_MIN:
        return a.first <= b.first ? a : b;
    case CABLEWAY_MAX:
        return a.first >= b.first ? a : b;
    case CABLEWAY_LOGICAL_AND:
        result.first = 0 != a.first && 0 != b.first;
        return result;
    case CABLEWAY_LOGICAL_OR:
        result.first = 0 != a.first || 0 != b.first;
        return result;
    case CABLEWAY_LOGICAL_XOR:
        result.first = (0 != a.first) != (0 != b.first);
        return result;
    case CABLEWAY_BIT_AND:
        result.first = a.first & b.first;
        return result;
    case CABLEWAY_BIT_OR:
        result.first = a.first | b.first;
        return result;
    case CABLEWAY_BIT_XOR:
        result.first = a.first ^ b.first;
        return result;
    case CABLEWAY_MINLOC:
        return a.first < b.first || (a.first == b.first && a.second <= b.second) ? a : b;
    default:
        return a.first > b.first || (a.first == b.first && a.second <= b.second) ? a : b;
    }
}

#endif
