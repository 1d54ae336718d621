//! The fragments of one link: how many may be out, and which buffer each is.

use std::ptr::NonNull;
use std::sync::Arc;

use cableway_btl::{Error, Fragment, FragmentKind, FragmentOwner, MAX_HEADER};
use parking_lot::Mutex;
use slab::Slab;

use crate::pool::{Buffer, Pool};
use crate::settings::Settings;

/// Host fragments of one link that may be out or wait to be written.
const HOST_FRAGMENTS: usize = 16;
/// Small device fragments, for each large one, so that a window of messages is under way together.
const DEVICE_SMALL_SHARE: usize = 8;
/// Data of a small device fragment, at most.
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
    /// Fragments given out and not yet written, by class.
    counts: [usize; 3],
}

/// What is limited apart.
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

    /// A fragment; none if as many as may be are out.
    ///
    /// # Errors
    /// Longer than a fragment may be, or out of memory.
    pub(crate) fn take(self: &Arc<Self>, len: usize, kind: FragmentKind) -> Result<Option<Fragment>, Error> {
        let (class, most, longest) = match kind {
            FragmentKind::Host => (Class::Host, HOST_FRAGMENTS, self.max_host),
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

    /// The buffer of a fragment of this link that is to be sent; what is dropped is free to be taken again.
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
