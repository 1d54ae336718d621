//! Buffers for fragments, and for messages that do not fit the receive buffer, in a few sizes. They are registered with
//! the driver once a device is in use.

use std::sync::Arc;

use cableway_btl::Error;
pub(crate) use cableway_common_cuda::BounceBuffer as Buffer;
use cableway_common_cuda::{BouncePool, Devices};

use crate::{NAME, invalid};

/// The callers limit the buffers in use: fragments for each link, and one arriving message for each connection.
const NO_LIMIT: usize = usize::MAX;

/// Buffers in a few sizes.
pub(crate) struct Pool {
    classes: Vec<BouncePool>,
}

impl Pool {
    /// Creates a pool of buffers for each of `sizes`.
    pub(crate) fn new(devices: &Devices, mut sizes: Vec<usize>) -> Arc<Self> {
        sizes.sort_unstable();
        let mut classes: Vec<BouncePool> = sizes.iter().map(|&size| BouncePool::new(devices, size, NO_LIMIT)).collect();
        classes.dedup_by_key(|class| class.chunk_size());
        Arc::new(Pool { classes })
    }

    /// Returns a buffer of at least `len` bytes.
    ///
    /// # Errors
    /// The length exceeds all of the pool's sizes, or memory is exhausted.
    pub(crate) fn take(&self, len: usize) -> Result<Buffer, Error> {
        let class = self
            .classes
            .iter()
            .find(|class| class.chunk_size() >= len)
            .ok_or_else(|| invalid("alloc", format!("{len} bytes are more than the largest fragment")))?;
        class.take().ok_or_else(|| {
            let what = format!("a buffer of {} bytes", class.chunk_size());
            Error::system(NAME, what, std::io::ErrorKind::OutOfMemory.into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_the_smallest_that_fit() {
        let pool = Pool::new(&Devices::none(), vec![70_000, 100, 4000]);
        let small = pool.take(100).unwrap().len();
        assert!((4000..70_000).contains(&small));
        assert!(pool.take(small + 1).unwrap().len() >= 70_000);
        assert!(pool.take(1 << 20).is_err());
    }
}
