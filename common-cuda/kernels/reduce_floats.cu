// Sums, products, minima and maxima of floating-point and complex numbers. See reduce.h. The compiler must not contract
// (-ffp-contract=off), so that every operation rounds as the host's does.

#include "reduce.h"

// Operations on half numbers round twice: in single precision, and to half precision. The steps between two loads are
// few, and their order is the sources', as everywhere.
template <typename T> struct Sum : Number<T> {
    METHOD T fold(T a, T b) const { return a + b; }
};
template <typename T> struct Product : Number<T> {
    METHOD T fold(T a, T b) const { return a * b; }
};
template <> struct Sum<_Float16> : Number<_Float16> {
    METHOD _Float16 fold(_Float16 a, _Float16 b) const { return (_Float16)((float)a + (float)b); }
};
template <> struct Product<_Float16> : Number<_Float16> {
    METHOD _Float16 fold(_Float16 a, _Float16 b) const { return (_Float16)((float)a * (float)b); }
};

// The minimum, or the maximum if the signs are inverted. It is chosen as bits, so that nothing changes a NaN.
template <typename Bits, typename Float> struct Least : Inverted<Bits> {
    METHOD Least(u64 bits) : Inverted<Bits>(bits) {}
    METHOD Bits fold(Bits a, Bits b) const {
        Float x = __builtin_bit_cast(Float, a), y = __builtin_bit_cast(Float, b);
        if (x != x) return a;
        if (y != y) return b;
        // Equal numbers differ in nothing but the sign of zero.
        return x == y ? a | b : x < y ? a : b;
    }
};

template <typename Bits, typename Float> DEVICE void fold_least(const struct Reduction &reduction) {
    u64 signs = in_each((Bits)((Bits)1 << (8 * sizeof(Bits) - 1)));
    fold_all(Least<Bits, Float>(reduction.operation == MAX ? signs : 0), reduction);
}

template <typename T> struct ComplexNumber {
    T re, im;
};
template <typename T> struct ComplexProduct : Number<ComplexNumber<T>> {
    typedef ComplexNumber<T> Item;
    METHOD Item load(u64 at) const { return {((const T MEMORY *)at)[0], ((const T MEMORY *)at)[1]}; }
    METHOD void store(u64 at, Item item) const {
        ((T MEMORY *)at)[0] = item.re;
        ((T MEMORY *)at)[1] = item.im;
    }
    METHOD Item fold(Item a, Item b) const { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
};

// The host describes a sum of complex numbers as one of twice as many real numbers.
REDUCING void cableway_reduce_floats(const struct Reduction reduction) {
    if (!gathered(reduction.job, reduction.one_shot)) return end(reduction.job);
    if (reduction.operation == SUM) {
        switch (reduction.element) {
        case F16: fold_all(Sum<_Float16>(), reduction); break;
        case F32: fold_all(Sum<float>(), reduction); break;
        case F64: fold_all(Sum<double>(), reduction); break;
        }
    } else if (reduction.operation == PRODUCT) {
        switch (reduction.element) {
        case F16: fold_all(Product<_Float16>(), reduction); break;
        case F32: fold_all(Product<float>(), reduction); break;
        case F64: fold_all(Product<double>(), reduction); break;
        case COMPLEX32: fold_all(ComplexProduct<float>(), reduction); break;
        case COMPLEX64: fold_all(ComplexProduct<double>(), reduction); break;
        }
    } else {
        switch (reduction.element) {
        case F16: fold_least<u16, _Float16>(reduction); break;
        case F32: fold_least<u32, float>(reduction); break;
        case F64: fold_least<u64, double>(reduction); break;
        }
    }
    end(reduction.job);
}
