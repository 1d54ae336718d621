//! Routes: the memory of both ranks, the transport between them, and options.

use std::fmt;

/// The memory of a rank's buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Host,
    /// Memory of the device with this number, as `nvidia-smi` counts.
    Device(u32),
    /// Page-locked host memory of that device's context.
    PageLocked(u32),
    /// Host memory, in a process that also has memory of that device and has sent from it.
    HostBeside(u32),
}

impl Memory {
    pub(crate) fn on_device(self) -> bool {
        matches!(self, Memory::Device(_))
    }
}

/// Formats the memory as the C programs read it.
impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host => out.write_str("host"),
            Memory::Device(index) => write!(out, "{index}"),
            Memory::PageLocked(index) => write!(out, "pinned+{index}"),
            Memory::HostBeside(index) => write!(out, "host+{index}"),
        }
    }
}

/// The layout of a message in memory. Lengths are in bytes. A message of any length is one element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Contiguous,
    Strided {
        block: u64,
        stride: u64,
    },
    /// Blocks with pseudorandom gaps of one to three blocks.
    Irregular {
        block: u64,
    },
}

/// The seed of the gaps, which every program shares.
const SEED: u64 = 1;

impl Shape {
    /// Formats the layout of a message of `size` bytes as `cableway pingpong --datatype` reads it.
    pub(crate) fn datatype(self, size: u64) -> Option<String> {
        match self {
            Shape::Contiguous => None,
            Shape::Strided { block, stride } => Some(format!("vector:{block}:{stride}:{}", size / block)),
            Shape::Irregular { block } => Some(format!("indexed:{block}:{}:{SEED}", size / block)),
        }
    }

    /// Formats the layout as the MPI program reads it.
    pub(crate) fn words(self) -> Vec<String> {
        let words = |kind: &str, block: u64, other: u64| vec![kind.to_owned(), block.to_string(), other.to_string()];
        match self {
            Shape::Contiguous => Vec::new(),
            Shape::Strided { block, stride } => words("vector", block, stride),
            Shape::Irregular { block } => words("indexed", block, SEED),
        }
    }
}

/// A route between two processes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The name in tables and on the command line.
    pub(crate) name: &'static str,
    pub(crate) btl: &'static str,
    /// The memory of rank 0 and of rank 1.
    pub(crate) memory: [Memory; 2],
    /// Stage device memory through the host, as if processes could not map each other's.
    pub(crate) staged: bool,
    /// Cableway uses the resident copier kernel for small copies, which is off by default.
    pub(crate) copier: bool,
    /// Sizes count the data without the gaps.
    pub(crate) shape: Shape,
}

const TWO_DEVICES: [Memory; 2] = [Memory::Device(0), Memory::Device(1)];

pub(crate) static SM: Route = host("sm");
pub(crate) static TCP: Route = host("tcp");
pub(crate) static DEVICES: Route = Route { name: "devices", memory: TWO_DEVICES, ..host("sm") };
pub(crate) static COPIER: Route = Route { name: "devices-copier", copier: true, memory: TWO_DEVICES, ..host("sm") };
pub(crate) static STAGED: Route = Route { name: "devices-staged", staged: true, memory: TWO_DEVICES, ..host("sm") };
pub(crate) static DEVICES_TCP: Route = Route { name: "devices-tcp", memory: TWO_DEVICES, ..host("tcp") };
pub(crate) static ONE_DEVICE: Route = Route { name: "one-device", memory: [Memory::Device(0); 2], ..host("sm") };
pub(crate) static HOST_DEVICE: Route =
    Route { name: "host-device", memory: [Memory::Host, Memory::Device(0)], ..host("sm") };
pub(crate) static PAGE_LOCKED: Route =
    Route { name: "page-locked-device", memory: [Memory::PageLocked(1), Memory::Device(0)], ..host("sm") };
pub(crate) static BESIDE_DEVICES: Route =
    Route { name: "host-beside-devices", memory: [Memory::HostBeside(0), Memory::HostBeside(1)], ..host("sm") };
