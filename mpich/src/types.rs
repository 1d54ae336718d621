//! Datatypes of MPI, built as the program has built them.

use std::ffi::c_int;

use cableway_datatype::{ArrayOrder, Datatype, Distribution, Error, Layout, Predefined};

use crate::boundary::slice;
use crate::guard::guarded;

/// `enum cableway_combiner`
mod combiner {
    use std::ffi::c_int;

    pub(super) const DUP: c_int = 0;
    pub(super) const CONTIGUOUS: c_int = 1;
    pub(super) const VECTOR: c_int = 2;
    pub(super) const HVECTOR: c_int = 3;
    pub(super) const INDEXED: c_int = 4;
    pub(super) const HINDEXED: c_int = 5;
    pub(super) const INDEXED_BLOCK: c_int = 6;
    pub(super) const HINDEXED_BLOCK: c_int = 7;
    pub(super) const STRUCT: c_int = 8;
    pub(super) const RESIZED: c_int = 9;
    pub(super) const SUBARRAY: c_int = 10;
    pub(super) const DARRAY: c_int = 11;
}

/// Makes a type that C owns. Types that cannot be made are null.
fn boxed(made: Option<Datatype>) -> *mut Datatype {
    made.map_or(std::ptr::null_mut(), |datatype| Box::into_raw(Box::new(datatype)))
}

/// Makes a type of bytes without gaps. Messages need no more of a predefined type.
#[unsafe(no_mangle)]
extern "C" fn cableway_type_bytes(size: u64) -> *mut Datatype {
    guarded(std::ptr::null_mut(), || {
        let size = i64::try_from(size).ok();
        boxed(size.and_then(|size| Datatype::contiguous(size, &Predefined::Byte.datatype()).ok()))
    })
}

#[unsafe(no_mangle)]
extern "C" fn cableway_type_pair(pair: c_int) -> *mut Datatype {
    guarded(std::ptr::null_mut(), || {
        let pairs = [Predefined::DoubleInt, Predefined::LongInt, Predefined::ShortInt, Predefined::LongDoubleInt];
        boxed(usize::try_from(pair).ok().and_then(|pair| Some(pairs.get(pair)?.datatype())))
    })
}

/// # Safety
/// The arrays hold so many entries. The types are from this module's functions, and not freed.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_make(
    combiner: c_int,
    integers: *const c_int,
    integer_count: usize,
    addresses: *const isize,
    address_count: usize,
    types: *const *const Datatype,
    type_count: usize,
) -> *mut Datatype {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let (integers, addresses, types) =
            unsafe { (slice(integers, integer_count), slice(addresses, address_count), slice(types, type_count)) };
        let contents = Contents {
            integers: integers.iter().map(|&integer| integer.into()).collect(),
            addresses: addresses.iter().map(|&address| address as i64).collect(),
            // SAFETY: as above.
            types: types.iter().map(|&datatype| unsafe { &*datatype }.clone()).collect(),
        };
        let made = contents.make(combiner).and_then(|made| made.inspect_err(|error| log::warn!("{error}")).ok());
        boxed(made)
    })
}

/// What `MPI_Type_get_contents` returns.
struct Contents {
    integers: Vec<i64>,
    addresses: Vec<i64>,
    types: Vec<Datatype>,
}

impl Contents {
    /// Returns the type, or `None` if parts are missing.
    fn make(&self, combiner: c_int) -> Option<Result<Datatype, Error>> {
        let first = self.types.first()?;
        let count = || self.integer(0);
        Some(match combiner {
            combiner::DUP => Ok(first.dup()),
            combiner::CONTIGUOUS => Datatype::contiguous(count()?, first),
            combiner::VECTOR => Datatype::vector(count()?, self.integer(1)?, self.integer(2)?, first),
            combiner::HVECTOR => Datatype::hvector(count()?, self.integer(1)?, *self.addresses.first()?, first),
            combiner::INDEXED => Datatype::indexed(self.list(0)?, self.list(1)?, first),
            combiner::HINDEXED => Datatype::hindexed(self.list(0)?, &self.addresses, first),
            combiner::INDEXED_BLOCK => Datatype::indexed_block(self.integer(1)?, self.integers.get(2..)?, first),
            combiner::HINDEXED_BLOCK => Datatype::hindexed_block(self.integer(1)?, &self.addresses, first),
            combiner::STRUCT => Datatype::structure(self.list(0)?, &self.addresses, &self.types),
            combiner::RESIZED => Datatype::resized(first, *self.addresses.first()?, *self.addresses.get(1)?),
            combiner::SUBARRAY => {
                let order = order(*self.integers.last()?);
                Datatype::subarray(self.list(0)?, self.list(1)?, self.list(2)?, order, first)
            }
            combiner::DARRAY => return self.darray(first),
            _ => return None,
        })
    }

    fn darray(&self, old: &Datatype) -> Option<Result<Datatype, Error>> {
        let (processes, rank) = (self.integer(0)?, self.integer(1)?);
        let dimensions = usize::try_from(self.integer(2)?).ok()?;
        let list = |number: usize| self.integers.get(3 + number * dimensions..3 + (number + 1) * dimensions);
        let distributions: Vec<Distribution> =
            list(1)?.iter().zip(list(2)?).map(|(&kind, &length)| distribution(kind, length)).collect();
        let order = order(*self.integers.last()?);
        Some(Datatype::darray(processes, rank, list(0)?, &distributions, list(3)?, order, old))
    }

    fn integer(&self, at: usize) -> Option<i64> {
        self.integers.get(at).copied()
    }

    /// Returns a list behind the count, which is the length of each list.
    fn list(&self, number: usize) -> Option<&[i64]> {
        let len = usize::try_from(self.integer(0)?).ok()?;
        self.integers.get(1 + number * len..1 + (number + 1) * len)
    }
}

/// `enum cableway_order`
fn order(number: i64) -> ArrayOrder {
    if number == 0 { ArrayOrder::C } else { ArrayOrder::Fortran }
}

/// `enum cableway_distribution`, and the number of elements of a block, negative for MPI's choice.
fn distribution(kind: i64, length: i64) -> Distribution {
    match kind {
        1 if length < 0 => Distribution::Block,
        1 => Distribution::BlockOf(length),
        2 if length < 0 => Distribution::Cyclic,
        2 => Distribution::CyclicOf(length),
        _ => Distribution::None,
    }
}

/// # Safety
/// `datatype` is null or from this module's functions, and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_type_free(datatype: *mut Datatype) {
    guarded((), || {
        if !datatype.is_null() {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(datatype) });
        }
    });
}

/// # Safety
/// `datatype` is from this module's functions, and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_new(datatype: *mut Datatype) -> *mut Layout {
    guarded(std::ptr::null_mut(), || {
        // SAFETY: the caller's promise.
        let datatype = unsafe { Box::from_raw(datatype) };
        Box::into_raw(Box::new(datatype.commit()))
    })
}

/// # Safety
/// `layout` is from [`cableway_layout_new`], and freed only once.
#[unsafe(no_mangle)]
unsafe extern "C" fn cableway_layout_free(layout: *mut Layout) {
    // SAFETY: the caller's promise.
    guarded((), || drop(unsafe { Box::from_raw(layout) }));
}
