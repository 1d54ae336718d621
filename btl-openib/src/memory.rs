//! Memory of this transport: mappings that are registered with NIC and GPU driver, and the buffers in them.

use std::io;
use std::os::linux::fs::MetadataExt as _;
use std::ptr::NonNull;
use std::sync::Arc;

use cableway_btl::Error;
use cableway_common_cuda::{Devices, HostRegistration};
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::thread::{CapabilitySet, capabilities};

use crate::NAME;
use crate::verbs::{Access, MemoryRegion, Protection};

const PAGE: usize = 4096;

/// An anonymous mapping, registered with the NIC and, once a GPU is in use, with its driver. Both access the same
/// pages, so no copy between them is needed. Fields drop in this order.
pub(crate) struct Slab {
    region: MemoryRegion,
    _registration: HostRegistration,
    mapping: Mapping,
}

impl Slab {
    /// # Errors
    /// Memory is exhausted, or the limit of locked memory is too low.
    pub(crate) fn new(
        protection: &Arc<Protection>,
        devices: &Devices,
        len: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let len = len.next_multiple_of(PAGE);
        let mapping = Mapping::new(len)
            .map_err(|error| Error::system(NAME, format!("cannot map buffers of {len} bytes"), error))?;
        // SAFETY: the range stays mapped until both registrations are gone.
        let region = unsafe { MemoryRegion::new(protection, mapping.address.as_ptr(), len, access) }
            .map_err(|error| refused(len, error))?;
        // SAFETY: as above.
        let registration = unsafe { devices.register_host(mapping.address.as_ptr(), len) };
        Ok(Slab { region, _registration: registration, mapping })
    }

    pub(crate) fn address(&self) -> NonNull<u8> {
        self.mapping.address
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }
}

/// Explains why memory could not be registered, and the remedy.
pub(crate) fn refused(len: usize, error: io::Error) -> Error {
    if error.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) {
        let limit = memlock().map_or_else(|| "unlimited".to_owned(), |bytes| format!("{bytes} bytes"));
        let reason = format!(
            "{error}; a process may lock {limit} of memory: raise it with 'ulimit -l unlimited', or memlock in \
             /etc/security/limits.conf, or LimitMEMLOCK where a service starts the job"
        );
        return Error::system(NAME, format!("cannot register {len} bytes"), io::Error::new(error.kind(), reason));
    }
    Error::system(NAME, format!("cannot register {len} bytes"), error)
}

/// Returns the limit of locked memory of this process, or `None` if there is none.
pub(crate) fn lock_limit() -> Option<u64> {
    memlock().filter(|_| !may_lock_all())
}

fn memlock() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}

/// Returns whether this process is exempt from the limit. It needs the capability in the first user namespace;
/// capabilities in its own namespace have no effect here.
fn may_lock_all() -> bool {
    /// The inode of the first user namespace, the same in every Linux (`PROC_USER_INIT_INO`).
    const FIRST: u64 = 0xefff_fffd;
    let capable = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    capable && std::fs::metadata("/proc/self/ns/user").is_ok_and(|namespace| namespace.st_ino() == FIRST)
}

/// Returns how much of `wanted` optional bytes may be locked, so that as much is left for necessary memory.
pub(crate) fn lockable(wanted: usize) -> usize {
    lock_limit().map_or(wanted, |limit| wanted.min(usize::try_from(limit / 2).unwrap_or(wanted)))
}

/// Memory that forked children do not inherit. Kernels before 5.12 share its pages copy-on-write: the first writer,
/// even the parent, gets a copy, and the device keeps writing to the old page.
struct Mapping {
    address: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to whoever owns this value, on whatever thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives out the address only; what happens there is its user's concern.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let mapping = Mapping { address: NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len };
        // SAFETY: our own mapping, whose pages stay as they are here.
        if let Err(errno) = unsafe { madvise(address, len, Advice::LinuxDontFork) } {
            log::info!("{NAME}: buffers of {len} bytes cannot be kept from children: {errno}");
        }
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and nobody uses it after its owner is gone.
        if let Err(errno) = unsafe { munmap(self.address.as_ptr().cast(), self.len) } {
            log::warn!("{NAME}: cannot unmap buffers of {} bytes: {errno}", self.len);
        }
    }
}

/// Send buffers in a few sizes. The pool grows by doubling and keeps its memory.
pub(crate) struct Pool {
    protection: Arc<Protection>,
    devices: Devices,
    classes: Vec<Class>,
}

struct Class {
    len: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<Chunk>,
    /// Kept for the mappings and registrations.
    slabs: Vec<Slab>,
    chunks: usize,
}

