//! The ports that this process uses, and their resources.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cableway_btl::Error;
use parking_lot::Mutex;

use crate::NAME;
use crate::gid::{Gid, Kind};
use crate::networks::Network;
use crate::partitions::Partition;
use crate::ports::{Choice, Selection};
use crate::receive_queues::{ReceiveQueue, ReceiveQueues};
use crate::settings::{SPARE_COMPLETIONS, Settings};
use crate::verbs::{Channel, CompletionQueue, Context, Path, PortFacts, Protection, SharedReceiveQueue};

/// The number of concurrent reads on one connection, if the device supports more. Soft-RoCE allocates memory for each.
pub(crate) const READS: i32 = 8;

pub(crate) struct Port {
    pub(crate) context: Arc<Context>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) completions: Arc<CompletionQueue>,
    /// Wakes a sleeping thread at the next completion.
    pub(crate) channel: Arc<Channel>,
    /// The receive queues of the settings, adapted to this network.
    pub(crate) list: ReceiveQueues,
    /// One for each receive queue.
    pub(crate) queues: Vec<PortQueue>,
    pub(crate) facts: PortFacts,
    pub(crate) gid: Gid,
    pub(crate) partition: Partition,
    pub(crate) network: Network,
    /// The number of concurrent reads that the device serves and makes on one connection.
    pub(crate) reads: u8,
    /// The completions that the queue has room for, besides those of receive buffers.
    pub(crate) room: usize,
    /// The work under way on all connections. Each may need a completion.
    pub(crate) under_way: AtomicUsize,
    expected: Mutex<Expected>,
    /// The largest completion queue of the device.
    most_completions: usize,
    /// The work that a connection may have under way.
    pub(crate) depth: usize,
}

/// A receive queue of the settings, on this device.
pub(crate) struct PortQueue {
    pub(crate) options: ReceiveQueue,
    /// `None` if each connection has its own queue.
    pub(crate) shared: Option<Arc<SharedReceiveQueue>>,
}

/// The parts of the completion queue.
struct Expected {
    entries: usize,
    /// The number of buffers that may report messages.
    receives: usize,
}

impl Port {
    /// Opens the best usable ports that the settings allow, one on each network. `peers` may send. The best comes
    /// first. The inner error is the reason why there is none.
    ///
    /// # Errors
    /// The settings name something invalid, and no port is usable.
    pub(crate) fn open_all(settings: &Settings, peers: usize) -> Result<Result<Vec<Self>, String>, Error> {
        let mut ports: Vec<Self> = Vec::new();
        let mut selection = match Selection::new(settings) {
            Ok(selection) => selection,
            Err(reason) => return Ok(Err(reason)),
        };
        while ports.len() < settings.ports
            && let Some(choice) = selection.next()?
        {
            match Self::set_up(choice, settings, peers) {
                Ok(port) => {
                    selection.take(port.network);
                    ports.push(port);
                }
                Err(error) => log::warn!("{error}; it is not used"),
            }
        }
        if ports.is_empty() {
            return selection.nothing().map(Err);
        }
        Ok(Ok(ports))
    }

