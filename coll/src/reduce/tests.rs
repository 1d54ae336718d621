use super::*;

fn reduce<T: Copy>(operation: ReduceOperation, element: Element, sources: &[&[T]], into: &mut [T]) {
    let pointers: Vec<*const u8> = sources.iter().map(|source| source.as_ptr().cast()).collect();
    // SAFETY: all slices have one length, and the operation applies.
    unsafe { on_host(Combine { operation, element }, into.as_mut_ptr().cast(), &pointers, into.len()) };
}

#[test]
fn sources_are_folded_in_their_order() {
    let sources: Vec<Vec<f32>> =
        (0..5).map(|k| (0..1300).map(|i| 1.0 + (i * 7 + k * 13) as f32 / 3.0).collect()).collect();
    let expected: Vec<f32> =
        (0..1300).map(|i| sources.iter().skip(1).fold(sources[0][i], |sum, s| sum + s[i])).collect();
    let mut into = vec![0.0; 1300];
    reduce(ReduceOperation::Sum, Element::F32, &sources.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut into);
    assert_eq!(into, expected);
}

#[test]
fn the_destination_may_be_any_source() {
    for place in 0..3 {
        let mut sources: Vec<Vec<i64>> = (0..3).map(|k| (0..2000).map(|i| i * 3 + k).collect()).collect();
        let expected: Vec<i64> = (0..2000).map(|i| i * 9 + 3).collect();
        let pointers: Vec<*const u8> = sources.iter().map(|source| source.as_ptr().cast()).collect();
        let combine = Combine { operation: ReduceOperation::Sum, element: Element::I64 };
        let into = sources[place].as_mut_ptr().cast();
        // SAFETY: as many elements as each vector has.
        unsafe { on_host(combine, into, &pointers, 2000) };
        assert_eq!(sources[place], expected);
    }
}

#[test]
fn extremes_of_floats_do_not_depend_on_the_order() {
    let values = [f64::NAN, -0.0, 0.0, 1.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324];
    for a in values {
        for b in values {
            for operation in [ReduceOperation::Min, ReduceOperation::Max] {
                let (mut one, mut two) = ([0.0], [0.0]);
                reduce(operation, Element::F64, &[&[a], &[b]], &mut one);
                reduce(operation, Element::F64, &[&[b], &[a]], &mut two);
                assert_eq!(one[0].to_bits(), two[0].to_bits(), "{operation:?} of {a} and {b}");
                assert_eq!(one[0].is_nan(), a.is_nan() || b.is_nan());
            }
        }
    }
    let mut zero = [1.0_f64];
    reduce(ReduceOperation::Min, Element::F64, &[&[0.0], &[-0.0]], &mut zero);
    assert!(zero[0].is_sign_negative());
}

#[test]
fn pairs_leave_their_gaps_alone() {
    let pair = |value: f64, index: i32| -> [u8; 16] {
        let mut bytes = [0xEE; 16];
        bytes[..8].copy_from_slice(&value.to_ne_bytes());
        bytes[8..12].copy_from_slice(&index.to_ne_bytes());
        bytes
    };
    let mut into = [[0x55_u8; 16]];
    reduce(
        ReduceOperation::MaxLoc,
        Element::DoubleInt,
        &[&[pair(2.0, 9)], &[pair(2.0, 4)], &[pair(1.0, 0)]],
        &mut into,
    );
    assert_eq!(into[0][..12], pair(2.0, 4)[..12]);
    assert_eq!(into[0][12..], [0x55; 4]);
}

#[test]
fn a_nan_wins_over_every_pair() {
    let pair = |value: f32, index: i32| FloatInt { value, index };
    let winner = |a: FloatInt, b: FloatInt| min_located(a, b).index;
    assert_eq!(winner(pair(f32::NAN, 7), pair(1.0, 1)), 7);
    assert_eq!(winner(pair(1.0, 1), pair(f32::NAN, 7)), 7);
    assert_eq!(winner(pair(f32::NAN, 7), pair(f32::NAN, 3)), 3);
    assert_eq!(winner(pair(0.0, 7), pair(-0.0, 8)), 7);
}

#[test]
fn complex_products_round_each_operation() {
    let (a, b) = ([1.1_f32, 2.3], [3.7_f32, -0.9]);
    let mut into = [[0.0_f32; 2]];
    reduce(ReduceOperation::Product, Element::Complex32, &[&[a], &[b]], &mut into);
    assert_eq!(into[0], [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]);
}
