//! Mappings of other processes' memory.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;

use crate::context::{Context, Scope};
use crate::driver::{Driver, Failure, FailureKind, Pool};
use crate::error::DeviceError;
use crate::exported::{ExportKind, Exported, PieceDescriptor};
use crate::mapping_gate::Gate;

/// Another process's allocation, or its pool. Dropping it ends the mapping, or has the gate end it later.
pub(crate) struct Mapping {
    context: Arc<Context>,
    gate: Arc<Gate>,
    mapped: Mapped,
}

enum Mapped {
    /// By a handle.
    Opened { address: u64 },
    /// Physical memory by descriptors.
    Physical { address: u64, len: usize },
    /// A pool, which stays imported. An allocation in it is imported only while a message is copied. The copier drops it
    /// before it reports the end of the message: the owner may then free the allocation, and the driver requires that
    /// each importer has freed it first. Freeing such memory neither waits nor orders anything.
    Pool {
        pool: Pool,
        /// By their owner's ids. Locked during import and free, so that no allocation is imported twice at a time.
        in_use: Mutex<AHashMap<u64, InUse>>,
    },
    /// An allocation in a pool, while it is in use.
    InPool { pool: Arc<Mapping>, buffer_id: u64, address: u64 },
    /// Only during the drop.
    Closed,
}

struct InUse {
    address: u64,
    /// The driver's id of it in this process.
    id: Option<u64>,
    len: u64,
    users: usize,
}

impl Mapping {
    /// Maps an export into a context, with its descriptors. The caller has entered the gate.
    pub(crate) fn open(
        context: Arc<Context>,
        gate: Arc<Gate>,
        exported: &Exported,
        given: &[PieceDescriptor],
    ) -> Result<Arc<Mapping>, DeviceError> {
        let mapped = match exported.kind {
            ExportKind::Legacy | ExportKind::Hip => open_handle(&context, exported),
            ExportKind::Descriptor => map_descriptors(&context, exported, given),
            ExportKind::Pool => import_pool(&context, given),
        }?;
        Ok(Arc::new(Mapping { context, gate, mapped }))
    }

    /// Returns the address of the first byte; null for a pool.
    pub(crate) fn address(&self) -> *mut u8 {
        let (Mapped::Opened { address } | Mapped::Physical { address, .. } | Mapped::InPool { address, .. }) =
            self.mapped
        else {
            return std::ptr::null_mut();
        };
        std::ptr::with_exposed_provenance_mut(address as usize)
    }

    /// Maps an exported allocation within this pool. Its owner may free the allocation after the last of these mappings
    /// is dropped.
    pub(crate) fn within(self: Arc<Self>, exported: &Exported) -> Result<Arc<Mapping>, DeviceError> {
        let object = || format!("{} bytes of a memory pool of another process", exported.len);
        let refused = |call, reason: &str| DeviceError { call, object: object(), reason: reason.to_owned() };
        let Mapped::Pool { pool, in_use } = &self.mapped else {
            return Err(refused("within", "the mapping is not a pool"));
        };
        let mut in_use = in_use.lock();
        let address = match in_use.get_mut(&exported.buffer_id) {
            Some(found) if found.len == exported.len => {
                found.users += 1;
                found.address
            }
            Some(_) => return Err(refused("import_pointer", "its length has changed")),
            None => {
                let driver = self.context.driver;
                let imported = self.context.enter().and_then(|_scope| import_pointer(driver, pool, exported));
                let address = imported.map_err(|failure| driver.error(failure, object()))?;
                let id = driver.buffer_id(address);
                in_use.insert(exported.buffer_id, InUse { address, id, len: exported.len, users: 1 });
                address
            }
        };
        drop(in_use);
        let (context, gate) = (self.context.clone(), self.gate.clone());
        let mapped = Mapped::InPool { pool: self, buffer_id: exported.buffer_id, address };
        Ok(Arc::new(Mapping { context, gate, mapped }))
    }

