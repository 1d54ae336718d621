// Reductions as docs/collectives.md describes them, one element after the other. Integers are computed in 128 bits,
// floating-point numbers in double precision and rounded after each operation.

#pragma once

typedef __int128 wide;

// A number in an element: its offset, its bytes, and 'i', 'u' or 'f'.
struct Part {
    u32 at, len;
    char kind;
};

struct Type {
    u32 size, alignment;
    bool gaps;
    u32 parts;
    struct Part part[2];
};

static const struct Type TYPES[] = {
    {1, 1, false, 1, {{0, 1, 'i'}}}, {2, 2, false, 1, {{0, 2, 'i'}}}, {4, 4, false, 1, {{0, 4, 'i'}}},
    {8, 8, false, 1, {{0, 8, 'i'}}}, {1, 1, false, 1, {{0, 1, 'u'}}}, {2, 2, false, 1, {{0, 2, 'u'}}},
    {4, 4, false, 1, {{0, 4, 'u'}}}, {8, 8, false, 1, {{0, 8, 'u'}}}, {2, 2, false, 1, {{0, 2, 'f'}}},
    {4, 4, false, 1, {{0, 4, 'f'}}}, {8, 8, false, 1, {{0, 8, 'f'}}},
    {8, 4, false, 2, {{0, 4, 'f'}, {4, 4, 'f'}}}, {16, 8, false, 2, {{0, 8, 'f'}, {8, 8, 'f'}}},
    {8, 4, false, 2, {{0, 4, 'f'}, {4, 4, 'i'}}}, {16, 8, true, 2, {{0, 8, 'f'}, {8, 4, 'i'}}},
    {16, 8, true, 2, {{0, 8, 'i'}, {8, 4, 'i'}}}, {8, 4, false, 2, {{0, 4, 'i'}, {4, 4, 'i'}}},
    {8, 4, true, 2, {{0, 2, 'i'}, {4, 4, 'i'}}}, {8, 4, false, 2, {{0, 4, 'f'}, {4, 4, 'f'}}},
    {16, 8, false, 2, {{0, 8, 'f'}, {8, 8, 'f'}}},
};

static bool applies(u32 operation, u32 element) {
    switch (operation) {
    case SUM: case PRODUCT: return element <= COMPLEX64;
    case MIN: case MAX: return element <= F64;
    case MIN_LOC: case MAX_LOC: return element >= FLOAT_INT;
    default: return element <= U64;
    }
}

static u64 state = 1;

static u64 below(u64 limit) {
    state = state * 6364136223846793005 + 1442695040888963407;
    return (state >> 33) % limit;
}

static u64 bits(struct Part part, const u8 *element) {
    u64 bits = 0;
    memcpy(&bits, element + part.at, part.len);
    return bits;
}

static wide integer(struct Part part, const u8 *element) {
    u32 unused = 64 - 8 * part.len;
    u64 number = bits(part, element) << unused;
    return part.kind == 'i' ? (wide)((s64)number >> unused) : (wide)(number >> unused);
}

template <typename T> static T as(u64 bits) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double real(struct Part part, const u8 *element) {
    u64 number = bits(part, element);
    return part.len == 2 ? (double)as<_Float16>(number) : part.len == 4 ? (double)as<float>(number) : as<double>(number);
}

// Rounds a result to the precision of the operation. Double precision has more than twice the bits of single precision,
// so that rounding twice is rounding once.
static double rounded(struct Part part, double number) { return part.len == 8 ? number : (double)(float)number; }

static void write(struct Part part, u8 *element, double number) {
    _Float16 half = (_Float16)(float)number;
    float single = (float)number;
    memcpy(element + part.at, part.len == 2 ? (void *)&half : part.len == 4 ? (void *)&single : (void *)&number, part.len);
}

static wide combined(u32 operation, wide x, wide y) {
    switch (operation) {
    case SUM: return x + y;
    case PRODUCT: return (wide)((unsigned __int128)x * (unsigned __int128)y);
    case MIN: return x < y ? x : y;
    case MAX: return x > y ? x : y;
    case LOGICAL_AND: return x && y;
    case LOGICAL_OR: return x || y;
    case LOGICAL_XOR: return !x != !y;
    case BIT_AND: return x & y;
    case BIT_OR: return x | y;
    default: return x ^ y;
    }
}

