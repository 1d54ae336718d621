//! The parameters of this transport, in the form in which its parts need them.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_base::parameters::parse_size;
use cableway_btl::{Error, MAX_HEADER};

use crate::{invalid, memory};

/// Longest buffer that may be asked for.
const LONGEST_MESSAGE: usize = 256 << 20;
/// Work of a connection beside messages: a credit, a goodbye, and what ends it.
pub(crate) const SPARE_WORK: usize = 3;

/// See the rows `btl_openib_*` of the parameter table.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) eager_limit: usize,
    pub(crate) max_send_size: usize,
    pub(crate) min_rdma_size: usize,
    /// The receiver's device moves large messages, not the sender's.
    pub(crate) get: bool,
    /// Bytes of the program's memory that stay registered.
    pub(crate) registration_cache: usize,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) gid_index: Option<u8>,
    pub(crate) receives: ReceiveQueue,
    pub(crate) completions: usize,
    /// Work under way on one connection.
    pub(crate) depth: usize,
    pub(crate) inline: u32,
    pub(crate) pkey_index: u16,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    /// Exponent of 4.096 us after which a device sends again.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_timer: u8,
    pub(crate) peer_timeout: Duration,
}

/// Buffers in which messages arrive, of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveQueue {
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// Below so many posted buffers, messages are not kept beyond their upcall.
    pub(crate) low: usize,
    /// Messages of one peer that wait here.
    pub(crate) window: usize,
}

impl Settings {
    /// # Errors
    /// Parameters that contradict each other or that no device can honour.
    pub(crate) fn new(parameters: &Parameters) -> Result<Self, Error> {
        let include = list(&parameters.btl_openib_if_include);
        let exclude = list(&parameters.btl_openib_if_exclude);
        if !include.is_empty() && !exclude.is_empty() {
            return Err(invalid("btl_openib_if_include and btl_openib_if_exclude", "only one of them can be given"));
        }
        let receives = ReceiveQueue::parse(&parameters.btl_openib_receive_queues)
            .map_err(|reason| invalid("btl_openib_receive_queues", reason))?;
        let max_send_size = receives.size;
        let gid_index = match parameters.btl_openib_gid_index.trim() {
            "auto" => None,
            text => Some(text.parse().map_err(|_| {
                invalid("btl_openib_gid_index", format!("'{text}' is neither 'auto' nor a number up to 255"))
            })?),
        };
        let small = |name: &'static str, value: usize, most: usize| {
            if value > most {
                return Err(invalid(name, format!("at most {most} is possible, not {value}")));
            }
            Ok(value)
        };
        let retries = small("btl_openib_ib_retry_count", parameters.btl_openib_ib_retry_count, 7)? as u8;
        let peer_timeout = parameters.peer_timeout.max(Duration::from_millis(100));
        let timeout = match small("btl_openib_ib_timeout", parameters.btl_openib_ib_timeout, 31)? as u8 {
            0 => timeout_within(peer_timeout / 2, retries),
            timeout => timeout,
        };
        Ok(Settings {
            eager_limit: parameters.btl_openib_eager_limit.clamp(2 * MAX_HEADER, max_send_size),
            max_send_size,
            min_rdma_size: parameters.btl_openib_min_rdma_size.max(1),
            get: parameters.btl_openib_get,
            registration_cache: memory::lockable(parameters.btl_openib_registration_cache),
            include,
            exclude,
            gid_index,
            receives,
            completions: parameters.btl_openib_cq_size.max(receives.count + 64),
            depth: parameters.btl_openib_send_depth.clamp(8, 1 << 14),
            inline: small("btl_openib_max_inline", parameters.btl_openib_max_inline, 4096)? as u32,
            pkey_index: small("btl_openib_pkey_index", parameters.btl_openib_pkey_index, 65535)? as u16,
            service_level: small("btl_openib_service_level", parameters.btl_openib_service_level, 15)? as u8,
            traffic_class: small("btl_openib_traffic_class", parameters.btl_openib_traffic_class, 255)? as u8,
            timeout,
            retries,
            rnr_timer: small("btl_openib_min_rnr_timer", parameters.btl_openib_min_rnr_timer, 31)? as u8,
            peer_timeout,
        })
    }
}

