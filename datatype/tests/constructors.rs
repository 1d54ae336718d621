//! Arguments that MPI forbids are errors, and predefined types match C and Fortran.

use cableway_datatype::{ArrayOrder, Datatype, Distribution, Error, Predefined};

/// Requests move these between threads.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<Datatype>();
    shared::<cableway_datatype::Layout>();
    sent::<cableway_datatype::Convertor>();
};

fn int() -> Datatype {
    Predefined::Int.datatype()
}

fn negative(result: Result<Datatype, Error>) -> bool {
    matches!(result, Err(Error::Negative { value: -1, .. }))
}

fn overflow(result: Result<Datatype, Error>) -> bool {
    matches!(result, Err(Error::Overflow { .. }))
}

#[test]
fn negative_counts() {
    assert!(negative(Datatype::contiguous(-1, &int())));
    assert!(negative(Datatype::vector(-1, 1, 1, &int())));
    assert!(negative(Datatype::vector(1, -1, 1, &int())));
    assert!(negative(Datatype::hvector(1, -1, 1, &int())));
    assert!(negative(Datatype::indexed(&[1, -1], &[0, 0], &int())));
    assert!(negative(Datatype::hindexed(&[-1], &[0], &int())));
    assert!(negative(Datatype::indexed_block(-1, &[0], &int())));
    assert!(negative(Datatype::hindexed_block(-1, &[0], &int())));
    assert!(negative(Datatype::structure(&[-1], &[0], &[int()])));
}

#[test]
fn sizes_beyond_64_bits_are_errors() -> Result<(), Error> {
    let max = i64::MAX;
    assert!(overflow(Datatype::contiguous(max, &int())));
    assert!(overflow(Datatype::vector(2, 1, max, &int())));
    assert!(overflow(Datatype::vector(max, max, max, &int())));
    assert!(overflow(Datatype::hvector(3, 1, max, &int())));
    assert!(overflow(Datatype::hvector(3, 1, i64::MIN, &int())));
    assert!(overflow(Datatype::indexed(&[1], &[max], &int())));
    assert!(overflow(Datatype::hindexed(&[1, 1], &[i64::MIN, max], &int())));
    assert!(overflow(Datatype::structure(&[1], &[max], &[int()])));
    assert!(overflow(Datatype::resized(&int(), max, max)));
    assert!(overflow(Datatype::subarray(&[max, max], &[1, 1], &[0, 0], ArrayOrder::C, &int())));
    let dealt = [Distribution::Block; 2];
    assert!(overflow(Datatype::darray(1, 0, &[max, max], &dealt, &[1, 1], ArrayOrder::C, &int())));
    // Overlapping data has a small extent, but its size counts.
    assert!(overflow(Datatype::hvector(max, 4, 0, &int())));
    let half = Datatype::contiguous(max / 4, &int())?;
    assert!(overflow(Datatype::structure(&[1, 1], &[0, 0], &[half.clone(), half])));
    Ok(())
}

#[test]
fn arguments_of_different_length_are_errors() {
    let length = |result: Result<Datatype, Error>| matches!(result, Err(Error::Length { .. }));
    assert!(length(Datatype::indexed(&[1, 1], &[0], &int())));
    assert!(length(Datatype::hindexed(&[1], &[0, 1], &int())));
    assert!(length(Datatype::structure(&[1], &[0], &[])));
    assert!(length(Datatype::subarray(&[4, 4], &[1], &[0, 0], ArrayOrder::C, &int())));
    let dealt = [Distribution::Block];
    assert!(length(Datatype::darray(1, 0, &[4, 4], &dealt, &[1, 1], ArrayOrder::C, &int())));
}

#[test]
fn impossible_arrays_are_errors() {
    let bad = |size, subsize, start| {
        let built = Datatype::subarray(&[5, size], &[5, subsize], &[0, start], ArrayOrder::C, &int());
        matches!(built, Err(Error::Dimension { dimension: 1, .. }))
    };
    assert!(bad(0, 0, 0));
    assert!(bad(4, 0, 0));
    assert!(bad(4, 5, 0));
    assert!(bad(4, 2, 3));
    assert!(bad(4, 2, -1));
    assert!(bad(i64::MIN, i64::MAX, 0));
    assert!(matches!(
        Datatype::subarray(&[], &[], &[], ArrayOrder::C, &int()),
        Err(Error::Dimension { dimension: 0, .. })
    ));

    let dealt = |distribution, processes: i64, rank: i64, side: i64| {
        Datatype::darray(processes, rank, &[10], &[distribution], &[side], ArrayOrder::C, &int())
    };
    for bad in [
        dealt(Distribution::None, 2, 0, 2),
        dealt(Distribution::BlockOf(4), 2, 0, 2),
        dealt(Distribution::BlockOf(0), 2, 0, 2),
        dealt(Distribution::CyclicOf(-3), 2, 0, 2),
    ] {
        assert!(matches!(bad, Err(Error::Dimension { dimension: 0, .. })), "{bad:?}");
    }
    for bad in [
        dealt(Distribution::Block, 3, 0, 2),
        dealt(Distribution::Block, 2, 2, 2),
        dealt(Distribution::Block, 2, -1, 2),
        dealt(Distribution::Block, 0, 0, 0),
        dealt(Distribution::Block, -1, 0, -1),
    ] {
        assert!(matches!(bad, Err(Error::Grid(_))), "{bad:?}");
    }
}

