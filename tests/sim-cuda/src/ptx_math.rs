//! The arithmetic of PTX. A register holds the bits of its value, the upper ones 0.

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Signed,
    /// Also bits without a kind, and predicates.
    Unsigned,
    Float,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) kind: Kind,
    bits: u32,
}

/// Which half of a product is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Low,
    High,
    /// The whole product, in twice the bits.
    Wide,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Add,
    Subtract,
    /// Of floating-point numbers.
    Multiply,
    Divide,
    Remainder,
    Least,
    Most,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
    Not,
    Negate,
    Absolute,
    Root,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Type {
    pub(crate) const WORD: Type = Type { kind: Kind::Unsigned, bits: 32 };

    /// Returns the type of a name such as `u32`.
    pub(crate) fn named(name: &str) -> Option<Type> {
        if name == "pred" {
            return Some(Type { kind: Kind::Unsigned, bits: 1 });
        }
        let (kind, bits) = name.split_at_checked(1)?;
        let kind = match kind {
            "s" => Kind::Signed,
            "u" | "b" => Kind::Unsigned,
            "f" => Kind::Float,
            _ => return None,
        };
        let bits = bits.parse().ok()?;
        let known = matches!((kind, bits), (Kind::Float, 32 | 64) | (Kind::Signed | Kind::Unsigned, 8 | 16 | 32 | 64));
        known.then_some(Type { kind, bits })
    }

    pub(crate) fn bytes(self) -> usize {
        (self.bits as usize).div_ceil(8)
    }

    /// Returns the bits of a value that fit.
    pub(crate) fn cut(self, value: u64) -> u64 {
        if self.bits == 64 { value } else { value & ((1 << self.bits) - 1) }
    }

    fn integer(self, bits: u64) -> i128 {
        let unused = 64 - self.bits;
        match self.kind {
            Kind::Signed => i128::from(((bits << unused) as i64) >> unused),
            _ => i128::from(self.cut(bits)),
        }
    }

    fn float(self, bits: u64) -> f64 {
        if self.bits == 32 { f64::from(f32::from_bits(bits as u32)) } else { f64::from_bits(bits) }
    }

    /// Rounds to the type. Sums, products, quotients and roots of two `f32` that were computed as `f64` stay right.
    fn rounded(self, value: f64) -> u64 {
        if self.bits == 32 { u64::from((value as f32).to_bits()) } else { value.to_bits() }
    }

    /// Converts a value of another type to this one. Fractions are cut off.
    pub(crate) fn convert(self, from: Type, bits: u64) -> u64 {
        match (from.kind, self.kind) {
            (Kind::Float, Kind::Float) => self.rounded(from.float(bits)),
            (Kind::Float, Kind::Signed) => self.cut(from.float(bits) as i64 as u64),
            (Kind::Float, Kind::Unsigned) => self.cut(from.float(bits) as u64),
            (Kind::Signed | Kind::Unsigned, Kind::Float) if self.bits == 32 => {
                u64::from((from.integer(bits) as f32).to_bits())
            }
            (Kind::Signed | Kind::Unsigned, Kind::Float) => (from.integer(bits) as f64).to_bits(),
            _ => self.cut(from.integer(bits) as u64),
        }
    }

    pub(crate) fn multiply(self, half: Half, one: u64, other: u64) -> u64 {
        // Two unsigned words of 64 bits have a product that fits when it is cut.
        let product = self.integer(one).wrapping_mul(self.integer(other));
        match half {
            Half::Low => self.cut(product as u64),
            Half::High => self.cut((product >> self.bits) as u64),
            Half::Wide => self.product(half).cut(product as u64),
        }
    }

    /// Returns the type of a product.
    pub(crate) fn product(self, half: Half) -> Type {
        if half == Half::Wide { Type { bits: (2 * self.bits).min(64), ..self } } else { self }
    }

    /// Returns what a load leaves in a register, which may be wider than the value.
    pub(crate) fn extend(self, value: u64) -> u64 {
        self.integer(value) as u64
    }

    /// Multiplies and adds with one rounding.
    pub(crate) fn fuse(self, [a, b, c]: [u64; 3]) -> u64 {
        if self.bits == 32 {
            let [a, b, c] = [a, b, c].map(|bits| f32::from_bits(bits as u32));
            return u64::from(a.mul_add(b, c).to_bits());
        }
        let [a, b, c] = [a, b, c].map(f64::from_bits);
        a.mul_add(b, c).to_bits()
    }

    pub(crate) fn compare(self, comparison: Comparison, one: u64, other: u64) -> bool {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = match self.kind {
            Kind::Float => self.float(one).partial_cmp(&self.float(other)),
            _ => Some(self.integer(one).cmp(&self.integer(other))),
        };
        match comparison {
            Comparison::Equal => order == Some(Equal),
            Comparison::NotEqual => matches!(order, Some(Less | Greater)),
            Comparison::Less => order == Some(Less),
            Comparison::LessOrEqual => matches!(order, Some(Less | Equal)),
            Comparison::Greater => order == Some(Greater),
            Comparison::GreaterOrEqual => matches!(order, Some(Greater | Equal)),
        }
    }

    /// Returns the result of an operation. `other` is unused if it has one source only.
    pub(crate) fn operate(self, operation: Operation, one: u64, other: u64) -> u64 {
        match self.kind {
            Kind::Float => self.operate_on_floats(operation, one, other),
            _ => self.operate_on_integers(operation, one, other),
        }
    }

    fn operate_on_floats(self, operation: Operation, one: u64, other: u64) -> u64 {
        let (a, b) = (self.float(one), self.float(other));
        self.rounded(match operation {
            Operation::Add => a + b,
            Operation::Subtract => a - b,
            Operation::Multiply => a * b,
            Operation::Divide => a / b,
            Operation::Least => a.min(b),
            Operation::Most => a.max(b),
            Operation::Negate => -a,
            Operation::Absolute => a.abs(),
            Operation::Root => a.sqrt(),
            _ => unreachable!("the reader refuses it"),
        })
    }

    fn operate_on_integers(self, operation: Operation, one: u64, other: u64) -> u64 {
        let (a, b) = (self.integer(one), self.integer(other));
        // A shift's distance has 32 bits, and one that is longer than the value moves all of it out.
        let distance = (other as u32).min(self.bits);
        self.cut(match operation {
            Operation::Add => a + b,
            Operation::Subtract => a - b,
            // What a device answers is not defined either.
            Operation::Divide => a.checked_div(b).unwrap_or(-1),
            Operation::Remainder => a.checked_rem(b).unwrap_or(-1),
            Operation::Least => a.min(b),
            Operation::Most => a.max(b),
            Operation::And => a & b,
            Operation::Or => a | b,
            Operation::Xor => a ^ b,
            Operation::ShiftLeft => a << distance,
            Operation::ShiftRight => a >> distance,
            Operation::Not => !a,
            Operation::Negate => -a,
            Operation::Absolute => a.abs(),
            Operation::Multiply | Operation::Root => unreachable!("the reader refuses it"),
        } as u64)
    }
}

