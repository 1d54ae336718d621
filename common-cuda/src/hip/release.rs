//! What differs between the releases of HIP.

use std::ffi::{c_int, c_uint};

use crate::location::MemoryClass;

/// A release, as `hipRuntimeGetVersion` counts: major * 10,000,000 + minor * 100,000 + patch (`HIP_VERSION` in
/// hip_version.h, 5.0 and later).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Release(pub(super) c_int);

impl Release {
    pub(super) fn major(self) -> c_int {
        self.0 / 10_000_000
    }

    /// Formats the release as in the vendor's documents.
    pub(super) fn text(self) -> String {
        format!("{}.{}", self.major(), self.0 / 100_000 % 100)
    }

    /// `hipIpcMemLazyEnablePeerAccess`: 0 in 5.0 to 5.7, 0x01 in 6.0 and later. The runtime refuses any other value.
    pub(super) fn ipc_flags(self) -> c_uint {
        c_uint::from(self.major() >= 6)
    }

    /// Converts a value of `hipMemoryType` in `hipPointerAttribute_t`, whose first field has been called `memoryType`
    /// (5.0 to 5.4), both (5.5 to 5.7) and `type` (6.0 and later).
    ///
    /// - 5.0 to 5.7: Host = 0, Device = 1, Array = 2, Unified = 3, Managed = 4 (since 5.3).
    /// - 6.0 and later: Unregistered = 0, Host = 1, Device = 2, Managed = 3, Array = 10, Unified = 11.
    pub(super) fn memory_class(self, kind: c_int, is_managed: bool) -> MemoryClass {
        let (host, unregistered, managed) = if self.major() >= 6 { (1, Some(0), 3) } else { (0, None, 4) };
        match kind {
            _ if is_managed || kind == managed => MemoryClass::Managed,
            _ if Some(kind) == unregistered => MemoryClass::Host,
            _ if kind == host => MemoryClass::Pinned,
            _ => MemoryClass::Device,
        }
    }

    /// The name of the function that fills in properties of a device, and the offset of `gcnArchName` in them:
    /// - 5.0 to 5.7: `hipDeviceProp_t` has 792 bytes, the name at 396.
    /// - 6.0 and later: `hipDeviceProp_tR0600` has 1,472 bytes, the name at 1,160. The plain symbol still fills in the
    ///   old structure.
    pub(super) fn arch_name(self) -> usize {
        if self.major() >= 6 { 1160 } else { 396 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_formatted_as_documented() {
        assert_eq!(Release(50_731_921).text(), "5.7");
        assert_eq!(Release(60_342_134).text(), "6.3");
        assert_eq!(Release(71_000_000).text(), "7.10");
    }

    #[test]
    fn memory_types_were_renumbered_in_6_0() {
        let (old, new) = (Release(50_731_921), Release(60_032_830));
        assert_eq!(old.memory_class(0, false), MemoryClass::Pinned);
        assert_eq!(old.memory_class(1, false), MemoryClass::Device);
        assert_eq!(old.memory_class(0, true), MemoryClass::Managed);
        assert_eq!(old.memory_class(4, false), MemoryClass::Managed);
        assert_eq!(new.memory_class(0, false), MemoryClass::Host);
        assert_eq!(new.memory_class(1, false), MemoryClass::Pinned);
        assert_eq!(new.memory_class(2, false), MemoryClass::Device);
        assert_eq!(new.memory_class(3, false), MemoryClass::Managed);
        assert_eq!((old.ipc_flags(), new.ipc_flags()), (0, 1));
    }
}
