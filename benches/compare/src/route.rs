//! Where messages of a series come from, go to, and by which way.

use std::fmt;

/// Where a rank has its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Memory {
    Host,
    /// By number, as `nvidia-smi` counts.
    Device(u32),
}

/// As our C programs take it.
impl fmt::Display for Memory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Host => out.write_str("host"),
            Memory::Device(index) => write!(out, "{index}"),
        }
    }
}

/// Blocks of a vector, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Strided {
    pub(crate) block: u64,
    pub(crate) stride: u64,
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
    /// None for bytes in one piece. Sizes count the data without the gaps.
    pub(crate) strided: Option<Strided>,
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
pub(crate) static STRIDED: Route =
    Route { name: "strided", memory: TWO_DEVICES, strided: Some(Strided { block: 64, stride: 256 }), ..host("sm") };

/// In the order of the report.
pub(crate) static ALL: [&Route; 9] =
    [&SM, &TCP, &DEVICES, &COPIER, &STAGED, &DEVICES_TCP, &ONE_DEVICE, &HOST_DEVICE, &STRIDED];

const fn host(btl: &'static str) -> Route {
    Route { name: btl, btl, memory: [Memory::Host; 2], staged: false, copier: false, strided: None }
}

impl Route {
    /// Whether a rank has device memory.
    pub(crate) fn on_device(&self) -> bool {
        self.devices() > 0
    }

    /// How many devices it takes.
    pub(crate) fn devices(&self) -> u32 {
        let needed = |memory: Memory| match memory {
            Memory::Host => 0,
            Memory::Device(index) => index + 1,
        };
        self.memory.map(needed).into_iter().max().unwrap_or(0)
    }

    /// For a title.
    pub(crate) fn words(&self) -> String {
        let kind = |memory: Memory| match memory {
            Memory::Host => "host".to_owned(),
            Memory::Device(index) => format!("device {index}"),
        };
        let [from, to] = self.memory.map(kind);
        let mut words = format!("{from} to {to} over {}", self.btl);
        if self.staged {
            words.push_str(", through the host");
        }
        if self.copier {
            words.push_str(", with device_copier=yes");
        }
        if let Some(Strided { block, stride }) = self.strided {
            words.push_str(&format!(", {block} of every {stride} B"));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_say_what_they_need() {
        assert_eq!(ALL.map(Route::devices), [0, 0, 2, 2, 2, 2, 1, 1, 2]);
        assert_eq!(SM.words(), "host to host over sm");
        assert_eq!(STRIDED.words(), "device 0 to device 1 over sm, 64 of every 256 B");
    }
}
