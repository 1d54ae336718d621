// The minimum and the maximum of pairs of a value and an index, as MPI_MINLOC and MPI_MAXLOC. See reduce.h.

#include "reduce.h"

template <typename V, typename I> struct ValueIndex {
    V value;
    I index;
};

// A value, and an index at some distance from it. Only these two are read and written, never the bytes between and
// behind them.
template <typename V, typename I, u32 APART, u32 EXTENT> struct Pair : Number<ValueIndex<V, I>> {
    typedef ValueIndex<V, I> Item;
    static constexpr u32 SIZE = EXTENT;
    bool greatest;
    METHOD Pair(bool greatest) : greatest(greatest) {}
    METHOD Item load(u64 at) const { return {*(const V MEMORY *)at, *(const I MEMORY *)(at + APART)}; }
    METHOD void store(u64 at, Item item) const {
        *(V MEMORY *)at = item.value;
        *(I MEMORY *)(at + APART) = item.index;
    }
    METHOD Item fold(Item a, Item b) const {
        bool less = a.value < b.value, more = a.value > b.value;
        bool nan_a = a.value != a.value, nan_b = b.value != b.value;
        bool first = nan_a != nan_b ? nan_a : greatest ? more : less;
        bool second = nan_a != nan_b ? nan_b : greatest ? less : more;
        return first || (!second && !(b.index < a.index)) ? a : b;
    }
};

typedef Pair<float, int, 4, 8> FloatInt;
typedef Pair<double, int, 8, 16> DoubleInt;
typedef Pair<s64, int, 8, 16> LongInt;
typedef Pair<int, int, 4, 8> TwoInt;
typedef Pair<short, int, 4, 8> ShortInt;
typedef Pair<float, float, 4, 8> TwoFloat;
typedef Pair<double, double, 8, 16> TwoDouble;

// Pairs without gaps are folded in vectors, others one by one.
REDUCING void cableway_reduce_pairs(const struct Reduction reduction) {
    if (!gathered(reduction.job, reduction.one_shot)) return end(reduction.job);
    bool greatest = reduction.operation == MAX_LOC;
    switch (reduction.element) {
    case FLOAT_INT: fold_all(FloatInt(greatest), reduction); break;
    case DOUBLE_INT: fold_elements(DoubleInt(greatest), reduction); break;
    case LONG_INT: fold_elements(LongInt(greatest), reduction); break;
    case TWO_INT: fold_all(TwoInt(greatest), reduction); break;
    case SHORT_INT: fold_elements(ShortInt(greatest), reduction); break;
    case TWO_FLOAT: fold_all(TwoFloat(greatest), reduction); break;
    case TWO_DOUBLE: fold_all(TwoDouble(greatest), reduction); break;
    }
    end(reduction.job);
}
