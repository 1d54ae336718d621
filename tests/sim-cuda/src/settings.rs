//! Settings of the simulated driver from the environment, read once.

use std::env;
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Selects the calls of a function that fail, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Every,
    Only(u64),
    From(u64),
}

/// One row of `SIM_CUDA_FAIL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) name: String,
    pub(crate) code: c_int,
    pub(crate) which: Which,
}

#[derive(Debug)]
pub(crate) struct Settings {
    /// The machine's numbers of the devices that this process sees, in its order.
    pub(crate) visible: Vec<usize>,
    pub(crate) memory: u64,
    pub(crate) delay: Duration,
    pub(crate) kernel_delay: Duration,
    pub(crate) seed: u64,
    pub(crate) version: c_int,
    pub(crate) faults: Vec<Fault>,
    /// Names of functions, and how much longer their calls take.
    pub(crate) slow: Vec<(String, Duration)>,
    pub(crate) missing: Vec<String>,
    pub(crate) direct: Direct,
    /// `SYNC_MEMOPS` is set although synchronous calls on the allocation are not complete.
    pub(crate) early: bool,
    pub(crate) stats: Option<PathBuf>,
}

/// How NICs can access device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Direct {
    /// NICs can access memory of `cuMemAlloc` like host memory.
    pub(crate) peer_memory: bool,
    /// `cuMemGetHandleForAddressRange` returns a descriptor.
    pub(crate) dma_buf: bool,
    /// The descriptor can be mapped, if the driver's version permits it.
    pub(crate) mmap: bool,
    /// gdrcopy's device exists.
    pub(crate) gdrdrv: bool,
    /// The host cannot call `cuFlushGPUDirectRDMAWrites`.
    pub(crate) unseen: bool,
}

impl Direct {
    fn parse(text: &str) -> Direct {
        let has = |wanted| text.split(',').any(|word| word.trim() == wanted);
        Direct {
            peer_memory: has("peer_memory"),
            dma_buf: has("dma_buf"),
            mmap: has("mmap"),
            gdrdrv: has("gdrdrv"),
            unseen: has("unseen"),
        }
    }

    pub(crate) fn any(self) -> bool {
        self.peer_memory || self.dma_buf
    }
}

/// The first version whose dma-bufs may be mapped.
const MMAP_SINCE: c_int = 13_030;

impl Settings {
    /// Checks whether dma-bufs can be mapped.
    pub(crate) fn maps_dma_bufs(&self) -> bool {
        self.direct.dma_buf && self.direct.mmap && self.version >= MMAP_SINCE
    }

    pub(crate) fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(Settings::read)
    }

    /// Ignores values that do not parse, because a driver cannot report them.
    fn read() -> Settings {
        let count = number("DEVICES").unwrap_or(2);
        Settings {
            visible: match visible_devices() {
                Some(list) => visible(&list, count),
                None => (0..count).collect(),
            },
            memory: variable("MEMORY").and_then(|text| bytes(&text)).unwrap_or(8 << 30),
            delay: Duration::from_micros(number("DELAY_US").unwrap_or(5) as u64),
            kernel_delay: Duration::from_micros(number("KERNEL_DELAY_US").unwrap_or(0) as u64),
            seed: number("SEED").unwrap_or(1) as u64,
            version: number("VERSION")
                .filter(|_| !cfg!(sim_hip))
                .and_then(|v| c_int::try_from(v).ok())
                .unwrap_or(13000),
            faults: variable("FAIL").map(|text| faults(&text)).unwrap_or_default(),
            slow: variable("SLOW").map(|text| slow(&text)).unwrap_or_default(),
            missing: variable("MISSING")
                .map(|text| text.split(',').map(|name| name.trim().to_owned()).collect())
                .unwrap_or_default(),
            direct: variable("DIRECT").map(|text| Direct::parse(&text)).unwrap_or_default(),
            early: number("EARLY") == Some(1),
            stats: variable("STATS")
                .filter(|text| !text.is_empty())
                .map(|text| text.replace("%p", &std::process::id().to_string()).into()),
        }
    }
}

/// The beginnings of the variables' names. sim-hip, which is built from this source, too, has names of its own and falls
/// back on these.
const PREFIXES: &[&str] = if cfg!(sim_hip) { &["SIM_HIP_", "SIM_CUDA_"] } else { &["SIM_CUDA_"] };

/// Returns a variable.
pub(crate) fn variable(name: &str) -> Option<String> {
    PREFIXES.iter().find_map(|prefix| env::var(format!("{prefix}{name}")).ok())
}

/// Returns the list of visible devices.
fn visible_devices() -> Option<String> {
    let names: &[&str] =
        if cfg!(sim_hip) { &["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] } else { &["CUDA_VISIBLE_DEVICES"] };
    names.iter().find_map(|name| env::var(name).ok())
}

fn number(name: &str) -> Option<usize> {
    variable(name)?.trim().parse().ok()
}

fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, shift) = match text.chars().last()?.to_ascii_uppercase() {
        'K' => (&text[..text.len() - 1], 10),
        'M' => (&text[..text.len() - 1], 20),
        'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// As in the driver, the list ends at the first invalid number.
fn visible(list: &str, count: usize) -> Vec<usize> {
    list.split(',').map_while(|item| item.trim().parse().ok().filter(|number| *number < count)).collect()
}

fn faults(text: &str) -> Vec<Fault> {
    text.split(',').filter_map(fault).collect()
}

fn slow(text: &str) -> Vec<(String, Duration)> {
    let row = |row: &str| {
        let (name, microseconds) = row.trim().split_once(':')?;
        Some((name.to_owned(), Duration::from_micros(microseconds.parse().ok()?)))
    };
    text.split(',').filter_map(row).collect()
}

fn fault(text: &str) -> Option<Fault> {
    let mut parts = text.trim().split(':');
    let name = parts.next()?.to_owned();
    let code = parts.next()?.parse().ok()?;
    let which = match parts.next() {
        None => Which::Every,
        Some(which) => match which.strip_suffix('+') {
            Some(from) => Which::From(from.parse().ok()?),
            None => Which::Only(which.parse().ok()?),
        },
    };
    Some(Fault { name, code, which })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_name_code_and_which() {
        let row = |name: &str, code, which| Fault { name: name.to_owned(), code, which };
        assert_eq!(
            faults("cuInit:3,cuMemAlloc:2:5,cuEventQuery:719:2+,broken,other:x"),
            [
                row("cuInit", 3, Which::Every),
                row("cuMemAlloc", 2, Which::Only(5)),
                row("cuEventQuery", 719, Which::From(2))
            ]
        );
    }

    #[test]
    fn visible_devices_end_at_the_first_that_is_none() {
        assert_eq!(visible("1,0", 2), [1, 0]);
        assert_eq!(visible("1,7,0", 2), [1]);
        assert_eq!(visible("", 2), [0_usize; 0]);
    }

    #[test]
    fn ways_into_device_memory_are_words() {
        assert_eq!(Direct::parse(""), Direct::default());
        assert!(!Direct::parse("unseen").any());
        let both = Direct { peer_memory: true, dma_buf: true, ..Direct::default() };
        assert_eq!(Direct::parse("dma_buf, peer_memory"), both);
        assert!(Direct::parse("dma_buf,mmap").mmap && Direct::parse("gdrdrv").gdrdrv);
    }

    #[test]
    fn sizes_take_powers_of_1024() {
        assert_eq!(bytes("64M"), Some(64 << 20));
        assert_eq!(bytes("12"), Some(12));
        assert_eq!(bytes("x"), None);
    }
}
