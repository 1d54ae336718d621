//! The queues of the device that NVIDIA's driver uses for a context.
//!
//! A stream that waits occupies one of them. Work of other streams goes to a queue that is free. When all are occupied, it
//! waits behind a stream that waits, even the copies that would end the wait (`docs/decisions/021-queues-of-streams.md`).

use std::ffi::OsStr;
use std::sync::Arc;

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
    of(std::env::var_os(VARIABLE).as_deref())
}

/// Returns the number that a value of the variable means.
fn of(value: Option<&OsStr>) -> usize {
    let number = value.and_then(OsStr::to_str).and_then(|value| value.trim().parse::<usize>().ok());
    number.filter(|&number| number > 0).map_or(DEFAULT, |number| number.min(MOST))
}

/// Warns once if as many streams of a context may wait for messages as it has queues.
pub(super) fn warn_of_waiting(shared: &Shared, one: &StreamState) {
    let (at, queues) = (one.program.location(), connections());
    let streams = shared.streams_if_at_least(queues);
    if streams.is_empty() || at.device.and_then(|device| shared.engine.devices().vendor(device)) != Some(Vendor::Nvidia)
    {
        return;
    }
    let waits = |state: &&Arc<StreamState>| state.program.location().context == at.context && state.may_wait();
    let waiting = streams.iter().filter(waits).count();
    if waiting >= queues {
        cableway_base::warn_once("stream/connections", || {
            format!(
                "{waiting} streams wait for messages at once, and the driver has {queues} queues: a copy that ends a wait \
                 may stay behind a stream that waits. Set {VARIABLE} to more, at most {MOST}, before the program starts, \
                 or let fewer streams wait"
            )
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_means_what_the_driver_makes_of_it() {
        let number = |value: &str| of(Some(OsStr::new(value)));
        assert_eq!(of(None), 8);
        assert_eq!([number("1"), number("2"), number(" 16 "), number("32"), number("64")], [1, 2, 16, 32, 32]);
        assert_eq!([number(""), number("0"), number("-1"), number("many")], [8; 4]);
    }
}
