//! Numbers of half precision (IEEE 754 binary16), converted as devices convert them.

/// Returns the same number in single precision.
pub(crate) fn widened(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        0 => {
            let magnitude = fraction as f32 / (1 << 24) as f32;
            if sign == 0 { magnitude } else { -magnitude }
        }
        0x1f => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Returns the nearest number; of two, the one with an even last bit.
pub(crate) fn rounded(number: f32) -> u16 {
    let bits = number.to_bits();
    let (sign, magnitude) = ((bits >> 16) as u16 & 0x8000, bits & 0x7fff_ffff);
    if number.is_nan() {
        return sign | 0x7e00;
    }
    // 2^16 - 2^4, halfway from the largest number to the next power of two.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    // Below 2^-14 the result is denormal: a multiple of 2^-24.
    let (whole, dropped) = if magnitude < 0x3880_0000 {
        let shift = 126 - (magnitude >> 23);
        if shift > 24 {
            return sign;
        }
        let fraction = magnitude & 0x7f_ffff | 0x80_0000;
        (fraction >> shift, (fraction & ((1 << shift) - 1)) << (32 - shift))
    } else {
        ((magnitude >> 13) - (112 << 10), magnitude << 19)
    };
    let up = dropped > 1 << 31 || dropped == 1 << 31 && whole & 1 == 1;
    sign | (whole + u32::from(up)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_a_round_trip() {
        for bits in 0..=u16::MAX {
            let wide = widened(bits);
            if wide.is_nan() {
                assert!(widened(rounded(wide)).is_nan());
            } else {
                assert_eq!(rounded(wide), bits, "{wide}");
            }
        }
    }

    #[test]
    fn numbers_between_two_go_to_the_nearer() {
        for bits in 0..0x7bff_u16 {
            let (low, high) = (widened(bits), widened(bits + 1));
            let middle = low + (high - low) / 2.0;
            let (below, above) = (f32::from_bits(middle.to_bits() - 1), f32::from_bits(middle.to_bits() + 1));
            assert_eq!([rounded(below), rounded(above)], [bits, bits + 1], "{middle}");
            assert_eq!(rounded(middle), bits + bits % 2, "{middle}");
            assert_eq!(rounded(-middle), (bits + bits % 2) | 0x8000, "{middle}");
        }
        assert_eq!([rounded(65519.9), rounded(65520.0), rounded(f32::INFINITY)], [0x7bff, 0x7c00, 0x7c00]);
    }
}
