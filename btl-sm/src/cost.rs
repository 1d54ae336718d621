//! What operations cost, as measured between two cores of one socket; protocols are chosen by their proportions.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_btl::Cost;

/// One way of a small message.
pub(crate) const LATENCY: Duration = Duration::from_nanos(120);

/// Two copies through fragments, by both sides at the same time.
pub(crate) const SEND: Cost = Cost { fixed: LATENCY, bytes_per_second: 13e9 };

/// One copy, and the system call that makes it.
pub(crate) const SINGLE_COPY: Cost = Cost { fixed: Duration::from_nanos(700), bytes_per_second: 12e9 };

/// What messages between devices cost, by the parameters of these names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCosts {
    /// Through host memory.
    pub(crate) staged: Cost,
    /// By one copy that the receiver makes.
    pub(crate) direct: Cost,
    /// By one copy that the sender makes.
    pub(crate) push: Cost,
    /// By one copy on a device that processes use in turns.
    pub(crate) turn: Cost,
}

impl DeviceCosts {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let cost = |fixed, rate: usize| Cost { fixed, bytes_per_second: rate.max(1) as f64 };
        let direct = |fixed| cost(fixed, parameters.device_direct_rate);
        DeviceCosts {
            staged: cost(parameters.device_staged_latency, parameters.device_staged_rate),
            direct: direct(parameters.device_direct_latency),
            push: direct(parameters.device_push_latency),
            turn: direct(parameters.device_turn_latency),
        }
    }

    /// The smallest size that one copy does not make slower; `usize::MAX` if there is none.
    pub(crate) fn direct_from(&self) -> usize {
        let fixed = self.direct.fixed.as_secs_f64() - self.staged.fixed.as_secs_f64();
        if fixed <= 0.0 {
            return 1;
        }
        let gain = self.staged.bytes_per_second.recip() - self.direct.bytes_per_second.recip();
        // A float that is too large, infinite or no number becomes the largest or 0.
        if gain > 0.0 { ((fixed / gain).ceil() as usize).max(1) } else { usize::MAX }
    }
}

/// Largest single `get` or `put`: they are done when they return, and progress waits that long, some 0.1 ms.
pub(crate) const SINGLE_COPY_PIECE: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use cableway_base::Source;

    #[test]
    fn one_copy_is_made_from_where_it_pays() {
        let from = |assignments: &[(&str, &str)]| {
            let mut parameters = Parameters::default();
            for (name, value) in assignments {
                parameters.set(name, value, Source::Program).unwrap();
            }
            DeviceCosts::new(&parameters).direct_from()
        };
        assert_eq!(from(&[]), 1);
        let slow = ("device_direct_latency", "29us");
        let even = from(&[slow, ("device_staged_rate", "1G"), ("device_direct_rate", "2G")]);
        assert!((20_000..23_000).contains(&even), "{even}");
        assert_eq!(from(&[slow, ("device_direct_rate", "1G")]), usize::MAX);
        assert_eq!(from(&[slow, ("device_direct_rate", "0"), ("device_staged_rate", "0")]), usize::MAX);
    }
}
