//! Parses the list of receive queues in `btl_openib_receive_queues`, in Open MPI's syntax.

use std::fmt;
use std::ops::RangeInclusive;

use cableway_base::parameters::parse_size;
use cableway_btl::MAX_HEADER;
use smallvec::SmallVec;

/// The longest list. The description of its entries fits into one datagram of the smallest MTU.
pub(crate) const MOST_QUEUES: usize = 8;
/// The size of a buffer in bytes.
const SIZES: RangeInclusive<usize> = 64..=256 << 20;
/// The smallest size in the last entry, in bytes. Every message begins with a header, and some data must fit after it.
pub(crate) const LARGEST: usize = 2 * MAX_HEADER;
const COUNTS: RangeInclusive<usize> = 4..=1 << 16;

/// Receive buffers of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveQueue {
    /// Each peer has its own buffers. Otherwise all peers share them.
    pub(crate) per_peer: bool,
    pub(crate) size: usize,
    pub(crate) count: usize,
    /// With fewer posted buffers than this, messages are not kept beyond their upcall.
    pub(crate) low: usize,
    /// The number of messages from one peer that may wait here.
    pub(crate) window: usize,
    /// The number of messages from one peer after which consumption is reported to it.
    pub(crate) instalment: usize,
}

/// At least one queue, in growing sizes. A message uses the first queue whose buffers hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveQueues(SmallVec<[ReceiveQueue; 1]>);

impl ReceiveQueues {
    /// Parses `P,SIZE,NUMBER[,LOW[,WINDOW[,RESERVE]]]` and `S,SIZE,NUMBER[,LOW[,WINDOW[,START[,LIMIT]]]]`, separated by
    /// `:`. RESERVE, START and LIMIT have no effect here and are accepted for compatibility with Open MPI.
    ///
    /// # Errors
    /// Names the wrong entry, the fault, and the remedy.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let entries: Vec<&str> = text.split(':').map(str::trim).collect();
        if entries.len() > MOST_QUEUES {
            return Err(format!("'{text}' has {} entries; write at most {MOST_QUEUES}", entries.len()));
        }
        let mut queues: SmallVec<[ReceiveQueue; 1]> = SmallVec::new();
        for (index, entry) in entries.iter().enumerate() {
            let place = match entries.len() {
                1 => String::new(),
                count => format!("entry {} of {count}, ", index + 1),
            };
            let queue = ReceiveQueue::parse(entry).map_err(|reason| format!("{place}'{entry}', {reason}"))?;
            if let Some(before) = queues.last().filter(|before| before.size >= queue.size) {
                return Err(format!(
                    "{place}'{entry}', has buffers of {} bytes after those of {}; order the entries so that sizes grow",
                    queue.size, before.size
                ));
            }
            if index + 1 == entries.len() && queue.size < LARGEST {
                return Err(format!(
                    "{place}'{entry}', has buffers of {} bytes; the last entry holds the longest messages, so use at \
                     least {LARGEST}",
                    queue.size
                ));
            }
            queues.push(queue);
        }
        Ok(ReceiveQueues(queues))
    }

    /// Returns only the last queue. Its buffers hold the longest messages, and therefore all messages.
    pub(crate) fn last_alone(&self) -> Self {
        ReceiveQueues(self.0.last().copied().into_iter().collect())
    }

    /// Returns the queues for devices that cannot share buffers. Each peer then has its own: one for each message that
    /// may wait, and two for control messages.
    pub(crate) fn all_per_peer(&self) -> Self {
        let own = |queue: &ReceiveQueue| {
            if queue.per_peer {
                return *queue;
            }
            let count = (queue.window + 2).clamp(*COUNTS.start(), *COUNTS.end());
            let instalment = queue.instalment.clamp(1, count);
            ReceiveQueue { per_peer: true, count, low: count / 4, window: count, instalment, ..*queue }
        };
        ReceiveQueues(self.iter().map(own).collect())
    }

    /// Returns the queues for a network on which a message without a buffer breaks its connection. `peers` may send.
    /// The number of shared buffers and the windows guarantee a buffer for every message.
    pub(crate) fn without_waiting(&self, peers: usize) -> Self {
        // One message of each peer, its greeting and its goodbye.
        const LEAST: usize = 3;
        let peers = peers.max(1);
        let fit = |queue: &ReceiveQueue| {
            if queue.per_peer {
                let window = queue.count + 1 - LEAST;
                return ReceiveQueue { window, instalment: queue.instalment.min((window / 2).max(1)), ..*queue };
            }
            // Users may keep messages in a quarter of the buffers.
            let for_peers = (queue.count - queue.count / 4).max(LEAST * peers);
            let window = (for_peers / peers + 1 - LEAST).min(queue.window);
            let low = peers * (window + LEAST - 1);
            let (count, instalment) = (queue.count.max(low + 1), (window / 2).max(1));
            ReceiveQueue { count, low, window, instalment, ..*queue }
        };
        ReceiveQueues(self.iter().map(fit).collect())
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, ReceiveQueue> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of messages from one peer that may wait in all queues.
    pub(crate) fn window(&self) -> usize {
        self.iter().map(|queue| queue.window).sum()
    }

    /// Returns the length of the longest message in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.0.last().map_or(0, |queue| queue.size)
    }

    /// Returns the bytes of the buffers that all peers share.
    pub(crate) fn shared(&self) -> impl Iterator<Item = &ReceiveQueue> {
        self.iter().filter(|queue| !queue.per_peer)
    }

    /// Returns the bytes of the buffers that each peer has.
    pub(crate) fn per_peer(&self) -> impl Iterator<Item = &ReceiveQueue> + Clone {
        self.iter().filter(|queue| queue.per_peer)
    }
}

