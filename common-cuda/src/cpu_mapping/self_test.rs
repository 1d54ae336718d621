//! The self-test at a mapper's first use: the CPU writes internal memory and a copy engine reads it, and vice versa.

use super::words;
use crate::context::Context;
use crate::driver::{Driver, Failure, Mapper, Refusal};
use crate::order::DefaultStream;

/// The size of the memory, and the length of the test copies at unaligned addresses.
const LEN: usize = 1 << 20;
const TRIED: usize = 4096;
const OFFSETS: [usize; 3] = [0, 4093, LEN - TRIED];

/// The result of a mapper's self-test.
pub(super) enum Outcome {
    Passed,
    /// The default stream is busy, and an allocation might wait for it.
    NotNow,
    /// The mapper maps nothing here.
    Refused(String),
    /// One side did not read the bytes that the other side wrote.
    Failed(String),
}

/// Tests a mapper. The context is current.
pub(super) fn self_test(context: &Context, default_stream: &DefaultStream, mapper: &dyn Mapper) -> Outcome {
    let driver = context.driver;
    match default_stream.is_idle() {
        Ok(Some(true)) => {}
        Ok(_) => return Outcome::NotNow,
        Err(failure) => return Outcome::Refused(driver.reason(failure)),
    }
    let address = match driver.allocate(LEN) {
        Ok(address) => address,
        Err(failure) => return Outcome::Refused(driver.reason(failure)),
    };
    let outcome = match mapper.map(address, LEN) {
        Ok(view) => match try_both(driver, address, view.address()) {
            Ok(true) => Outcome::Passed,
            Ok(false) => Outcome::Failed("bytes differ between the CPU's view and the device's".to_owned()),
            Err(failure) => Outcome::Refused(driver.reason(failure)),
        },
        Err(Refusal::Allocation(reason) | Refusal::All(reason)) => Outcome::Refused(reason),
    };
    // SAFETY: this function owns the memory, has unmapped it, and has given its address to nobody.
    if let Err(failure) = unsafe { driver.free(address) } {
        log::debug!("freeing the memory of a self-test: {}", driver.reason(failure));
    }
    outcome
}

/// Checks whether both sides read what the other has written.
fn try_both(driver: &dyn Driver, address: u64, view: *mut u8) -> Result<bool, Failure> {
    for (round, offset) in OFFSETS.into_iter().enumerate() {
        let device: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize + offset);
        let pattern = |salt: usize| -> Vec<u8> {
            (0..TRIED).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ ((round * 2 + salt) * 77)) as u8).collect()
        };
        let mut read = vec![0_u8; TRIED];
        let stored = pattern(0);
        // SAFETY: `TRIED` bytes at the offset lie in the allocation and in its view, which nobody else touches.
        unsafe {
            words::store(view.add(offset), stored.as_ptr(), TRIED);
            driver.read(read.as_mut_ptr(), device, TRIED)?;
        }
        if read != stored {
            return Ok(false);
        }
        let written = pattern(1);
        read.fill(0);
        // SAFETY: as above. The synchronous copy has arrived when the stream that it is ordered in is done.
        unsafe {
            driver.write(device, written.as_ptr(), TRIED)?;
            driver.synchronise(driver.default_stream())?;
            words::load(read.as_mut_ptr(), view.add(offset), TRIED);
        }
        if read != written {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::double;
    use crate::driver::{ContextHandle, View};

    /// Maps memory this many bytes behind the allocation, or other memory.
    struct Shifted(Option<usize>);

    struct Bytes(usize, #[expect(dead_code, reason = "kept until it is unmapped")] Vec<u8>);

    impl View for Bytes {
        fn address(&self) -> *mut u8 {
            std::ptr::with_exposed_provenance_mut(self.0)
        }
    }

    impl Mapper for Shifted {
        fn name(&self) -> &'static str {
            "shifted"
        }

        fn map(&self, base: u64, len: usize) -> Result<Box<dyn View>, Refusal> {
            let mut other = vec![0; len];
            let address = match self.0 {
                Some(shift) => double::reachable(base + shift as u64),
                None => other.as_mut_ptr(),
            };
            Ok(Box::new(Bytes(address.expose_provenance(), other)))
        }
    }

    struct Refusing;

    impl Mapper for Refusing {
        fn name(&self) -> &'static str {
            "refusing"
        }

        fn map(&self, _: u64, _: usize) -> Result<Box<dyn View>, Refusal> {
            Err(Refusal::Allocation("no".to_owned()))
        }
    }

    #[test]
    fn a_mapper_that_maps_other_memory_fails() {
        let driver = double::driver();
        let context = Arc::new(Context::new(driver, ContextHandle(1), 1));
        let default_stream = DefaultStream::new(context.clone(), Arc::default());
        let test = |mapper: &dyn Mapper| self_test(&context, &default_stream, mapper);
        assert!(matches!(test(&Shifted(Some(0))), Outcome::Passed));
        assert!(matches!(test(&Shifted(None)), Outcome::Failed(_)));
        assert!(matches!(test(&Refusing), Outcome::Refused(_)));
    }
}
