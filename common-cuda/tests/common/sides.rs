//! The owner and the importer of memory that is passed by file descriptor, in one process.

use cableway_base::Parameters;
use cableway_common_cuda::{
    BufferKind, DescriptorRequest, DeviceBuffer, DeviceIndex, Devices, Exported, Exports, Imports, Location, Mapped,
    Reach,
};

use crate::common::{App, devices};

pub(crate) const LEN: usize = 100_000;
/// The granularity of physical memory on the tested devices.
pub(crate) const PIECE: usize = 2 << 20;
/// The ranks of the importer and the owner.
pub(crate) const IMPORTER: u32 = 1;
pub(crate) const OWNER: u32 = 7;

pub(crate) struct Sides {
    pub(crate) devices: Devices,
    pub(crate) exports: Exports,
    pub(crate) imports: Imports,
}

impl Sides {
    pub(crate) fn new() -> Self {
        let devices = devices();
        let exports = Exports::new(&devices, 10);
        let imports = Imports::new(&devices, &Parameters::default());
        Sides { devices, exports, imports }
    }

    pub(crate) fn buffer(&self, kind: BufferKind, bytes: &[u8]) -> DeviceBuffer {
        let mut buffer = DeviceBuffer::new(&self.devices, DeviceIndex(0), kind, bytes.len()).unwrap();
        buffer.copy_from_host(0, bytes).unwrap();
        self.devices.default_stream(&buffer.location()).unwrap().wait().unwrap();
        buffer
    }

    pub(crate) fn export(&self, address: *const u8, len: usize) -> Option<Exported> {
        self.exports.export(&self.devices.classify(address, len), address, len, IMPORTER)
    }

    pub(crate) fn reach(&self, exported: &Exported, into: &Location) -> Reach {
        self.imports.reach(OWNER, exported, into, 8).unwrap()
    }

    /// Uses the export until a descriptor is needed from its owner.
    pub(crate) fn want(&self, exported: &Exported, into: &Location) -> DescriptorRequest {
        assert!(matches!(self.reach(exported, into), Reach::NotYet), "met once");
        let Reach::NeedsDescriptor(wanted) = self.reach(exported, into) else {
            panic!("a second use must request a descriptor")
        };
        assert!(matches!(self.reach(exported, into), Reach::NotYet), "a descriptor must be requested only once");
        wanted
    }

    pub(crate) fn map(&self, exported: &Exported, into: &Location) -> Mapped {
        let wanted = self.want(exported, into);
        self.imports.supply(OWNER, &wanted, self.exports.answer(&wanted, IMPORTER));
        let Reach::Mapped(mapped) = self.reach(exported, into) else { panic!("not mapped") };
        mapped
    }

    /// Does the same for another importing process.
    pub(crate) fn imports_of_another_peer(&self, exported: &Exported, into: &Location) -> DescriptorRequest {
        let others = Imports::new(&self.devices, &Parameters::default());
        assert!(matches!(others.reach(OWNER, exported, into, 8).unwrap(), Reach::NotYet), "met once");
        let Reach::NeedsDescriptor(wanted) = others.reach(OWNER, exported, into, 8).unwrap() else {
            panic!("a second use must request a descriptor")
        };
        wanted
    }

    pub(crate) fn read(&self, at: *const u8, len: usize) -> Vec<u8> {
        let mut seen = vec![0; len];
        // SAFETY: callers pass memory that is mapped for so long.
        unsafe { self.devices.copy(seen.as_mut_ptr(), at, len) }.unwrap();
        seen
    }
}

/// An address range that outlives the mappings in it.
pub(crate) struct Addresses<'a> {
    app: &'a App,
    pub(crate) base: u64,
    len: usize,
}

impl<'a> Addresses<'a> {
    pub(crate) fn reserve(app: &'a App, len: usize) -> Self {
        let mut base = 0;
        app.cuMemAddressReserve(&raw mut base, len, 0, 0, 0).unwrap();
        Addresses { app, base, len }
    }

    /// A part of the range with its own mapping. The range itself stays with its owner.
    pub(crate) fn part(&self, offset: usize, len: usize) -> std::mem::ManuallyDrop<Addresses<'a>> {
        std::mem::ManuallyDrop::new(Addresses { app: self.app, base: self.base + offset as u64, len })
    }

    /// Maps shareable memory and fills it.
    pub(crate) fn map(&self, byte: u8) -> *mut u8 {
        // `CUmemAllocationProp`: pinned, shared by descriptor, on device 0.
        self.map_of(byte, [0x1_0000_0001, 1, 0, 0])
    }

    /// Does the same with these properties.
    pub(crate) fn map_of(&self, byte: u8, properties: [u64; 4]) -> *mut u8 {
        // `CUmemAccessDesc`: of device 0.
        let access = [1, 0, 3];
        let mut handle = 0;
        self.app.cuMemCreate(&raw mut handle, self.len, properties.as_ptr(), 0).unwrap();
        self.app.cuMemMap(self.base, self.len, 0, handle, 0).unwrap();
        self.app.cuMemRelease(handle).unwrap();
        self.app.cuMemSetAccess(self.base, self.len, access.as_ptr(), 1).unwrap();
        self.app.cuMemsetD8(self.base, byte, self.len).unwrap();
        self.app.cuCtxSynchronize().unwrap();
        std::ptr::with_exposed_provenance_mut(self.base as usize)
    }

    pub(crate) fn unmap(&self) {
        self.app.cuMemUnmap(self.base, self.len).unwrap();
    }
}

impl Drop for Addresses<'_> {
    fn drop(&mut self) {
        self.app.cuMemAddressFree(self.base, self.len).unwrap();
    }
}