/// Formats the list as the parameter is written.
impl fmt::Display for ReceiveQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, queue) in self.iter().enumerate() {
            let ReceiveQueue { size, count, low, .. } = queue;
            let between = if index == 0 { "" } else { ":" };
            let (kind, window) = if queue.per_peer { ('P', queue.instalment) } else { ('S', queue.window) };
            write!(f, "{between}{kind},{size},{count},{low},{window}")?;
        }
        Ok(())
    }
}

impl ReceiveQueue {
    /// Returns the queue with at most `most` buffers.
    pub(crate) fn at_most(self, most: usize) -> Self {
        let count = self.count.min(most);
        let window = self.window.min(count);
        ReceiveQueue { count, low: self.low.min(count / 2), window, instalment: self.instalment.min(window), ..self }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let expected = "is neither P,SIZE,NUMBER[,LOW[,WINDOW[,RESERVE]]], such as P,4K,64, nor \
                        S,SIZE,NUMBER[,LOW[,WINDOW]], such as S,64K,256,64,32";
        let mut fields = text.split(',').map(str::trim);
        let per_peer = match fields.next() {
            Some("P" | "p") => true,
            Some("S" | "s") => false,
            Some("X" | "x") => return Err("asks for an XRC queue (X); use P or S".to_owned()),
            _ => return Err(expected.to_owned()),
        };
        let size = fields.next().ok_or(expected)?;
        let size = parse_size(size).map_err(|reason| format!("has an {reason}"))?;
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        let number =
            |field: &str| field.parse::<usize>().map_err(|_| format!("has '{field}' instead of a number, such as 64"));
        let numbers = fields.map(number).collect::<Result<Vec<usize>, _>>()?;
        let [count, rest @ ..] = &numbers[..] else { return Err(expected.to_owned()) };
        let count = *count;
        if rest.len() > if per_peer { 3 } else { 4 } {
            return Err(format!("has {} fields; it {expected}", rest.len() + 3));
        }
        if !SIZES.contains(&size) {
            return Err(format!("has buffers of {size} bytes; use {} to {}", SIZES.start(), SIZES.end()));
        }
        if !COUNTS.contains(&count) {
            return Err(format!("has {count} buffers; use {} to {}", COUNTS.start(), COUNTS.end()));
        }
        let low = rest.first().copied().unwrap_or(count / 4);
        let window = rest.get(1).copied().unwrap_or(count / 8);
        if low >= count || window > count {
            return Err(format!(
                "has {low} as its low mark and {window} as its window; use a low mark below the number of buffers, \
                 {count}, and a window of at most that number"
            ));
        }
        Ok(if per_peer {
            ReceiveQueue { per_peer, size, count, low, window: count, instalment: window.max(1) }
        } else {
            let window = window.max(2);
            ReceiveQueue { per_peer, size, count, low, window, instalment: window / 2 }
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> Result<ReceiveQueue, String> {
        ReceiveQueues::parse(text).map(|queues| {
            assert_eq!(queues.len(), 1);
            queues.0[0]
        })
    }

    prop_compose! {
        /// A valid entry and its parsed form.
        fn entry()(per_peer in any::<bool>(), size in SIZES, count in COUNTS, given in 0..5_usize,
                   parts in proptest::array::uniform2(0.0..1.0_f64), more in any::<u32>()) -> (String, ReceiveQueue) {
            let [low, window] = parts.map(|part| (part * count as f64) as usize);
            let kind = if per_peer { "P" } else { "s" };
            let given = if per_peer { given.min(3) } else { given };
            let fields = [low, window, more as usize, 1, 2];
            let extra: String = fields.iter().take(given).map(|field| format!(" ,{field}")).collect();
            let (low, window) = match given {
                0 => (count / 4, count / 8),
                1 => (low, count / 8),
                _ => (low, window),
            };
            let queue = if per_peer {
                ReceiveQueue { per_peer, size, count, low, window: count, instalment: window.max(1) }
            } else {
                ReceiveQueue { per_peer, size, count, low, window: window.max(2), instalment: window.max(2) / 2 }
            };
            (format!("{kind},{size}, {count}{extra}"), queue)
        }
    }

    proptest! {
        #[test]
        fn a_list_reads_as_written(mut entries in proptest::collection::vec(entry(), 1..=MOST_QUEUES + 1),
                                 sorted in any::<bool>()) {
            if sorted {
                entries.sort_by_key(|(_, queue)| queue.size);
            }
            let text: Vec<&str> = entries.iter().map(|(text, _)| text.as_str()).collect();
            let queues: Vec<ReceiveQueue> = entries.iter().map(|(_, queue)| *queue).collect();
            let grows = queues.windows(2).all(|pair| pair[0].size < pair[1].size);
            let large = queues.last().unwrap().size >= LARGEST;
            match ReceiveQueues::parse(&text.join(" : ")) {
                Ok(read) => {
                    prop_assert!(grows && large && queues.len() <= MOST_QUEUES);
                    prop_assert_eq!(read.longest(), queues.last().unwrap().size);
                    prop_assert_eq!(read.shared().count() + read.per_peer().count(), read.len());
                    prop_assert!(read.iter().eq(&queues));
                }
                Err(reason) if queues.len() > MOST_QUEUES => prop_assert!(reason.contains("entries"), "{}", reason),
                Err(reason) if grows => prop_assert!(!large && reason.contains("longest messages"), "{}", reason),
                Err(reason) => {
                    prop_assert!(reason.contains("sizes grow"), "{}", reason);
                    let wrong = queues.windows(2).position(|pair| pair[0].size >= pair[1].size).unwrap() + 1;
                    prop_assert!(reason.contains(text[wrong]), "{}", reason);
                }
            }
        }

        #[test]
        fn windows_and_marks_fit_the_buffers(per_peer in any::<bool>(), count in COUNTS, low in 0..1_usize << 17,
                                             window in 0..1_usize << 17) {
            let text = format!("{},4K,{count},{low},{window}", if per_peer { 'P' } else { 'S' });
            match one(&text) {
                Ok(queue) => {
                    prop_assert!(low < count && window <= count);
                    prop_assert!((1..=queue.window).contains(&queue.instalment) && queue.window <= count);
                }
                Err(reason) => {
                    prop_assert!(low >= count || window > count);
                    prop_assert!(reason.contains(&text) && reason.contains("low mark"), "{}", reason);
                }
            }
        }

        #[test]
        fn invalid_lists_are_refused_with_a_reason(text in "[SsPpX0-9KMG,: -]{0,24}|.{0,12}") {
            if let Err(reason) = ReceiveQueues::parse(&text) {
                prop_assert!(reason.contains('\''), "{text:?}: {reason}");
            }
        }
    }

    #[test]
    fn queue_lists_use_open_mpis_notation() {
        let shared = ReceiveQueue { per_peer: false, size: 65536, count: 256, low: 64, window: 32, instalment: 16 };
        assert_eq!(one("S,64K,256,64,32"), Ok(shared));
        // Open MPI's default list.
        let list = "P,128,256,192,128:S,2048,1024,1008,64:S,12288,1024,1008,64:S,65536,256,64,32";
        let list = ReceiveQueues::parse(list).unwrap();
        let small = ReceiveQueue { per_peer: true, size: 128, count: 256, low: 192, window: 256, instalment: 128 };
        assert_eq!((list.len(), list.0[0], list.0[3]), (4, small, shared));
        assert!(ReceiveQueues::parse("P,1K,256,192,128,8:S,4K,256,128,32,64,32").is_ok());
    }

    #[test]
    fn without_sharing_each_peer_has_a_full_window_of_buffers() {
        for text in ["S,64K,256,64,32", "S,4K,4", "S,4K,65536,1,65536", "P,2K,32,8,16:S,64K,64,16,16", "P,4K,64"] {
            let list = ReceiveQueues::parse(text).unwrap();
            let own = list.all_per_peer();
            assert_eq!((own.shared().count(), own.len(), own.longest()), (0, list.len(), list.longest()), "{text}");
            assert_eq!(ReceiveQueues::parse(&own.to_string()), Ok(own.clone()), "{text}: {own}");
            for (queue, before) in own.iter().zip(list.iter()) {
                assert!(queue.window >= before.window && queue.size == before.size, "{text}: {queue:?}");
                assert!(queue.instalment <= before.window, "{text}: {queue:?}");
            }
        }
        let list = ReceiveQueues::parse("P,2K,32,8,16:S,64K,256,64,32").unwrap();
        assert_eq!(list.to_string(), "P,2048,32,8,16:S,65536,256,64,32");
        assert_eq!(list.all_per_peer().to_string(), "P,2048,32,8,16:P,65536,34,8,16");
    }

    #[test]
    fn without_rnr_there_is_a_buffer_for_every_message() {
        for text in ["S,64K,256,64,32", "S,4K,4", "P,4K,4,1,1", "P,16K,512,128,64", "P,2K,32,8,16:S,64K,64,16,16"] {
            let list = ReceiveQueues::parse(text).unwrap();
            for peers in [0, 1, 2, 7, 63, 64, 65, 1000, 100_000] {
                let fit = list.last_alone().without_waiting(peers);
                assert_eq!((fit.len(), fit.longest()), (1, list.longest()));
                for (queue, before) in fit.iter().zip(list.last_alone().iter()) {
                    assert!((1..=before.window).contains(&queue.window), "{text}: {queue:?}");
                    assert!((1..=queue.window).contains(&queue.instalment), "{text}: {queue:?}");
                    assert!(queue.low < queue.count, "{text}: {queue:?}");
                    if queue.per_peer {
                        assert!(queue.window + 2 <= queue.count && queue.count == before.count, "{text}: {queue:?}");
                    } else {
                        assert!(peers * (queue.window + 2) <= queue.low, "{text}: {queue:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn errors_name_the_entry() {
        for (text, said) in [
            ("", "'', is neither P,SIZE"),
            ("S", "'S', is neither"),
            ("S,64K", "'S,64K', is neither"),
            ("S,1,2", "'S,1,2', has buffers of 1 bytes; use 64 to"),
            ("S,511,64", "'S,511,64', has buffers of 511 bytes; the last"),
            ("P,64,64:S,500,64", "entry 2 of 2, 'S,500,64', has buffers of 500 bytes; the last"),
            ("S,64K,1", "has 1 buffers; use 4 to"),
            ("P,64K,many", "has 'many' instead of a number"),
            ("P,64K,-64", "has '-64' instead of a number"),
            ("P,much,64", "has an invalid size"),
            ("X,4K,64", "use P or S"),
            ("S,64K,256,256", "has 256 as its low mark"),
            ("P,64K,64,1,2,3,4", "has 7 fields"),
            ("S,64K,64,1,2,3,4,5", "has 8 fields"),
            ("P,4K,64:", "entry 2 of 2, '', is neither"),
            ("P,4K,64:S,4K,256", "entry 2 of 2, 'S,4K,256', has buffers of 4096 bytes after those of 4096"),
            ("S,64K,256:S,8K,256:P,4K,9", "entry 2 of 3, 'S,8K,256', has buffers of 8192 bytes after"),
            ("S,1K,4:S,2K,4:S,3K,4:S,4K,4:S,5K,4:S,6K,4:S,7K,4:S,8K,4:S,9K,4", "has 9 entries"),
        ] {
            let reason = ReceiveQueues::parse(text).unwrap_err();
            assert!(reason.contains(said), "{text}: {reason}");
        }
    }
}