pub(crate) static STRIDED: Route = shaped("strided", Shape::Strided { block: 64, stride: 256 });
pub(crate) static IRREGULAR: Route = shaped("irregular-64", Shape::Irregular { block: 64 });
pub(crate) static IRREGULAR_WORDS: Route = shaped("irregular-8", Shape::Irregular { block: 8 });

/// All routes, in the order of the report.
pub(crate) static ALL: [&Route; 13] = [
    &SM,
    &TCP,
    &DEVICES,
    &COPIER,
    &STAGED,
    &DEVICES_TCP,
    &ONE_DEVICE,
    &HOST_DEVICE,
    &PAGE_LOCKED,
    &BESIDE_DEVICES,
    &STRIDED,
    &IRREGULAR,
    &IRREGULAR_WORDS,
];

const fn host(btl: &'static str) -> Route {
    Route { name: btl, btl, memory: [Memory::Host; 2], staged: false, copier: false, shape: Shape::Contiguous }
}

const fn shaped(name: &'static str, shape: Shape) -> Route {
    Route { name, memory: TWO_DEVICES, shape, ..host("sm") }
}

impl Route {
    /// Returns whether a rank uses a device.
    pub(crate) fn on_device(&self) -> bool {
        self.devices() > 0
    }

    /// Returns whether a rank uses a device and has its messages in host memory.
    pub(crate) fn beside_devices(&self) -> bool {
        self.memory.iter().any(|memory| matches!(memory, Memory::HostBeside(_)))
    }

    /// Returns the number of devices that the route needs.
    pub(crate) fn devices(&self) -> u32 {
        let needed = |memory: Memory| match memory {
            Memory::Host => 0,
            Memory::Device(index) | Memory::PageLocked(index) | Memory::HostBeside(index) => index + 1,
        };
        self.memory.map(needed).into_iter().max().unwrap_or(0)
    }

    /// Describes the route for a title.
    pub(crate) fn words(&self) -> String {
        let kind = |memory: Memory| match memory {
            Memory::Host => "host".to_owned(),
            Memory::Device(index) => format!("device {index}"),
            Memory::PageLocked(index) => format!("page-locked memory of device {index}"),
            Memory::HostBeside(index) => format!("host beside device {index}"),
        };
        let [from, to] = self.memory.map(kind);
        let mut words = format!("{from} to {to} over {}", self.btl);
        if self.staged {
            words.push_str(", through the host");
        }
        if self.copier {
            words.push_str(", with device_copier=yes");
        }
        match self.shape {
            Shape::Contiguous => {}
            Shape::Strided { block, stride } => words.push_str(&format!(", {block} of every {stride} B")),
            Shape::Irregular { block } => {
                words.push_str(&format!(", blocks of {block} B with gaps of one to three blocks"))
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_say_what_they_need() {
        assert_eq!(ALL.map(Route::devices), [0, 0, 2, 2, 2, 2, 1, 1, 2, 2, 2, 2, 2]);
        assert_eq!(SM.words(), "host to host over sm");
        assert_eq!(STRIDED.words(), "device 0 to device 1 over sm, 64 of every 256 B");
        assert_eq!(BESIDE_DEVICES.words(), "host beside device 0 to host beside device 1 over sm");
        assert_eq!(PAGE_LOCKED.words(), "page-locked memory of device 1 to device 0 over sm");
        assert_eq!(BESIDE_DEVICES.memory[1].to_string(), "host+1");
        assert!(BESIDE_DEVICES.on_device() && BESIDE_DEVICES.beside_devices() && !HOST_DEVICE.beside_devices());
    }

    #[test]
    fn shapes_are_what_our_programs_take() {
        assert_eq!(SM.shape.datatype(64), None);
        assert_eq!(STRIDED.shape.datatype(256 << 10).unwrap(), "vector:64:256:4096");
        assert_eq!(IRREGULAR_WORDS.shape.datatype(64 << 10).unwrap(), "indexed:8:8192:1");
        assert_eq!(IRREGULAR.shape.words(), ["indexed", "64", "1"]);
    }
}