#[test]
fn a_darray_share_beyond_the_end_is_empty() -> Result<(), Error> {
    let share = Datatype::darray(4, 3, &[5], &[Distribution::Block], &[4], ArrayOrder::C, &int())?;
    assert_eq!((share.size(), share.lb(), share.extent()), (0, 0, 20));
    let far = Distribution::CyclicOf(i64::MAX);
    let share = Datatype::darray(4, 3, &[5], &[far], &[4], ArrayOrder::C, &int())?;
    assert_eq!(share.size(), 0);
    Ok(())
}

#[test]
fn types_without_data_have_only_explicit_bounds() -> Result<(), Error> {
    let nothing = Datatype::contiguous(0, &int())?;
    assert_eq!((nothing.size(), nothing.extent(), nothing.true_extent()), (0, 0, 0));
    let padding = Datatype::resized(&nothing, -4, 12)?;
    assert_eq!((padding.size(), padding.lb(), padding.ub()), (0, -4, 8));
    let three = Datatype::contiguous(3, &padding)?;
    assert_eq!((three.size(), three.lb(), three.ub()), (0, -4, 32));
    assert_eq!(Datatype::structure(&[], &[], &[])?.extent(), 0);
    let layout = three.commit();
    assert_eq!(layout.contiguous_span(7), None);
    assert!(layout.is_contiguous(7));
    assert_eq!(layout.blocks(7).next(), None);
    assert_eq!(layout.packed_size(u64::MAX)?, 0);
    Ok(())
}

#[test]
fn extents_are_rounded_up_unless_set() -> Result<(), Error> {
    let (char, double) = (Predefined::Char.datatype(), Predefined::Double.datatype());
    let field = Datatype::structure(&[1, 1], &[0, 8], &[double.clone(), char.clone()])?;
    assert_eq!((field.size(), field.extent(), field.true_extent()), (9, 16, 9));
    let packed = Datatype::resized(&field, 0, 9)?;
    assert_eq!(Datatype::contiguous(3, &packed)?.extent(), 27);
    // A marker in one field bounds the whole structure.
    let marked = Datatype::structure(&[1, 1], &[0, 100], &[packed, double])?;
    assert_eq!((marked.lb(), marked.ub(), marked.true_extent()), (0, 9, 108));
    Ok(())
}

#[test]
fn predefined_types_match_c_and_fortran() {
    for kind in Predefined::ALL {
        let datatype = kind.datatype();
        assert_eq!(datatype.name(), kind.name());
        assert!(datatype.size() != 0 && datatype.extent() >= datatype.size() as i64, "{}", kind.name());
        assert_eq!((datatype.lb(), datatype.true_lb()), (0, 0));
    }
    let pair = |kind: Predefined| {
        let datatype = kind.datatype();
        (datatype.size(), datatype.true_extent(), datatype.extent())
    };
    assert_eq!(pair(Predefined::FloatInt), (8, 8, 8));
    assert_eq!(pair(Predefined::DoubleInt), (12, 12, 16));
    assert_eq!(pair(Predefined::LongInt), (12, 12, 16));
    assert_eq!(pair(Predefined::TwoInt), (8, 8, 8));
    assert_eq!(pair(Predefined::ShortInt), (6, 8, 8));
    assert_eq!(pair(Predefined::LongDoubleInt), (20, 20, 32));
    for (kind, size) in [
        (Predefined::Char, size_of::<std::ffi::c_char>()),
        (Predefined::Short, size_of::<std::ffi::c_short>()),
        (Predefined::Int, size_of::<std::ffi::c_int>()),
        (Predefined::Long, size_of::<std::ffi::c_long>()),
        (Predefined::LongLong, size_of::<std::ffi::c_longlong>()),
        (Predefined::Double, size_of::<std::ffi::c_double>()),
        (Predefined::Aint, size_of::<isize>()),
        (Predefined::CBool, size_of::<bool>()),
    ] {
        assert_eq!(kind.datatype().size(), size as u64, "{}", kind.name());
    }
    assert_eq!(Predefined::Integer16.datatype().size(), 16);
    assert_eq!(int().named("ours").name(), "ours");
}
