//! Where messages of a series come from, go to, and by which way.

use std::fmt;

/// Where a rank has its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Host,
    /// By number, as `nvidia-smi` counts.
    Device(u32),
    /// Of the host, in a process that has memory of that device as well, and has sent from it.
    HostBeside(u32),
}

impl Memory {
    pub(crate) fn on_device(self) -> bool {
        matches!(self, Memory::Device(_))
    }
}

/// As our C programs take it.
impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host => out.write_str("host"),
            Memory::Device(index) => write!(out, "{index}"),
            Memory::HostBeside(index) => write!(out, "host+{index}"),
        }
    }
}

/// How a message lies in memory. Lengths are in bytes; a message is one element, however long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shape {
    Contiguous,
    Strided {
        block: u64,
        stride: u64,
    },
    /// With gaps of one to three blocks, as good as random.
    Irregular {
        block: u64,
    },
}

/// Decides the gaps, the same in every program.
const SEED: u64 = 1;

impl Shape {
    /// Of a message of so many bytes, as `cableway pingpong --datatype` takes it.
    pub(crate) fn datatype(self, size: u64) -> Option<String> {
        match self {
            Shape::Contiguous => None,
            Shape::Strided { block, stride } => Some(format!("vector:{block}:{stride}:{}", size / block)),
            Shape::Irregular { block } => Some(format!("indexed:{block}:{}:{SEED}", size / block)),
        }
    }

    /// As our MPI program takes it.
    pub(crate) fn words(self) -> Vec<String> {
        let words = |kind: &str, block: u64, other: u64| vec![kind.to_owned(), block.to_string(), other.to_string()];
        match self {
            Shape::Contiguous => Vec::new(),
            Shape::Strided { block, stride } => words("vector", block, stride),
            Shape::Irregular { block } => words("indexed", block, SEED),
        }
    }
}

/// A way between two processes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// As tables and the command line call it.
    pub(crate) name: &'static str,
    pub(crate) btl: &'static str,
    /// Of rank 0 and of rank 1.
    pub(crate) memory: [Memory; 2],
    /// Device memory goes through the host, as where processes cannot map each other's.
    pub(crate) staged: bool,
    /// Ours makes small copies by a kernel that stays on the device, which it does on request only.
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
pub(crate) static BESIDE_DEVICES: Route =
    Route { name: "host-beside-devices", memory: [Memory::HostBeside(0), Memory::HostBeside(1)], ..host("sm") };
pub(crate) static STRIDED: Route = shaped("strided", Shape::Strided { block: 64, stride: 256 });
pub(crate) static IRREGULAR: Route = shaped("irregular-64", Shape::Irregular { block: 64 });
pub(crate) static IRREGULAR_WORDS: Route = shaped("irregular-8", Shape::Irregular { block: 8 });

/// In the order of the report.
pub(crate) static ALL: [&Route; 12] = [
    &SM,
    &TCP,
    &DEVICES,
    &COPIER,
    &STAGED,
    &DEVICES_TCP,
    &ONE_DEVICE,
    &HOST_DEVICE,
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
    /// Whether a rank uses a device.
    pub(crate) fn on_device(&self) -> bool {
        self.devices() > 0
    }

    /// Whether a rank uses a device without having its messages there.
    pub(crate) fn beside_devices(&self) -> bool {
        self.memory.iter().any(|memory| matches!(memory, Memory::HostBeside(_)))
    }

    /// How many devices it takes.
    pub(crate) fn devices(&self) -> u32 {
        let needed = |memory: Memory| match memory {
            Memory::Host => 0,
            Memory::Device(index) | Memory::HostBeside(index) => index + 1,
        };
        self.memory.map(needed).into_iter().max().unwrap_or(0)
    }

    /// For a title.
    pub(crate) fn words(&self) -> String {
        let kind = |memory: Memory| match memory {
            Memory::Host => "host".to_owned(),
            Memory::Device(index) => format!("device {index}"),
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
        assert_eq!(ALL.map(Route::devices), [0, 0, 2, 2, 2, 2, 1, 1, 2, 2, 2, 2]);
        assert_eq!(SM.words(), "host to host over sm");
        assert_eq!(STRIDED.words(), "device 0 to device 1 over sm, 64 of every 256 B");
        assert_eq!(BESIDE_DEVICES.words(), "host beside device 0 to host beside device 1 over sm");
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
