//! Reductions on the host, one element after the other, as docs/collectives.md describes them: integers in 128 bits,
//! floating-point numbers in double precision and rounded after each operation. (Double precision has more than twice
//! the bits of single precision, so that rounding twice is rounding once.)

use cableway_common_cuda::{Element, ReduceOperation};

/// What a part of an element is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Signed,
    Unsigned,
    Float,
}

/// A part of an element: its offset, its bytes, its kind.
#[derive(Clone, Copy)]
struct Part(usize, usize, Kind);

#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Value {
    Integer(i128),
    Float(f64),
}

/// Returns the numbers in an element.
fn parts(element: Element) -> Vec<Part> {
    use Kind::{Float, Signed, Unsigned};
    match element {
        Element::I8 => vec![Part(0, 1, Signed)],
        Element::I16 => vec![Part(0, 2, Signed)],
        Element::I32 => vec![Part(0, 4, Signed)],
        Element::I64 => vec![Part(0, 8, Signed)],
        Element::U8 => vec![Part(0, 1, Unsigned)],
        Element::U16 => vec![Part(0, 2, Unsigned)],
        Element::U32 => vec![Part(0, 4, Unsigned)],
        Element::U64 => vec![Part(0, 8, Unsigned)],
        Element::F16 => vec![Part(0, 2, Float)],
        Element::F32 => vec![Part(0, 4, Float)],
        Element::F64 => vec![Part(0, 8, Float)],
        Element::Complex32 | Element::TwoFloat => vec![Part(0, 4, Float), Part(4, 4, Float)],
        Element::Complex64 | Element::TwoDouble => vec![Part(0, 8, Float), Part(8, 8, Float)],
        Element::FloatInt => vec![Part(0, 4, Float), Part(4, 4, Signed)],
        Element::DoubleInt => vec![Part(0, 8, Float), Part(8, 4, Signed)],
        Element::LongInt => vec![Part(0, 8, Signed), Part(8, 4, Signed)],
        Element::TwoInt => vec![Part(0, 4, Signed), Part(4, 4, Signed)],
        Element::ShortInt => vec![Part(0, 2, Signed), Part(4, 4, Signed)],
    }
}

impl Part {
    fn read(self, element: &[u8]) -> Value {
        let Part(at, len, kind) = self;
        let mut bytes = [0; 16];
        bytes[..len].copy_from_slice(&element[at..at + len]);
        let bits = u128::from_le_bytes(bytes);
        match (kind, len) {
            (Kind::Unsigned, _) => Value::Integer(bits as i128),
            (Kind::Signed, _) => Value::Integer((bits << (128 - 8 * len)) as i128 >> (128 - 8 * len)),
            (Kind::Float, 2) => Value::Float(from_half(bits as u16)),
            (Kind::Float, 4) => Value::Float(f32::from_bits(bits as u32).into()),
            (Kind::Float, _) => Value::Float(f64::from_bits(bits as u64)),
        }
    }

    fn write(self, value: Value, element: &mut [u8]) {
        let Part(at, len, _) = self;
        let bytes = match (value, len) {
            (Value::Integer(number), _) => number.to_le_bytes(),
            (Value::Float(number), 2) => u128::from(to_half(number)).to_le_bytes(),
            (Value::Float(number), 4) => u128::from((number as f32).to_bits()).to_le_bytes(),
            (Value::Float(number), _) => u128::from(number.to_bits()).to_le_bytes(),
        };
        element[at..at + len].copy_from_slice(&bytes[..len]);
    }

    /// Rounds a result to the precision in which the operation is defined.
    fn rounded(self, number: f64) -> f64 {
        if self.1 == 8 { number } else { (number as f32).into() }
    }
}

fn from_half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Rounds to the nearest multiple of the last bit, the even one of two.
fn to_half(number: f64) -> u16 {
    let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = number.abs();
    if magnitude.is_nan() {
        return 0x7e00;
    }
    let mut exponent = -14;
    while exponent < 16 && magnitude >= 2_f64.powi(exponent + 1) {
        exponent += 1;
    }
    if exponent > 15 {
        return sign | 0x7c00;
    }
    let multiple = (magnitude / 2_f64.powi(exponent - 10)).round_ties_even() as u16;
    // The fraction's overflow is the next exponent, whose last value means infinity.
    sign | ((((exponent + 14) as u16) << 10) + multiple)
}

