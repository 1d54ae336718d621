//! The fragments of one link: their limits, and their buffers.

use std::ptr::NonNull;
use std::sync::Arc;

use cableway_btl::{Error, Fragment, FragmentKind, FragmentOwner, MAX_HEADER};
use parking_lot::Mutex;
use slab::Slab;

use crate::pool::{Buffer, Pool};
use crate::settings::Settings;

/// The number of host fragments of one link that may be allocated or unwritten.
const HOST_FRAGMENTS: usize = 16;
/// The number of small device fragments for each large one, so that a window of messages can be in flight.
const DEVICE_SMALL_SHARE: usize = 8;
/// The data of a small device fragment.
const DEVICE_SMALL: usize = 64 << 10;

pub(crate) struct Fragments {
    pool: Arc<Pool>,
    max_host: usize,
    max_device: usize,
    device_fragments: usize,
    out: Mutex<Out>,
}

#[derive(Default)]
struct Out {
    buffers: Slab<(Buffer, Class)>,
    /// The number of allocated and unwritten fragments of each class.
    counts: [usize; 3],
}

/// Fragments with a common limit.
#[derive(Clone, Copy)]
enum Class {
    Host,
    SmallDevice,
    Device,
}

impl Fragments {
    pub(crate) fn new(pool: Arc<Pool>, settings: &Settings) -> Arc<Self> {
        Arc::new(Fragments {
            pool,
            max_host: settings.max_send_size,
            max_device: settings.device_max_send_size,
            device_fragments: settings.device_fragments,
            out: Mutex::default(),
        })
    }

    /// Allocates a fragment. Returns `None` at the limit.
    ///
    /// # Errors
    /// The length exceeds the largest fragment, or memory is exhausted.
    pub(crate) fn take(self: &Arc<Self>, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let (class, most, longest) = match kind {
            FragmentKind::Host | FragmentKind::Streamed => (Class::Host, HOST_FRAGMENTS, self.max_host),
            FragmentKind::Device if len <= DEVICE_SMALL + MAX_HEADER => {
                (Class::SmallDevice, self.device_fragments.saturating_mul(DEVICE_SMALL_SHARE), self.max_device)
            }
            FragmentKind::Device => (Class::Device, self.device_fragments, self.max_device),
        };
        if len > longest {
            return Err(crate::invalid("alloc", format!("{len} bytes where a fragment has at most {longest}")));
        }
        let mut out = self.out.lock();
        if out.counts[class as usize] >= most {
            return Ok(None);
        }
        let mut buffer = self.pool.take(len)?;
        let (memory, capacity) = (NonNull::from(&mut *buffer).cast(), buffer.len());
        out.counts[class as usize] += 1;
        let key = out.buffers.insert((buffer, class)) as u64;
        let owner: Arc<dyn FragmentOwner> = Arc::clone(self) as _;
        // SAFETY: the buffer is out of the pool, and reachable only through `key`, until this fragment is sent or
        // given back.
        Ok(Some(unsafe { Fragment::new(memory, capacity.min(longest), key, owner) }))
    }

    /// Returns the buffer of a fragment of this link that will be sent. Dropping it makes room for another fragment.
    pub(crate) fn redeem(&self, key: u64) -> Option<Buffer> {
        let mut out = self.out.lock();
        let (buffer, class) = out.buffers.try_remove(usize::try_from(key).ok()?)?;
        out.counts[class as usize] -= 1;
        Some(buffer)
    }
}

impl FragmentOwner for Fragments {
    fn give_back(&self, _memory: NonNull<u8>, key: u64) {
        drop(self.redeem(key));
    }
}
