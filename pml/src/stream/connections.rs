//! The queues of the device that NVIDIA's driver uses for a context.
//!
//! A stream that waits occupies one of them. Work of other streams goes to a queue that is free. When all are occupied, it
//! stays behind a stream that waits, even the copies that would end the wait (`docs/decisions/021-queues-of-streams.md`).

use std::ffi::OsStr;
use std::sync::OnceLock;

use cableway_common_cuda::Vendor;

use super::shared::Shared;
use super::state::StreamState;

/// NVIDIA's driver reads the number of queues from this variable when it is initialised.
const VARIABLE: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
/// The number without the variable ("CUDA environment variables" in NVIDIA's programming guide).
const DEFAULT: usize = 8;
/// The driver makes no more (H200, driver 580).
const MOST: usize = 32;

/// Returns the number of queues of a context.
pub(super) fn connections() -> usize {
    static NUMBER: OnceLock<usize> = OnceLock::new();
    *NUMBER.get_or_init(|| of(std::env::var_os(VARIABLE).as_deref()))
}

/// Returns the number that a value of the variable means. Values that are no number count as none.
fn of(value: Option<&OsStr>) -> usize {
    let number = value.and_then(OsStr::to_str).and_then(|value| value.trim().parse::<usize>().ok());
    number.filter(|&number| number > 0).map_or(DEFAULT, |number| number.min(MOST))
}

/// Warns once if as many streams of a context may wait for messages as it has queues.
pub(super) fn warn_of_waiting(shared: &Shared, one: &StreamState) {
    let (at, queues) = (one.program.location(), connections());
    let waits = |state: &StreamState| state.program.location().context == at.context && state.has_waits();
    let waiting = shared.count_if_at_least(queues, waits);
    let vendor = || at.device.and_then(|device| shared.engine.devices().vendor(device));
    if waiting < queues || vendor() != Some(Vendor::Nvidia) {
        return;
    }
    cableway_base::warn_once("stream/connections", || {
        let more = match queues {
            MOST => String::new(),
            _ => format!("set {VARIABLE} to more, at most {MOST}, before the program starts, or "),
        };
        format!(
            "{waiting} streams may wait for messages at once, and the driver has {queues} queues, so a copy that ends a \
             wait may stay behind a stream that waits: {more}let fewer streams wait"
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_are_no_number_count_as_none() {
        let number = |value: &str| of(Some(OsStr::new(value)));
        assert_eq!(of(None), 8);
        assert_eq!([number("1"), number("2"), number(" 16 "), number("32"), number("64")], [1, 2, 16, 32, 32]);
        assert_eq!([number(""), number("0"), number("-1"), number("many")], [8; 4]);
    }
}