impl ReceiveQueue {
    /// Reads `S,SIZE,COUNT[,LOW[,WINDOW]]`, as Open MPI writes a shared queue.
    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.contains(':') {
            return Err(format!("'{text}' names several queues; this transport has one, of the longest messages"));
        }
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let expected = || format!("'{text}' is not of the form S,SIZE,COUNT[,LOW[,WINDOW]], such as S,64K,256,64,32");
        let [kind, size, count, rest @ ..] = &fields[..] else { return Err(expected()) };
        match *kind {
            "S" | "s" => {}
            "P" | "p" | "X" | "x" => return Err(format!("'{text}': only shared queues (S) are there")),
            _ => return Err(expected()),
        }
        let number = |field: &str| field.parse::<usize>().map_err(|_| expected());
        let size = usize::try_from(parse_size(size)?).map_err(|_| expected())?;
        let count = number(count)?;
        if rest.len() > 2 {
            return Err(expected());
        }
        if !(2 * MAX_HEADER..=LONGEST_MESSAGE).contains(&size) {
            return Err(format!("'{text}': a buffer has {} to {LONGEST_MESSAGE} bytes", 2 * MAX_HEADER));
        }
        if !(4..=1 << 16).contains(&count) {
            return Err(format!("'{text}': there can be 4 to {} buffers", 1 << 16));
        }
        let low = rest.first().map_or(Ok(count / 4), |low| number(low))?;
        let window = rest.get(1).map_or(Ok(count / 8), |window| number(window))?;
        if low >= count || window > count {
            return Err(format!("'{text}': low mark and window are below the number of buffers"));
        }
        Ok(ReceiveQueue { size, count, low, window: window.max(2) })
    }
}

/// The longest timeout whose repetitions end within `limit`.
fn timeout_within(limit: Duration, retries: u8) -> u8 {
    let each = limit / (u32::from(retries) + 1);
    let mut exponent = 8;
    while exponent < 20 && Duration::from_nanos(4096 << (exponent + 1)) <= each {
        exponent += 1;
    }
    exponent
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_receive_queue_reads_as_written(size in 2 * MAX_HEADER..=LONGEST_MESSAGE, count in 4..=1_usize << 16,
                                            low in 0..=1_usize << 16, window in 0..=1_usize << 16, given in 0..3) {
            let text = match given {
                0 => format!("S,{size},{count}"),
                1 => format!("S,{size},{count},{low}"),
                _ => format!(" s , {size}, {count},{low} ,{window}"),
            };
            let (low, window) = match given {
                0 => (count / 4, count / 8),
                1 => (low, count / 8),
                _ => (low, window),
            };
            match ReceiveQueue::parse(&text) {
                Ok(queue) => {
                    prop_assert!(low < count && window <= count);
                    prop_assert_eq!(queue, ReceiveQueue { size, count, low, window: window.max(2) });
                }
                Err(reason) => {
                    prop_assert!(low >= count || window > count);
                    prop_assert!(reason.contains(text.trim()) && reason.contains("low mark"), "{}", reason);
                }
            }
        }

        #[test]
        fn what_is_no_receive_queue_is_refused_in_words(text in "[SsPpX0-9KMG,: -]{0,24}|.{0,12}") {
            if let Err(reason) = ReceiveQueue::parse(&text) {
                prop_assert!(reason.contains('\''), "{text:?}: {reason}");
            }
        }
    }

    #[test]
    fn receive_queues_are_written_as_elsewhere() {
        let queue = ReceiveQueue::parse("S,64K,256,64,32").unwrap();
        assert_eq!(queue, ReceiveQueue { size: 65536, count: 256, low: 64, window: 32 });
        assert_eq!(
            ReceiveQueue::parse("S, 4096, 32").unwrap(),
            ReceiveQueue { size: 4096, count: 32, low: 8, window: 4 }
        );
        for (text, said) in [
            ("", "not of the form"),
            ("S,1,2", "a buffer has"),
            ("S,64K,1", "there can be"),
            ("S,64K,many", "not of the form"),
            ("P,64K,256", "only shared"),
            ("S,128,256:S,64K,1024", "several queues"),
            ("S,64K,256,256", "low mark"),
            ("S,64K,256,1,2,3", "not of the form"),
        ] {
            let reason = ReceiveQueue::parse(text).unwrap_err();
            assert!(reason.contains(said), "{text}: {reason}");
        }
    }

    #[test]
    fn a_dead_peer_is_given_up_in_time() {
        for seconds in [1, 4, 10, 60] {
            let limit = Duration::from_secs(seconds);
            let exponent = timeout_within(limit, 7);
            assert!(Duration::from_nanos(4096 << exponent) * 8 <= limit, "{seconds} s: {exponent}");
        }
        assert_eq!(timeout_within(Duration::from_secs(5), 7), 17);
    }

    #[test]
    fn impossible_values_are_named() {
        for (assignment, said) in [
            ("btl_openib_gid_index=first", "btl_openib_gid_index"),
            ("btl_openib_ib_retry_count=8", "btl_openib_ib_retry_count"),
            ("btl_openib_receive_queues=S", "btl_openib_receive_queues"),
        ] {
            let mut parameters = Parameters::default();
            parameters.assign(assignment, cableway_base::Source::Program).unwrap();
            let error = Settings::new(&parameters).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(Settings::new(&Parameters::default()).is_ok());
    }
}
