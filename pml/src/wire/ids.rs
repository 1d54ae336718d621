//! Numbers by which headers name transfers and transports.

/// Identifies a transfer to the engine that created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(pub(crate) u64);

/// Identifies a transport in headers by its name, and by its module's place among those of that name. Processes may
/// load their modules in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BtlTag(pub(crate) u32);

impl BtlTag {
    /// Computes FNV-1a of the name, and of the place unless that is the first.
    pub(crate) fn of(name: &str, place: u8) -> Self {
        let place = (place != 0).then_some(place);
        let bytes = name.bytes().chain(place);
        BtlTag(bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)))
    }
}