// Whether the second number is the minimum or maximum.
static bool takes_second(u32 operation, double x, double y) {
    if (x != x || y != y) return x == x;
    if (x == y) return operation == MIN ? __builtin_signbit(y) > __builtin_signbit(x) : __builtin_signbit(y) < __builtin_signbit(x);
    return operation == MIN ? y < x : y > x;
}

static bool pair_takes_second(u32 operation, const struct Type &type, const u8 *a, const u8 *b) {
    struct Part value = type.part[0], index = type.part[1];
    bool earlier = index.kind == 'f' ? real(index, b) < real(index, a) : integer(index, b) < integer(index, a);
    if (value.kind == 'i') {
        wide x = integer(value, a), y = integer(value, b);
        return x == y ? earlier : operation == MIN_LOC ? y < x : y > x;
    }
    double x = real(value, a), y = real(value, b);
    if (x != x || y != y) return x == x || (y != y && earlier);
    return x == y ? earlier : operation == MIN_LOC ? y < x : y > x;
}

// Folds the second element into the first.
static void fold(u32 operation, const struct Type &type, u8 *a, const u8 *b) {
    struct Part first = type.part[0], second = type.part[1];
    if (operation >= MIN_LOC) {
        if (pair_takes_second(operation, type, a, b)) memcpy(a, b, type.size);
    } else if (operation == PRODUCT && type.parts == 2) {
        double ar = real(first, a), ai = real(second, a), br = real(first, b), bi = real(second, b);
        write(first, a, rounded(first, rounded(first, ar * br) - rounded(first, ai * bi)));
        write(second, a, rounded(first, rounded(first, ar * bi) + rounded(first, ai * br)));
    } else if (first.kind != 'f') {
        wide result = combined(operation, integer(first, a), integer(first, b));
        memcpy(a, &result, first.len);
    } else if (operation == MIN || operation == MAX) {
        if (takes_second(operation, real(first, a), real(first, b))) memcpy(a, b, type.size);
    } else {
        for (u32 i = 0; i < type.parts; i++) {
            double x = real(type.part[i], a), y = real(type.part[i], b);
            write(type.part[i], a, rounded(type.part[i], operation == SUM ? x + y : x * y));
        }
    }
}

// Checks a result. The payload of a computed NaN is not defined.
static bool same(u32 operation, const struct Type &type, const u8 *expected, const u8 *got) {
    for (u32 i = 0; i < type.parts; i++) {
        struct Part part = type.part[i];
        bool computed = part.kind == 'f' && operation <= PRODUCT;
        bool nans = computed && real(part, expected) != real(part, expected) && real(part, got) != real(part, got);
        if (!nans && bits(part, expected) != bits(part, got)) return false;
    }
    return true;
}

// Writes a number that is often special: an extreme, a zero of either sign, a denormal number, an infinity, a NaN. The
// numbers of pairs are few, so that some are equal.
static void arbitrary(const struct Type &type, u8 *element) {
    for (u32 i = 0; i < type.parts; i++) {
        struct Part part = type.part[i];
        u64 random = below(1u << 31) << 33 ^ below(1u << 31) << 16 ^ below(1u << 31);
        u64 top = 1ull << (8 * part.len - 1), fraction = (1ull << (part.len == 2 ? 10 : part.len == 4 ? 23 : 52)) - 1;
        u64 infinity = (top - 1) & ~fraction, number = type.parts == 2 ? below(3) - 1 : random;
        bool real = part.kind == 'f';
        if (real) {
            u8 bytes[8] = {};
            struct Part alone = {0, part.len, 'f'};
            write(alone, bytes, (double)(int)random / (part.len == 2 ? 1e8 : 1e5));
            number = bits(alone, bytes);
        }
        switch (below(type.parts == 2 ? 12 : 24)) {
        case 0: number = 0; break;
        case 1: number = top; break;
        case 2: number = real ? infinity | top : top - 1; break;
        case 3: number = real ? infinity : ~0ull; break;
        case 4: if (real) number = infinity | 1 | (random & (top | fraction)); break;
        case 5: if (real) number = 1 + below(3); break;
        case 6: if (real) number = random & (top | fraction); break;
        case 7: if (real) number = random; break;
        }
        memcpy(element + part.at, &number, part.len);
    }
}