    fn set_up(choice: Choice, settings: &Settings, peers: usize) -> Result<Self, Error> {
        let Choice { context, facts, gid, partition, network } = choice;
        let failed = |what: &'static str| {
            let name = context.name.clone();
            move |error| Error::system(NAME, format!("{name}: {what}"), error)
        };
        let attributes = context.attributes().map_err(failed("cannot query its limits"))?;
        let most = |limit: i32| usize::try_from(limit).unwrap_or(0);
        let protection = Protection::new(&context).map_err(failed("no protection domain"))?;
        let mut queues = Vec::new();
        let shares = attributes.max_srq > 0 && attributes.max_srq_wr > 0;
        let list = settings.queues_on(context.is_iwarp(), shares, peers);
        if !shares && settings.queues.shared().next().is_some() {
            log::info!(
                "{NAME}: {} has no shared receive queues (S in btl_openib_receive_queues): each peer has buffers of its \
                 own, {list}",
                context.name
            );
        }
        let own = settings.queues.all_per_peer();
        for options in list.iter() {
            let most = most(if options.per_peer { attributes.max_qp_wr } else { attributes.max_srq_wr });
            if context.is_iwarp() && options.count > most {
                let remedy = match options.per_peer {
                    true => "ask for fewer in btl_openib_receive_queues".to_owned(),
                    false => format!("set btl_openib_receive_queues={own} in all processes"),
                };
                let reason = format!("{peers} peers take {} receive buffers, it has {most}: {remedy}", options.count);
                return Err(failed("too small")(std::io::Error::other(reason)));
            }
            let options = options.at_most(most);
            let shared = if options.per_peer {
                None
            } else {
                let made = SharedReceiveQueue::new(&protection, options.count);
                let refused = |error| {
                    let remedy = format!("{error}; btl_openib_receive_queues={own} in all processes takes none");
                    failed("no shared receive queue")(std::io::Error::other(remedy))
                };
                Some(made.map_err(refused)?)
            };
            queues.push(PortQueue { options, shared });
        }
        let most_completions = most(attributes.max_cqe);
        // There may be more buffers than the settings say.
        let shared: usize = list.shared().map(|queue| queue.count).sum();
        let entries = settings.completions.max(shared + 2 * SPARE_COMPLETIONS).min(most_completions);
        let count = |queue: &PortQueue| if queue.shared.is_some() { queue.options.count } else { 0 };
        let receives = queues.iter().map(count).sum();
        let room = entries.saturating_sub(receives);
        if room < 2 * SPARE_COMPLETIONS {
            let reason = format!(
                "{} has completion queues of {entries} at most, and the {receives} shared buffers of \
                 btl_openib_receive_queues may take one each: ask for fewer",
                context.name
            );
            return Err(crate::invalid("btl_openib_receive_queues", reason));
        }
        // Soft-iWARP's queues cannot grow. If two processes send requests to each other, one of them has two ends for a
        // while.
        let own: usize =
            if context.is_iwarp() { list.per_peer().map(|queue| 2 * peers * queue.count).sum() } else { 0 };
        let entries = (entries + own).min(most_completions);
        let channel = Channel::new(&context).map_err(failed("no completion channel"))?;
        let completions =
            CompletionQueue::new(&context, entries, Some(&channel)).map_err(failed("no completion queue"))?;
        let expected = Mutex::new(Expected { entries, receives });
        let reads = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom).clamp(0, READS) as u8;
        log::info!(
            "{NAME}: {} port {}, {:?}, address {} ({})",
            context.name,
            facts.number,
            gid.kind,
            gid.index,
            std::net::Ipv6Addr::from(gid.bytes)
        );
        let depth = settings.depth.min(most(attributes.max_qp_wr));
        Ok(Port {
            context,
            protection,
            completions,
            channel,
            list,
            queues,
            facts,
            gid,
            partition,
            network,
            reads,
            room,
            under_way: AtomicUsize::new(0),
            expected,
            most_completions,
            depth,
        })
    }

    /// Returns whether the completion queue has room for more.
    #[inline]
    pub(crate) fn has_completions(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) + SPARE_COMPLETIONS < self.room
    }

    /// Makes room for the completions of this many more receive buffers.
    ///
    /// # Errors
    /// The device supports no more.
    pub(crate) fn expect(&self, receives: usize) -> Result<(), Error> {
        let mut expected = self.expected.lock();
        let needed = expected.receives + receives + self.room;
        if needed > expected.entries {
            let refused = |error| {
                let what = format!(
                    "no completion queue for {needed} entries at {}, one for each buffer that peers have of their own \
                     (P in btl_openib_receive_queues; S is for many peers)",
                    self.context.name
                );
                Error::system(NAME, what, error)
            };
            if needed > self.most_completions {
                return Err(refused(std::io::ErrorKind::OutOfMemory.into()));
            }
            let entries = (2 * expected.entries).clamp(needed, self.most_completions);
            self.completions.resize(entries).map_err(refused)?;
            expected.entries = entries;
        }
        expected.receives += receives;
        Ok(())
    }

    /// Releases the room for this many receive buffers, which will report nothing.
    pub(crate) fn expect_less(&self, receives: usize) {
        let mut expected = self.expected.lock();
        expected.receives = expected.receives.saturating_sub(receives);
    }

    /// Returns the number of receive buffers that each connection owns.
    pub(crate) fn own_buffers(&self) -> usize {
        self.queues.iter().filter(|queue| queue.shared.is_none()).map(|queue| queue.options.count).sum()
    }

    /// Returns the path from here to a peer's port.
    pub(crate) fn path_to(&self, peer: &crate::card::Address, settings: &Settings) -> Path {
        // Within an InfiniBand subnet the local identifier suffices.
        let local = peer.kind == Kind::InfiniBand && peer.lid != 0;
        Path {
            port: self.facts.number,
            gid_index: self.gid.index,
            gid: (!local).then_some(peer.gid),
            lid: peer.lid,
            priority: settings.priority,
        }
    }
}