    /// Releases an allocation of a pool.
    fn release(&self, buffer_id: u64) {
        let Mapped::Pool { in_use, .. } = &self.mapped else { return };
        let mut in_use = in_use.lock();
        let Some(found) = in_use.get_mut(&buffer_id) else { return };
        found.users -= 1;
        if found.users != 0 {
            return;
        }
        let Some(InUse { address, id, .. }) = in_use.remove(&buffer_id) else { return };
        // If the context is destroyed, the device may have been reset, and the address may belong to another
        // allocation.
        let Some(_scope) = calls(&self.context) else { return };
        if id.is_some() && self.context.driver.buffer_id(address) == id {
            free(self.context.driver, address);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let context = self.context.clone();
        match std::mem::replace(&mut self.mapped, Mapped::Closed) {
            Mapped::Opened { address } => self.gate.close(move || close_handle(&context, address)),
            Mapped::Physical { address, len } => self.gate.close(move || unmap(&context, address, len)),
            Mapped::Pool { pool, .. } => self.gate.close(move || destroy_pool(&context, pool)),
            // The owner may free it as soon as the message is over.
            Mapped::InPool { pool, buffer_id, .. } => pool.release(buffer_id),
            Mapped::Closed => {}
        }
    }
}

/// Ends a mapping by a handle, which nobody uses.
fn close_handle(context: &Context, address: u64) {
    let driver = context.driver;
    // SAFETY: opened once in this context; each copy from or to it holds the mapping.
    let closed = context.enter().and_then(|_scope| unsafe { driver.close_handle(address) });
    match closed {
        Ok(()) => {}
        // The destroyed context has released it.
        Err(failure) if failure.context_gone() || failure.kind == FailureKind::InvalidValue => {}
        Err(failure) => {
            log::debug!("closing a mapping of another process's memory: {}", driver.reason(failure));
        }
    }
}

/// Ends a mapping of physical memory, which nobody uses.
fn unmap(context: &Context, address: u64, len: usize) {
    // The mapping belongs to no context, but the driver requires a current one.
    let _scope = context.enter();
    // SAFETY: mapped once; each copy from or to it holds the mapping.
    if let Err(failure) = unsafe { context.driver.unmap(address, len, len) } {
        log::debug!("unmapping another process's memory: {}", context.driver.reason(failure));
    }
}

/// Ends the import of a pool, none of whose allocations is in use.
fn destroy_pool(context: &Context, pool: Pool) {
    // A device reset destroys its pools, whose handles may belong to other pools by now.
    if let Some(_scope) = calls(context)
        && context.alive()
        && let Err(failure) = context.driver.destroy_pool(pool)
    {
        log::debug!("destroying a memory pool: {}", context.driver.reason(failure));
    }
}

fn open_handle(context: &Arc<Context>, exported: &Exported) -> Result<Mapped, DeviceError> {
    let driver = context.driver;
    let object = || format!("{} bytes of another process", exported.len);
    let opened = context.enter().and_then(|_scope| driver.open_handle(&exported.handle));
    // Codes that elsewhere report the end of a context mean here that the handle is not for this process or context.
    let address = opened.map_err(|failure| driver.error(failure, object()))?;
    if !holds(driver, address, exported.len) {
        close_handle(context, address);
        let reason = "the opened allocation is shorter than its owner reported".to_owned();
        return Err(DeviceError { call: "open_handle", object: object(), reason });
    }
    Ok(Mapped::Opened { address })
}

/// Maps the memory of the descriptors side by side.
fn map_descriptors(context: &Context, exported: &Exported, given: &[PieceDescriptor]) -> Result<Mapped, DeviceError> {
    let driver = context.driver;
    let object = || format!("{} bytes of another process", exported.len);
    let refused = |reason: &str| {
        let reason = reason.to_owned();
        DeviceError { call: "map_descriptors", object: object(), reason }
    };
    let whole = given.iter().try_fold(0_u64, |whole, piece| whole.checked_add(piece.len));
    if whole != Some(exported.len) || given.iter().any(|piece| piece.len == 0) {
        return Err(refused("the total length of its descriptors differs"));
    }
    let len = usize::try_from(exported.len).map_err(|_| refused("its length exceeds the address space"))?;
    let opened = context.enter().and_then(|_scope| driver.map_descriptors(given, driver.current_device()?));
    let address = opened.map_err(|failure| driver.error(failure, object()))?;
    Ok(Mapped::Physical { address, len })
}

/// Imports the pool of the descriptor, for the device of a context.
fn import_pool(context: &Context, given: &[PieceDescriptor]) -> Result<Mapped, DeviceError> {
    use std::os::fd::AsFd;
    let driver = context.driver;
    let object = || "a memory pool of another process".to_owned();
    let [PieceDescriptor { descriptor, .. }] = given else {
        let reason = "its descriptor is missing".to_owned();
        return Err(DeviceError { call: "import_pool", object: object(), reason });
    };
    let opened = context.enter().and_then(|_scope| driver.import_pool(descriptor.as_fd(), driver.current_device()?));
    let pool = opened.map_err(|failure| driver.error(failure, object()))?;
    Ok(Mapped::Pool { pool, in_use: Mutex::default() })
}

/// The context is current.
fn import_pointer(driver: &dyn Driver, pool: &Pool, exported: &Exported) -> Result<u64, Failure> {
    let address = driver.import_pointer(pool, &exported.handle)?;
    if holds(driver, address, exported.len) {
        return Ok(address);
    }
    free(driver, address);
    Err(Failure::found("import_pointer", FailureKind::InvalidValue))
}

/// Checks whether this many bytes exist at an address, as the driver reports.
fn holds(driver: &dyn Driver, address: u64, len: u64) -> bool {
    let Ok((base, mapped)) = driver.range(address) else { return true };
    base.saturating_add(mapped as u64) >= address.saturating_add(len)
}

/// Enters the context to release an object, or no context if that one is destroyed.
fn calls(context: &Context) -> Option<Scope> {
    match context.enter() {
        Ok(scope) => Some(scope),
        Err(failure) if failure.context_gone() => Some(Scope::without_context(context.driver)),
        Err(_) => None,
    }
}

/// In such a scope.
fn free(driver: &dyn Driver, address: u64) {
    // SAFETY: imported by us and freed once; copies from and to it are done.
    match unsafe { driver.free(address) } {
        Ok(()) => {}
        Err(failure) if failure.context_gone() => {}
        Err(failure) => log::debug!("releasing memory of another process's pool: {}", driver.reason(failure)),
    }
}