/// Combines two elements. The bytes of a gap are those of `a`.
pub(crate) fn fold(operation: ReduceOperation, element: Element, a: &[u8], b: &[u8]) -> Vec<u8> {
    use ReduceOperation as R;
    let parts = parts(element);
    let (first, second) = (parts[0], parts[parts.len() - 1]);
    let mut result = a.to_vec();
    match operation {
        R::MinLoc | R::MaxLoc => {
            let take = pair_takes_second(operation, [first.read(a), second.read(a)], [first.read(b), second.read(b)]);
            return if take { b.to_vec() } else { result };
        }
        R::Product if matches!(element, Element::Complex32 | Element::Complex64) => {
            let [ar, ai, br, bi] = [first.read(a), second.read(a), first.read(b), second.read(b)].map(float);
            let product = |x: f64, y: f64| first.rounded(x * y);
            first.write(Value::Float(first.rounded(product(ar, br) - product(ai, bi))), &mut result);
            second.write(Value::Float(first.rounded(product(ar, bi) + product(ai, br))), &mut result);
            return result;
        }
        _ => {}
    }
    for part in parts {
        match (part.read(a), part.read(b)) {
            (Value::Integer(x), Value::Integer(y)) => part.write(Value::Integer(integer(operation, x, y)), &mut result),
            (x, y) => {
                let (x, y) = (float(x), float(y));
                match operation {
                    R::Sum => part.write(Value::Float(part.rounded(x + y)), &mut result),
                    R::Product => part.write(Value::Float(part.rounded(x * y)), &mut result),
                    _ => {
                        if float_takes_second(operation, x, y) {
                            result.copy_from_slice(b);
                        }
                    }
                }
            }
        }
    }
    result
}

fn float(value: Value) -> f64 {
    match value {
        Value::Float(number) => number,
        Value::Integer(_) => unreachable!("the element has floating-point numbers"),
    }
}

fn integer(operation: ReduceOperation, x: i128, y: i128) -> i128 {
    use ReduceOperation as R;
    match operation {
        R::Sum => x.wrapping_add(y),
        R::Product => x.wrapping_mul(y),
        R::Min => x.min(y),
        R::Max => x.max(y),
        R::LogicalAnd => i128::from(x != 0 && y != 0),
        R::LogicalOr => i128::from(x != 0 || y != 0),
        R::LogicalXor => i128::from((x != 0) != (y != 0)),
        R::BitAnd => x & y,
        R::BitOr => x | y,
        R::BitXor => x ^ y,
        R::MinLoc | R::MaxLoc => unreachable!("for pairs"),
    }
}

/// Minimum and maximum.
fn float_takes_second(operation: ReduceOperation, x: f64, y: f64) -> bool {
    if x.is_nan() || y.is_nan() {
        return !x.is_nan();
    }
    let signs = (x.is_sign_negative(), y.is_sign_negative());
    match operation {
        ReduceOperation::Min => y < x || x == y && signs == (false, true),
        _ => y > x || x == y && signs == (true, false),
    }
}

fn pair_takes_second(operation: ReduceOperation, a: [Value; 2], b: [Value; 2]) -> bool {
    let nan = |value: Value| value.partial_cmp(&value).is_none();
    match (nan(a[0]), nan(b[0])) {
        (true, false) => false,
        (false, true) => true,
        (false, false) if a[0] != b[0] => (b[0] < a[0]) == (operation == ReduceOperation::MinLoc),
        _ => b[1] < a[1],
    }
}

/// Checks whether a result is the expected one: bit for bit, except that the payload of a computed NaN is not defined.
pub(crate) fn same(operation: ReduceOperation, element: Element, expected: &[u8], got: &[u8]) -> bool {
    let computed = matches!(operation, ReduceOperation::Sum | ReduceOperation::Product);
    parts(element).into_iter().all(|part| {
        let range = part.0..part.0 + part.1;
        let nan = |bytes: &[u8]| matches!(part.read(bytes), Value::Float(number) if number.is_nan());
        expected[range.clone()] == got[range] || computed && nan(expected) && nan(got)
    })
}

/// Writes a number that is often special: an extreme, a zero of either sign, a denormal number, an infinity, a NaN.
/// Values of pairs are few, so that some are equal.
pub(crate) fn arbitrary(element: Element, element_bytes: &mut [u8], mut below: impl FnMut(u64) -> u64) {
    let pair = ReduceOperation::MinLoc.applies_to(element);
    for part in parts(element) {
        let Part(at, len, kind) = part;
        let bits = 8 * len as u32;
        let random = below(1 << 31) << 33 ^ below(1 << 31) << 16 ^ below(1 << 31);
        let (fraction, top) = (
            match len {
                2 => 10,
                4 => 23,
                _ => 52,
            },
            1_u64 << (bits - 1),
        );
        let infinity = (top - 1) >> fraction << fraction;
        let ordinary = match kind {
            Kind::Float => {
                let mut bytes = [0; 8];
                let number = (random as i32) as f64 / if len == 2 { 1e8 } else { 1e5 };
                Part(0, len, kind).write(Value::Float(number), &mut bytes);
                u64::from_le_bytes(bytes)
            }
            _ if pair => below(3).wrapping_sub(1),
            _ => random,
        };
        let number = match (kind, below(if pair { 12 } else { 24 })) {
            (_, 0) => 0,
            (_, 1) => top,
            (Kind::Float, 2) => infinity | top,
            (Kind::Float, 3) => infinity,
            (Kind::Float, 4) => infinity | 1 | random & (top | ((1 << fraction) - 1)),
            (Kind::Float, 5) => 1 + below(3),
            (Kind::Float, 6) => random & (top | ((1 << fraction) - 1)),
            (Kind::Float, 7) => random,
            (_, 2) => top - 1,
            (_, 3) => u64::MAX,
            _ => ordinary,
        };
        element_bytes[at..at + len].copy_from_slice(&number.to_le_bytes()[..len]);
    }
}
