//! Reads and writes the kinds of value that a parameter can have.

use std::time::Duration;

/// A kind of value. The typed field holds a `Value`.
pub trait Kind {
    /// The Rust type of the field.
    type Value: Clone;
    /// The name of the kind in help texts.
    const NAME: &'static str;
    /// Parses a user's text. The error says what was expected.
    fn parse(text: &str) -> Result<Self::Value, String>;
    /// Formats a value so that `parse` reads it back.
    fn show(value: &Self::Value) -> String;
}

/// Bytes, with K, M and G as powers of 1024.
pub struct Size;
impl Kind for Size {
    type Value = usize;
    const NAME: &'static str = "size";
    fn parse(text: &str) -> Result<usize, String> {
        parse_size(text).and_then(|bytes| usize::try_from(bytes).map_err(|error| error.to_string()))
    }
    fn show(value: &usize) -> String {
        let value = *value;
        match value {
            0 => "0".to_owned(),
            _ if value.is_multiple_of(1 << 30) => format!("{}G", value >> 30),
            _ if value.is_multiple_of(1 << 20) => format!("{}M", value >> 20),
            _ if value.is_multiple_of(1 << 10) => format!("{}K", value >> 10),
            _ => value.to_string(),
        }
    }
}

/// Parses `4096`, `4K`, `64M` or `5G`: powers of 1024, in either case, with an optional `B` or `iB`.
///
/// # Errors
/// Returns a sentence that describes the expected format.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected =
        || format!("invalid size '{text}': write a number of bytes, or a number with K, M or G (powers of 1024)");
    let lower = text.trim().to_ascii_lowercase();
    let lower = lower.strip_suffix("ib").or_else(|| lower.strip_suffix('b')).unwrap_or(&lower);
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &lower[digits.len()..] {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("invalid size '{text}': it does not fit in 64 bits; write a smaller number"))
}

/// A count.
pub struct Count;
impl Kind for Count {
    type Value = usize;
    const NAME: &'static str = "count";
    fn parse(text: &str) -> Result<usize, String> {
        text.parse().map_err(|_| "write a whole number".to_owned())
    }
    fn show(value: &usize) -> String {
        value.to_string()
    }
}

/// A length of time, in seconds, or with a unit `us`, `ms` or `s`.
pub struct Time;
impl Kind for Time {
    type Value = Duration;
    const NAME: &'static str = "time";
    fn parse(text: &str) -> Result<Duration, String> {
        let expected = || "write a number of seconds, or a number with us, ms or s".to_owned();
        let (number, unit) = match text {
            _ if text.ends_with("us") => (&text[..text.len() - 2], 1e-6),
            _ if text.ends_with("ms") => (&text[..text.len() - 2], 1e-3),
            _ if text.ends_with('s') => (&text[..text.len() - 1], 1.0),
            _ => (text, 1.0),
        };
        let number: f64 = number.trim().parse().map_err(|_| expected())?;
        Duration::try_from_secs_f64(number * unit).map_err(|_| expected())
    }
    fn show(value: &Duration) -> String {
        match value.as_micros() {
            us if us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
            us if us % 1_000 == 0 => format!("{}ms", us / 1_000),
            us => format!("{us}us"),
        }
    }
}

/// Yes or no.
pub struct Flag;
impl Kind for Flag {
    type Value = bool;
    const NAME: &'static str = "yes|no";
    fn parse(text: &str) -> Result<bool, String> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "yes" | "true" | "on" => Ok(true),
            "0" | "no" | "false" | "off" => Ok(false),
            _ => Err("write yes or no".to_owned()),
        }
    }
    fn show(value: &bool) -> String {
        if *value { "yes" } else { "no" }.to_owned()
    }
}

/// Free text, such as a list of names.
pub struct Text;
impl Kind for Text {
    type Value = String;
    const NAME: &'static str = "text";
    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }
    fn show(value: &String) -> String {
        value.clone()
    }
}

