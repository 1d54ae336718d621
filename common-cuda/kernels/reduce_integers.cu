// Sums, products, minima and maxima of integers. See reduce.h.

#include "reduce.h"

// Sums and products wrap. So they are the same for both signs.
template <typename T> struct Sum : Number<T> {
    METHOD T fold(T a, T b) const { return (T)(a + b); }
};
template <typename T> struct Product : Number<T> {
    // By 1u, because small numbers would be promoted to signed ones, which must not overflow.
    METHOD T fold(T a, T b) const { return (T)(1u * a * b); }
};

// The minimum of signed numbers. Inverted, unsigned numbers are in the order of signed ones, and maxima are minima.
template <typename T, typename Signed> struct Least : Inverted<T> {
    METHOD Least(u64 bits) : Inverted<T>(bits) {}
    METHOD T fold(T a, T b) const { return (Signed)b < (Signed)a ? b : a; }
};

template <typename T, typename Signed> DEVICE void fold_least(const struct Reduction &reduction) {
    u64 bits = reduction.element < U8 ? 0 : in_each((T)((T)1 << (8 * sizeof(T) - 1)));
    fold_all(Least<T, Signed>(reduction.operation == MAX ? ~bits : bits), reduction);
}

REDUCING void cableway_reduce_integers(const struct Reduction reduction) {
    if (!gathered(reduction.job, reduction.one_shot)) return end(reduction.job);
    if (reduction.operation == SUM) {
        switch (reduction.element) {
        case U8: fold_all(Sum<u8>(), reduction); break;
        case U16: fold_all(Sum<u16>(), reduction); break;
        case U32: fold_all(Sum<u32>(), reduction); break;
        case U64: fold_all(Sum<u64>(), reduction); break;
        }
    } else if (reduction.operation == PRODUCT) {
        switch (reduction.element) {
        case U8: fold_all(Product<u8>(), reduction); break;
        case U16: fold_all(Product<u16>(), reduction); break;
        case U32: fold_all(Product<u32>(), reduction); break;
        case U64: fold_all(Product<u64>(), reduction); break;
        }
    } else {
        switch (reduction.element) {
        case I8: case U8: fold_least<u8, signed char>(reduction); break;
        case I16: case U16: fold_least<u16, short>(reduction); break;
        case I32: case U32: fold_least<u32, int>(reduction); break;
        case I64: case U64: fold_least<u64, s64>(reduction); break;
        }
    }
    end(reduction.job);
}
