//! Registered memory: memory that other ranks read and write by one-sided operations.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use cableway_base::Rank;
use cableway_common_cuda::{DeviceBuffer, MemoryClass};
use cableway_pml::{Registered, RemoteKey};

use crate::buffer::{RawBuffer, RecvBuffer, SendBuffer};
use crate::data::Data;
use crate::device::DeviceVec;
use crate::inner::Inner;
use crate::one_sided;
use crate::world::World;
use crate::{Error, ErrorKind};

/// Memory that can be registered: a vector, a [`SharedVec`](crate::SharedVec), a [`DeviceVec`] or [`DeviceBuffer`], or any memory by its address ([`RawMemory`], `unsafe`). A
/// slice is registered in a scope ([`Scope::register`](crate::Scope::register)).
pub trait Register: sealed::Region {}

impl<M: sealed::Region> Register for M {}

pub(crate) mod sealed {
    /// # Safety
    /// The bytes stay allocated at this address until the value is dropped, even if it is moved. Nobody accesses them
    /// without its address or an `unsafe` call meanwhile, and any bytes may be stored there.
    pub unsafe trait Region {
        fn region(&mut self) -> Result<(*mut u8, u64), crate::Error>;
    }
}

// SAFETY: a vector owns its allocation, which stays where it is when the vector is moved. The registration keeps the
// vector to itself.
unsafe impl<T: Data> sealed::Region for Vec<T> {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        Ok((self.as_mut_ptr().cast(), size_of_val(self.as_slice()) as u64))
    }
}

// SAFETY: as the vector.
unsafe impl sealed::Region for DeviceBuffer {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        Ok((self.as_device_ptr(), self.len() as u64))
    }
}

// SAFETY: as the vector.
unsafe impl<T: Data> sealed::Region for DeviceVec<T> {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        Ok((self.as_device_ptr().cast(), (self.len() * size_of::<T>()) as u64))
    }
}

// SAFETY: the caller of the constructor promised it.
unsafe impl sealed::Region for RawMemory {
    fn region(&mut self) -> Result<(*mut u8, u64), Error> {
        Ok((self.address, self.len))
    }
}

/// Host or device memory by its address, to be registered.
#[derive(Clone, Copy, Debug)]
pub struct RawMemory {
    address: *mut u8,
    len: u64,
}

// SAFETY: an address; the promise given to its constructor holds on every thread.
unsafe impl Send for RawMemory {}
// SAFETY: as above.
unsafe impl Sync for RawMemory {}

impl RawMemory {
    /// Describes `len` bytes at `address`.
    ///
    /// # Safety
    /// Until every registration of this memory has been dropped, the memory stays allocated, and peers may read and write
    /// it at any time. The program accesses it only as it would access memory that another thread writes.
    pub unsafe fn new(address: *mut c_void, len: u64) -> Self {
        RawMemory { address: address.cast(), len }
    }
}

impl World {
    /// Registers memory, so that ranks that get its [`key`](RegisteredMemory::key) can read and write it. Looks up once
    /// where the memory resides. Parts of it need no registration of their own. One buffer can be registered many times.
    ///
    /// The registration owns the memory. While peers may write it, this rank reads it by
    /// [`load`](RegisteredMemory::load) and [`read`](RegisteredMemory::read), or by `unsafe` calls.
    /// [`into_memory`](Registration::into_memory) ends the registration and returns the memory.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), cableway::Error> {
    /// let world = cableway::World::init()?;
    /// let everyone = world.communicator();
    /// let window = world.register(vec![0_u64; 100])?;
    /// let mut keys = vec![cableway::RemoteKey::default(); everyone.size() as usize];
    /// everyone.allgather(&[*window.key()], &mut keys)?;
    /// let next = (everyone.rank() + 1) % everyone.size();
    /// everyone.put(&[u64::from(everyone.rank())], keys[next as usize].at(8))?;
    /// everyone.barrier()?;
    /// let values = window.into_memory();
    /// # drop(values);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The memory lies in several allocations, or the world was finalized.
    pub fn register<M: Register>(&self, mut memory: M) -> Result<Registration<M>, Error> {
        let (address, len) = memory.region()?;
        // SAFETY: the registration owns the memory, and ends before it is dropped or returned.
        let registered = unsafe { RegisteredMemory::new(self.inner(), address, len)? };
        Ok(Registration { registered, memory })
    }
}

/// Registered memory, as its owner uses it. May be used from any thread.
pub struct RegisteredMemory {
    registered: Registered,
    world: Arc<Inner>,
}