macro_rules! choices {
    ($(#[$meta:meta])* $name:ident = $shown:literal { $( #[doc = $help:literal] $variant:ident = $text:literal, )+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( #[doc = $help] $variant, )+ }
        impl Kind for $name {
            type Value = $name;
            const NAME: &'static str = $shown;
            fn parse(text: &str) -> Result<$name, String> {
                match text { $( $text => Ok($name::$variant), )+ _ => Err(concat!("write one of ", $shown).to_owned()) }
            }
            fn show(value: &$name) -> String {
                match value { $( $name::$variant => $text.to_owned(), )+ }
            }
        }
    };
}

choices! {
    /// Selects the protocols for device buffers.
    DeviceProtocols = "auto|copy" {
        /// the cheapest that works
        Auto = "auto",
        /// staging through internal buffers only, without PUT and GET
        Copy = "copy",
    }
}

choices! {
    /// Selects what copies wait for before they access a device buffer.
    DefaultStreamOrder = "auto|legacy|none" {
        /// synchronous copies and fills, or as `legacy` for memory for which the driver cannot complete them first
        Auto = "auto",
        /// work that is already in the context's legacy default stream
        Legacy = "legacy",
        /// nothing: the program has synchronised its own work
        None = "none",
    }
}

choices! {
    /// Selects the source of the costs of device copies.
    CostSource = "measure|cached|default" {
        /// files; missing costs are measured
        Measure = "measure",
        /// files only
        Cached = "cached",
        /// the estimates of the table
        Default = "default",
    }
}

choices! {
    /// Selects how a NIC accesses device memory (GPUDirect RDMA).
    GpuDirect = "auto|dmabuf|peer_memory|off" {
        /// the first that works, dma-buf before peer memory
        Auto = "auto",
        /// dma-bufs that the device's driver exports
        DmaBuf = "dmabuf",
        /// a kernel module that gives the NIC access to device memory
        PeerMemory = "peer_memory",
        /// never: messages are staged in host buffers
        Off = "off",
    }
}

choices! {
    /// Selects the address families of connections.
    Families = "both|ipv4|ipv6" {
        /// both, IPv4 first
        Both = "both",
        /// IPv4 only
        Ipv4 = "ipv4",
        /// IPv6 only
        Ipv6 = "ipv6",
    }
}

choices! {
    /// Selects how a process copies directly from another process's memory on the same node.
    SingleCopy = "auto|cma|none" {
        /// the fastest way that the kernel allows
        Auto = "auto",
        /// `process_vm_readv` and `process_vm_writev`
        Cma = "cma",
        /// never
        None = "none",
    }
}

choices! {
    /// Selects who performs an MPI program's collectives.
    Performer = "auto|mpi|cableway" {
        /// Cableway, once a rank of the communicator has passed device memory
        Auto = "auto",
        /// the MPI's own modules
        Mpi = "mpi",
        /// Cableway, also on host memory
        Cableway = "cableway",
    }
}

choices! {
    /// Selects the algorithm of an allreduce.
    Allreduce = "auto|recursive_doubling|direct|one_shot|peer_access|ring|rabenseifner|hierarchical" {
        /// the one of the least predicted cost
        Auto = "auto",
        /// ranks exchange all data with ranks at growing distances
        RecursiveDoubling = "recursive_doubling",
        /// each rank reduces a share that all others send to it
        Direct = "direct",
        /// ranks of one node take the data of all others from slots in host memory, and reduce everything
        OneShot = "one_shot",
        /// each rank reduces a share in the device memory of all others, which is mapped
        PeerAccess = "peer_access",
        /// shares go around a ring
        Ring = "ring",
        /// recursive halving, then doubling
        Rabenseifner = "rabenseifner",
        /// within each node, then between nodes
        Hierarchical = "hierarchical",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("8K"), Ok(8192));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        assert_eq!(parse_size("5g"), Ok(5 << 30));
        assert!(parse_size("K").is_err());
        assert!(parse_size("").is_err());
        assert!(parse_size("18446744073709551615K").is_err());
        assert_eq!(Size::show(&(64 << 20)), "64M");
        assert_eq!(Size::show(&1000), "1000");
    }

    #[test]
    fn times() {
        assert_eq!(Time::parse("10"), Ok(Duration::from_secs(10)));
        assert_eq!(Time::parse("2.5ms"), Ok(Duration::from_micros(2500)));
        assert!(Time::parse("-1").is_err());
        assert!(Time::parse("s").is_err());
        assert_eq!(Time::show(&Duration::from_millis(1500)), "1500ms");
    }
}
