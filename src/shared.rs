//! Host memory that the ranks of a node share, so that puts and gets of registered memory are stores and loads.

use std::ops::{Deref, DerefMut};

use cableway_btl::Mapping;

use crate::data::Data;
use crate::registration::Registration;
use crate::registration::sealed::Region;
use crate::{Error, ErrorKind, World};

/// A vector of fixed length in host memory that ranks of this node can map. Made by [`World::shared_vec`].
///
/// Registered, it is the fastest target of one-sided operations: other ranks of the node store and load it by
/// themselves. Otherwise it is a vector: messages and puts from it take the ways of ordinary host memory. Ranks of other
/// nodes access it as any memory. A forked child finds zeros in it.
pub struct SharedVec<T> {
    storage: Storage<T>,
}

enum Storage<T> {
    /// `len` elements at the beginning of the mapping.
    Shared { mapping: Mapping, len: usize },
    /// Where no transport of the world shares memory.
    Plain(Vec<T>),
}

// SAFETY: it owns its elements, as a vector does.
unsafe impl<T: Send> Send for SharedVec<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedVec<T> {}

impl World {
    /// Allocates `len` zeros in host memory that ranks of this node can map, to be registered
    /// ([`register`](Self::register)). Takes whole pages.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let mut counters = world.shared_vec::<u64>(16)?;
    /// counters[0] = 7;
    /// let window = world.register(counters)?;
    /// # drop(window);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The length does not fit in the address space, the system has no memory, or the world was finalized.
    pub fn shared_vec<T: Data>(&self, len: usize) -> Result<SharedVec<T>, Error> {
        let too_long = || ErrorKind::BadBuffer(format!("{len} elements exceed the address space"));
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or_else(too_long)?;
        let storage = match self.inner().engine.allocate_shared(bytes)? {
            // A page is aligned enough for every type of data that a compiler makes, but not for each that can be declared.
            Some(mapping) if mapping.address().cast::<T>().is_aligned() => Storage::Shared { mapping, len },
            _ => Storage::Plain(T::new_vec_zeroed(len).map_err(|_| too_long())?),
        };
        Ok(SharedVec { storage })
    }
}

impl<T: Data> Deref for SharedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.storage {
            // SAFETY: the elements lie in the mapping, were zeroed or written as such, and are aligned. Peers have no key of
            // memory that is not registered, and the value is borrowed.
            Storage::Shared { mapping, len } => unsafe {
                std::slice::from_raw_parts(mapping.address().cast::<T>().as_ptr(), *len)
            },
            Storage::Plain(elements) => elements,
        }
    }
}

impl<T: Data> DerefMut for SharedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.storage {
            // SAFETY: as above, and the value is borrowed exclusively.
            Storage::Shared { mapping, len } => unsafe {
                std::slice::from_raw_parts_mut(mapping.address().cast::<T>().as_ptr(), *len)
            },
            Storage::Plain(elements) => elements,
        }
    }
}

// SAFETY: the mapping stays where it is until the value is dropped, also if it is moved. Nobody else accesses the elements
// without their address, and any bytes are elements.
unsafe impl<T: Data> Region for SharedVec<T> {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        Ok((self.as_mut_ptr().cast(), size_of_val(&**self) as u64))
    }
}

impl<T: Data> Registration<SharedVec<T>> {
    /// Returns the memory.
    ///
    /// # Safety
    /// No peer writes the memory while the slice is borrowed.
    pub unsafe fn as_slice(&self) -> &[T] {
        self.memory()
    }

    /// Returns the memory.
    ///
    /// # Safety
    /// No peer accesses the memory while the slice is borrowed.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        self.memory_mut()
    }
}

impl<T> std::fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.storage {
            Storage::Shared { mapping, len } => write!(f, "SharedVec({len} elements, {mapping:?})"),
            Storage::Plain(elements) => write!(f, "SharedVec({} elements, not shared)", elements.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_zeros_and_keep_what_is_stored() {
        let world = World::init().unwrap();
        for len in [0, 1, 5000] {
            let mut numbers = world.shared_vec::<u32>(len).unwrap();
            assert!(numbers.len() == len && numbers.iter().all(|&number| number == 0));
            numbers.iter_mut().zip(0..).for_each(|(number, value)| *number = value);
            let window = world.register(numbers).unwrap();
            let numbers = window.into_memory();
            assert!(numbers.iter().copied().eq(0..len as u32));
        }
        assert!(world.shared_vec::<u64>(usize::MAX / 4).is_err());
    }
}
