//! The kinds of value that a parameter can have: how each is written and read.

use std::time::Duration;

/// A kind of value. `Value` is what the typed field holds.
pub trait Kind {
    /// The Rust type of the field.
    type Value: Clone;
    /// How help names this kind.
    const NAME: &'static str;
    /// Reads what a user wrote; the error says what was expected.
    fn parse(text: &str) -> Result<Self::Value, String>;
    /// Writes a value as `parse` reads it.
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

/// Reads `4096`, `4K`, `64M` or `5G` (powers of 1024, either case, an optional `B` or `iB`).
///
/// # Errors
/// A sentence that says what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}' is no size; write bytes, or a number with K, M or G (powers of 1024)");
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
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' does not fit in 64 bits"))
}

/// A count.
pub struct Count;
impl Kind for Count {
    type Value = usize;
    const NAME: &'static str = "count";
    fn parse(text: &str) -> Result<usize, String> {
        text.parse().map_err(|_| "a whole number is expected".to_owned())
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
        let expected = || "a time is expected: seconds, or a number with us, ms or s".to_owned();
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
            _ => Err("yes or no is expected".to_owned()),
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
                match text { $( $text => Ok($name::$variant), )+ _ => Err(concat!("one of ", $shown, " is expected").to_owned()) }
            }
            fn show(value: &$name) -> String {
                match value { $( $name::$variant => $text.to_owned(), )+ }
            }
        }
    };
}

choices! {
    /// Which protocols device buffers may take.
    DeviceProtocols = "auto|copy" {
        /// the cheapest that works
        Auto = "auto",
        /// the base: only protocols that first copy into internal buffers, no PUT, no GET
        Copy = "copy",
    }
}

choices! {
    /// What our copies wait for before they touch a device buffer.
    DefaultStreamOrder = "legacy|none" {
        /// work already in the context's legacy default stream
        Legacy = "legacy",
        /// nothing: the program has waited for its own work
        None = "none",
    }
}

choices! {
    /// Where what copies by devices cost is known from.
    CostSource = "measure|cached|default" {
        /// a file, and what it lacks is measured
        Measure = "measure",
        /// a file only
        Cached = "cached",
        /// the estimates of the table
        Default = "default",
    }
}

choices! {
    /// How a network device reaches device memory itself.
    GpuDirect = "auto|dmabuf|peer_memory|off" {
        /// whichever is there, a dma-buf first
        Auto = "auto",
        /// by dma-bufs that the device's driver exports
        DmaBuf = "dmabuf",
        /// by a module of the kernel that lends it device memory
        PeerMemory = "peer_memory",
        /// not at all: through host buffers
        Off = "off",
    }
}

choices! {
    /// Which address families connections may use.
    Families = "both|ipv4|ipv6" {
        /// either, IPv4 first
        Both = "both",
        /// IPv4 only
        Ipv4 = "ipv4",
        /// IPv6 only
        Ipv6 = "ipv6",
    }
}

choices! {
    /// How one process copies straight from another's memory on the same node.
    SingleCopy = "auto|cma|none" {
        /// the fastest that the kernel allows
        Auto = "auto",
        /// `process_vm_readv` and `process_vm_writev`
        Cma = "cma",
        /// never
        None = "none",
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