impl Half {
    pub(crate) fn named(parts: &[&str]) -> Option<Half> {
        parts.iter().find_map(|part| match *part {
            "lo" => Some(Half::Low),
            "hi" => Some(Half::High),
            "wide" => Some(Half::Wide),
            _ => None,
        })
    }
}

impl Operation {
    /// Returns the operation of a name, if it exists for a kind of values.
    pub(crate) fn named(name: &str, kind: Kind) -> Option<Operation> {
        use Operation::{
            Absolute, Add, And, Divide, Least, Most, Multiply, Negate, Not, Or, Remainder, Root, ShiftLeft, ShiftRight,
            Subtract, Xor,
        };
        let floats = kind == Kind::Float;
        Some(match name {
            "add" => Add,
            "sub" => Subtract,
            "div" => Divide,
            "min" => Least,
            "max" => Most,
            "neg" => Negate,
            "abs" => Absolute,
            "mul" if floats => Multiply,
            "sqrt" if floats => Root,
            "rem" if !floats => Remainder,
            "and" if !floats => And,
            "or" if !floats => Or,
            "xor" if !floats => Xor,
            "shl" if !floats => ShiftLeft,
            "shr" if !floats => ShiftRight,
            "not" if !floats => Not,
            _ => return None,
        })
    }
}

impl Comparison {
    pub(crate) fn named(name: &str) -> Option<Comparison> {
        Some(match name {
            "eq" => Comparison::Equal,
            "ne" => Comparison::NotEqual,
            "lt" | "lo" => Comparison::Less,
            "le" | "ls" => Comparison::LessOrEqual,
            "gt" | "hi" => Comparison::Greater,
            "ge" | "hs" => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Type {
        Type::named(name).unwrap_or_else(|| panic!("{name}"))
    }

    #[test]
    fn numbers_have_the_width_and_the_sign_of_their_type() {
        let operate = |kind: &str, operation: &str, one: u64, other: u64| {
            named(kind).operate(Operation::named(operation, named(kind).kind).expect("known"), one, other)
        };
        assert_eq!(operate("u32", "add", 0xffff_ffff, 2), 1);
        assert_eq!(operate("s32", "div", 0xffff_fff9, 2), 0xffff_fffd);
        assert_eq!(operate("u32", "div", 0xffff_fff9, 2), 0x7fff_fffc);
        assert_eq!(operate("s32", "shr", 0x8000_0000, 31), 0xffff_ffff);
        assert_eq!(operate("b32", "shl", 1, 40), 0);
        assert_eq!(operate("b64", "shl", 1, 63), 1 << 63);
        assert_eq!(
            operate("f32", "add", u64::from(1.5_f32.to_bits()), u64::from(2.25_f32.to_bits())),
            u64::from(3.75_f32.to_bits())
        );
        assert_eq!(named("s32").multiply(Half::Wide, 0xffff_ffff, 3), (-3_i64) as u64);
        assert_eq!(named("u32").multiply(Half::Wide, 0xffff_ffff, 3), 0x2_ffff_fffd);
        assert_eq!(named("u64").multiply(Half::Low, u64::MAX, 3), u64::MAX - 2);
        assert_eq!(named("u64").multiply(Half::High, u64::MAX, u64::MAX), u64::MAX - 1);
        assert_eq!(named("s64").convert(named("s32"), 0xffff_ffff), u64::MAX);
        assert_eq!(named("u64").convert(named("u32"), 0xffff_ffff), 0xffff_ffff);
        assert_eq!(named("s32").convert(named("f64"), (-2.75_f64).to_bits()), 0xffff_fffe);
        assert_eq!(named("f64").convert(named("s32"), 0xffff_fffe), (-2.0_f64).to_bits());
        assert!(named("s32").compare(Comparison::Less, 0xffff_ffff, 0));
        assert!(!named("u32").compare(Comparison::Less, 0xffff_ffff, 0));
        assert!(!named("f64").compare(Comparison::NotEqual, f64::NAN.to_bits(), 0));
    }
}