impl RegisteredMemory {
    /// # Safety
    /// As [`RawMemory::new`], until the value is dropped or ended.
    unsafe fn new(world: &Arc<Inner>, address: *mut u8, len: u64) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        let registered = unsafe { world.one_sided.register(address, len)? };
        Ok(RegisteredMemory { registered, world: world.clone() })
    }

    pub(crate) fn raw(&self) -> &Registered {
        &self.registered
    }

    /// Returns the key, to be sent to the ranks that may access the memory. It is plain [`Data`].
    pub fn key(&self) -> &RemoteKey {
        self.registered.key()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.key().len()
    }

    /// Returns whether the memory has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the class of the memory.
    pub fn class(&self) -> MemoryClass {
        self.registered.location().class
    }

    /// Reads the word of 8 bytes at `offset` atomically. The data of a put whose signal it has seen can be read
    /// afterwards. On a device this takes a copy.
    ///
    /// # Errors
    /// The word is not within the memory or is misaligned, or the device driver refused.
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        Ok(self.registered.load(offset)?)
    }

    /// Waits until `over` returns true for the word of 8 bytes at `offset`, for example a signal that rank `from` of the
    /// job gives. Returns the word.
    ///
    /// # Errors
    /// As [`load`](Self::load), or rank `from` died or left and `over` returns false.
    pub fn wait_until(&self, offset: u64, from: Rank, over: impl FnMut(u64) -> bool) -> Result<u64, Error> {
        Ok(self.world.one_sided.wait_for_word(&self.registered, offset, from, over)?)
    }

    /// Copies bytes from `offset` on to `into`, as a get of another rank does: bytes that a peer writes meanwhile may be
    /// old or new.
    ///
    /// # Errors
    /// The bytes are not within the memory, or the device driver refused.
    pub fn read(&self, offset: u64, into: &mut (impl RecvBuffer + ?Sized)) -> Result<(), Error> {
        one_sided::get(&self.world, into, self.key().at(offset).into(), None)
    }

    /// Copies `from` to the bytes from `offset` on, as a put of another rank does.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, from: &(impl SendBuffer + ?Sized)) -> Result<(), Error> {
        one_sided::put(&self.world, from, self.key().at(offset).into(), None)
    }

    /// Describes `len` bytes from `offset` on, to send from or to receive into without a copy.
    ///
    /// # Safety
    /// While the value is borrowed for a send, no peer writes the bytes. While it is borrowed for a receive, no peer
    /// accesses them.
    ///
    /// # Errors
    /// The bytes are not within the memory.
    pub unsafe fn buffer(&self, offset: u64, len: u64) -> Result<RawBuffer<'_>, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let registered = self.len();
            let text = format!("{len} bytes at offset {offset} exceed the registered memory of {registered} bytes");
            return Err(ErrorKind::BadBuffer(text).into());
        }
        let address = self.registered.address().wrapping_add(offset as usize);
        // SAFETY: in bounds of memory that stays allocated; the caller's promise covers the rest.
        Ok(unsafe { RawBuffer::new(address.cast(), len) })
    }
}

impl std::fmt::Debug for RegisteredMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.registered.fmt(f)
    }
}

/// A registration that owns its memory. Made by [`World::register`].
///
/// The drop ends the registration: it refuses later accesses, waits for those under way, and frees the memory. It must
/// not be dropped in a handler of active messages, because it waits.
#[derive(Debug)]
pub struct Registration<M> {
    // Dropped first, so that nobody reaches the memory when it is freed.
    registered: RegisteredMemory,
    memory: M,
}

impl<M> Registration<M> {
    /// Ends the registration and returns the memory. Waits for accesses under way.
    pub fn into_memory(self) -> M {
        let Registration { registered, memory } = self;
        drop(registered);
        memory
    }
}

impl<M> Registration<M> {
    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }
}

impl<T: Data> Registration<Vec<T>> {
    /// Returns the memory.
    ///
    /// # Safety
    /// No peer writes the memory while the slice is borrowed.
    pub unsafe fn as_slice(&self) -> &[T] {
        &self.memory
    }

    /// Returns the memory.
    ///
    /// # Safety
    /// No peer accesses the memory while the slice is borrowed.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.memory
    }
}

impl<M> Deref for Registration<M> {
    type Target = RegisteredMemory;

    fn deref(&self) -> &RegisteredMemory {
        &self.registered
    }
}

/// A registration of borrowed memory. Made by [`Scope::register`](crate::Scope::register), whose end ends it.
#[derive(Clone, Debug)]
pub struct ScopedRegistration<'scope> {
    registered: Arc<RegisteredMemory>,
    borrowed: PhantomData<&'scope ()>,
}

impl Deref for ScopedRegistration<'_> {
    type Target = RegisteredMemory;

    fn deref(&self) -> &RegisteredMemory {
        &self.registered
    }
}

/// The registrations of a scope. Dropping the list ends them, even if the program leaked its own values.
#[derive(Default)]
pub(crate) struct RegistrationList {
    list: std::cell::RefCell<Vec<Arc<RegisteredMemory>>>,
}

impl RegistrationList {
    /// Registers memory until the list is dropped.
    ///
    /// # Safety
    /// As [`RawMemory::new`], until the list is dropped.
    pub(crate) unsafe fn add<'scope>(
        &self,
        world: &Arc<Inner>,
        address: *mut u8,
        len: u64,
    ) -> Result<ScopedRegistration<'scope>, Error> {
        // SAFETY: the caller's promise.
        let registered = Arc::new(unsafe { RegisteredMemory::new(world, address, len)? });
        self.list.borrow_mut().push(registered.clone());
        Ok(ScopedRegistration { registered, borrowed: PhantomData })
    }
}

impl Drop for RegistrationList {
    fn drop(&mut self) {
        self.list.get_mut().iter().for_each(|one| one.registered.end());
    }
}