#[derive(Clone, Copy)]
struct Chunk {
    address: NonNull<u8>,
    key: u32,
}

// SAFETY: the memory of a chunk belongs to whoever has taken it from the pool.
unsafe impl Send for Chunk {}
// SAFETY: as for `Mapping`.
unsafe impl Sync for Chunk {}

/// A buffer of the pool. Dropping it returns it.
pub(crate) struct Buffer {
    chunk: Chunk,
    class: usize,
    pool: Arc<Pool>,
}

impl Pool {
    /// The number of buffers in the first slab of a size.
    const FIRST: usize = 8;

    /// Creates a pool of buffers for each of `sizes`, in rising order.
    pub(crate) fn new(protection: &Arc<Protection>, devices: &Devices, sizes: &[usize]) -> Arc<Self> {
        let class = |len: &usize| Class { len: len.next_multiple_of(64), state: Mutex::default() };
        Arc::new(Pool {
            protection: Arc::clone(protection),
            devices: devices.clone(),
            classes: sizes.iter().map(class).collect(),
        })
    }

    /// Returns a buffer of at least `len` bytes.
    ///
    /// # Errors
    /// The length exceeds all sizes, or memory is exhausted.
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Result<Buffer, Error> {
        let Some(index) = self.classes.iter().position(|class| class.len >= len) else {
            return Err(crate::invalid("alloc", format!("{len} bytes are more than the largest fragment")));
        };
        let class = &self.classes[index];
        let mut state = class.state.lock();
        if state.free.is_empty() {
            let more = state.chunks.max(Self::FIRST);
            let slab = Slab::new(&self.protection, &self.devices, more * class.len, Access::LocalWrite)?;
            let key = slab.region().local_key();
            for place in (0..more).rev() {
                // SAFETY: within the slab, which has `more` chunks.
                let address = unsafe { slab.address().add(place * class.len) };
                state.free.push(Chunk { address, key });
            }
            state.chunks += more;
            state.slabs.push(slab);
        }
        let chunk = state.free.pop().ok_or_else(|| crate::invalid("alloc", "there is no buffer"))?;
        Ok(Buffer { chunk, class: index, pool: Arc::clone(self) })
    }
}

impl Buffer {
    #[inline]
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.chunk.address
    }

    #[inline]
    pub(crate) fn key(&self) -> u32 {
        self.chunk.key
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.pool.classes[self.class].len
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The buffer that was used last is likely to be in a cache.
        self.pool.classes[self.class].state.lock().free.push(self.chunk);
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities};

    #[test]
    fn a_low_memory_lock_limit_causes_a_warning_with_the_remedy() {
        let error = std::io::Error::from_raw_os_error(rustix::io::Errno::NOMEM.raw_os_error());
        let said = super::refused(1 << 20, error).to_string();
        assert!(said.contains("1048576 bytes") && said.contains("ulimit -l unlimited"), "{said}");
    }

    #[test]
    fn buffers_are_kept_from_children() {
        let mapping = super::Mapping::new(3 * super::PAGE).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let address = mapping.address.as_ptr() as usize;
        let holds = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let end = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(first, last)| Some(address) >= end(first) && Some(address) < end(last))
        };
        let flags = maps.lines().skip_while(|line| !holds(line)).find_map(|line| line.strip_prefix("VmFlags:"));
        assert!(flags.is_some_and(|flags| flags.split(' ').any(|flag| flag == "dc")), "{flags:?}");
    }

    /// Without the capability the limit applies to root, too.
    #[test]
    fn the_limit_applies_without_the_capability() {
        // Limits belong to the process, capabilities to a thread.
        let before = getrlimit(Resource::Memlock);
        let low = before.maximum.unwrap_or(64 << 10).min(64 << 10);
        setrlimit(Resource::Memlock, Rlimit { current: Some(low), ..before }).unwrap();
        let limits = std::thread::spawn(|| {
            let had = (super::lock_limit(), super::lockable(1 << 30));
            let mut sets = capabilities(None).unwrap();
            sets.effective -= CapabilitySet::IPC_LOCK;
            // SAFETY: no other thread counts on this one's capabilities.
            rustix::thread::set_capabilities(None, sets).unwrap();
            (had, super::lock_limit(), super::lockable(1 << 30))
        });
        let (had, limit, lockable) = limits.join().unwrap();
        setrlimit(Resource::Memlock, before).unwrap();
        assert_eq!((limit, lockable), (Some(low), low as usize / 2));
        let free = (None, 1 << 30);
        assert!(had == free || had == (limit, lockable), "{had:?}");
    }
}
