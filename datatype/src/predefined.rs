//! The predefined datatypes of C, C++ and Fortran on 64-bit Linux.

use std::sync::LazyLock;

use crate::datatype::Datatype;

macro_rules! predefined {
    (
        basic { $( $basic:ident = $basic_name:literal, $size:literal, $alignment:literal; )+ }
        pairs { $( $pair:ident = $pair_name:literal, $first:ident, $second:ident; )+ }
    ) => {
        /// A predefined datatype.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Predefined {
            $( #[doc = concat!("`", $basic_name, "`")] $basic, )+
            $( #[doc = concat!("`", $pair_name, "`: a value and an index, as C lays the two out in a struct")] $pair, )+
        }

        impl Predefined {
            /// All of them, in the order of declaration.
            pub const ALL: &'static [Predefined] = &[$( Predefined::$basic, )+ $( Predefined::$pair, )+];

            /// Returns the name in MPI.
            pub fn name(self) -> &'static str {
                match self {
                    $( Predefined::$basic => $basic_name, )+
                    $( Predefined::$pair => $pair_name, )+
                }
            }

            fn shape(self) -> Shape {
                match self {
                    $( Predefined::$basic => Shape::Basic { size: $size, alignment: $alignment }, )+
                    $( Predefined::$pair => Shape::Pair(Predefined::$first, Predefined::$second), )+
                }
            }
        }
    };
}

enum Shape {
    Basic { size: u64, alignment: u64 },
    Pair(Predefined, Predefined),
}

predefined! {
    basic {
        Byte = "MPI_BYTE", 1, 1;
        Packed = "MPI_PACKED", 1, 1;
        Char = "MPI_CHAR", 1, 1;
        SignedChar = "MPI_SIGNED_CHAR", 1, 1;
        UnsignedChar = "MPI_UNSIGNED_CHAR", 1, 1;
        WideChar = "MPI_WCHAR", 4, 4;
        Short = "MPI_SHORT", 2, 2;
        UnsignedShort = "MPI_UNSIGNED_SHORT", 2, 2;
        Int = "MPI_INT", 4, 4;
        Unsigned = "MPI_UNSIGNED", 4, 4;
        Long = "MPI_LONG", 8, 8;
        UnsignedLong = "MPI_UNSIGNED_LONG", 8, 8;
        LongLong = "MPI_LONG_LONG", 8, 8;
        UnsignedLongLong = "MPI_UNSIGNED_LONG_LONG", 8, 8;
        Float = "MPI_FLOAT", 4, 4;
        Double = "MPI_DOUBLE", 8, 8;
        LongDouble = "MPI_LONG_DOUBLE", 16, 16;
        Int8 = "MPI_INT8_T", 1, 1;
        Int16 = "MPI_INT16_T", 2, 2;
        Int32 = "MPI_INT32_T", 4, 4;
        Int64 = "MPI_INT64_T", 8, 8;
        Uint8 = "MPI_UINT8_T", 1, 1;
        Uint16 = "MPI_UINT16_T", 2, 2;
        Uint32 = "MPI_UINT32_T", 4, 4;
        Uint64 = "MPI_UINT64_T", 8, 8;
        Aint = "MPI_AINT", 8, 8;
        Offset = "MPI_OFFSET", 8, 8;
        Count = "MPI_COUNT", 8, 8;
        CBool = "MPI_C_BOOL", 1, 1;
        CFloatComplex = "MPI_C_FLOAT_COMPLEX", 8, 4;
        CDoubleComplex = "MPI_C_DOUBLE_COMPLEX", 16, 8;
        CLongDoubleComplex = "MPI_C_LONG_DOUBLE_COMPLEX", 32, 16;
        CxxBool = "MPI_CXX_BOOL", 1, 1;
        CxxFloatComplex = "MPI_CXX_FLOAT_COMPLEX", 8, 4;
        CxxDoubleComplex = "MPI_CXX_DOUBLE_COMPLEX", 16, 8;
        CxxLongDoubleComplex = "MPI_CXX_LONG_DOUBLE_COMPLEX", 32, 16;
        Character = "MPI_CHARACTER", 1, 1;
        Logical = "MPI_LOGICAL", 4, 4;
        Logical1 = "MPI_LOGICAL1", 1, 1;
        Logical2 = "MPI_LOGICAL2", 2, 2;
        Logical4 = "MPI_LOGICAL4", 4, 4;
        Logical8 = "MPI_LOGICAL8", 8, 8;
        Logical16 = "MPI_LOGICAL16", 16, 16;
        Integer = "MPI_INTEGER", 4, 4;
        Integer1 = "MPI_INTEGER1", 1, 1;
        Integer2 = "MPI_INTEGER2", 2, 2;
        Integer4 = "MPI_INTEGER4", 4, 4;
        Integer8 = "MPI_INTEGER8", 8, 8;
        Integer16 = "MPI_INTEGER16", 16, 16;
        Real = "MPI_REAL", 4, 4;
        Real2 = "MPI_REAL2", 2, 2;
        Real4 = "MPI_REAL4", 4, 4;
        Real8 = "MPI_REAL8", 8, 8;
        Real16 = "MPI_REAL16", 16, 16;
        DoublePrecision = "MPI_DOUBLE_PRECISION", 8, 8;
        Complex = "MPI_COMPLEX", 8, 4;
        Complex4 = "MPI_COMPLEX4", 4, 2;
        Complex8 = "MPI_COMPLEX8", 8, 4;
        Complex16 = "MPI_COMPLEX16", 16, 8;
        Complex32 = "MPI_COMPLEX32", 32, 16;
        DoubleComplex = "MPI_DOUBLE_COMPLEX", 16, 8;
    }
    pairs {
        FloatInt = "MPI_FLOAT_INT", Float, Int;
        DoubleInt = "MPI_DOUBLE_INT", Double, Int;
        LongInt = "MPI_LONG_INT", Long, Int;
        TwoInt = "MPI_2INT", Int, Int;
        ShortInt = "MPI_SHORT_INT", Short, Int;
        LongDoubleInt = "MPI_LONG_DOUBLE_INT", LongDouble, Int;
        TwoReal = "MPI_2REAL", Real, Real;
        TwoDoublePrecision = "MPI_2DOUBLE_PRECISION", DoublePrecision, DoublePrecision;
        TwoInteger = "MPI_2INTEGER", Integer, Integer;
        TwoComplex = "MPI_2COMPLEX", Complex, Complex;
        TwoDoubleComplex = "MPI_2DOUBLE_COMPLEX", DoubleComplex, DoubleComplex;
    }
}

static DATATYPES: LazyLock<Vec<Datatype>> = LazyLock::new(|| {
    let mut made = Vec::with_capacity(Predefined::ALL.len());
    for kind in Predefined::ALL {
        made.push(match kind.shape() {
            Shape::Basic { size, alignment } => Datatype::basic(kind.name(), &[(0, size)], alignment),
            Shape::Pair(first, second) => {
                let (value, value_alignment) = first.basic_size();
                let (index, index_alignment) = second.basic_size();
                let fields = [(0, value), (value.next_multiple_of(index_alignment), index)];
                Datatype::basic(kind.name(), &fields, value_alignment.max(index_alignment))
            }
        });
    }
    made
});

impl Predefined {
    /// Returns the datatype.
    pub fn datatype(self) -> Datatype {
        DATATYPES[self as usize].clone()
    }

    fn basic_size(self) -> (u64, u64) {
        match self.shape() {
            Shape::Basic { size, alignment } => (size, alignment),
            Shape::Pair(first, _) => first.basic_size(),
        }
    }
}
