//! The port that this process uses, and what it has there.

use std::path::PathBuf;
use std::sync::Arc;

use cableway_btl::Error;
use parking_lot::Mutex;

use crate::NAME;
use crate::gid::{self, Gid, Kind};
use crate::partitions::{self, Partition};
use crate::receive_queues::{ReceiveQueue, ReceiveQueues};
use crate::settings::{SPARE_COMPLETIONS, Settings};
use crate::verbs::{Channel, CompletionQueue, Context, Library, Path, PortFacts, Protection, SharedReceiveQueue};

/// Reads under way at a time on one connection, where the device has more. Soft-RoCE keeps memory for each.
pub(crate) const READS: i32 = 8;

pub(crate) struct Port {
    pub(crate) context: Arc<Context>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) completions: Arc<CompletionQueue>,
    /// Wakes who sleeps until there is a completion.
    pub(crate) channel: Arc<Channel>,
    /// The settings', as they are on this network.
    pub(crate) list: ReceiveQueues,
    /// As many.
    pub(crate) queues: Vec<PortQueue>,
    pub(crate) facts: PortFacts,
    pub(crate) gid: Gid,
    pub(crate) partition: Partition,
    /// Reads that the device serves, and makes, at a time on one connection.
    pub(crate) reads: u8,
    /// Completions that the queue has room for beside those of receive buffers.
    pub(crate) room: usize,
    expected: Mutex<Expected>,
    /// Completions that the device has at most in a queue.
    most_completions: usize,
    /// Work that a connection may have under way.
    pub(crate) depth: usize,
}

/// A receive queue of the settings, as the device has it.
pub(crate) struct PortQueue {
    pub(crate) options: ReceiveQueue,
    /// None: each connection has its own.
    pub(crate) shared: Option<Arc<SharedReceiveQueue>>,
}

/// What the completion queue is for.
struct Expected {
    entries: usize,
    /// Buffers that may report messages.
    receives: usize,
}

impl Port {
    /// Opens the best port of those that the settings allow and that can be had, where `peers` may send. None: there is
    /// none, and the reason.
    ///
    /// # Errors
    /// Something is wrong with what the settings name.
    pub(crate) fn open(settings: &Settings, peers: usize) -> Result<Result<Self, String>, Error> {
        if !crate::verbs::any_device() {
            return Ok(Err("this machine has no such device".to_owned()));
        }
        let library = match Library::load() {
            Ok(library) => library,
            Err(reason) => return Ok(Err(reason.to_owned())),
        };
        // Before anything is registered.
        if settings.fork_support {
            library.support_forks();
        }
        let contexts = match Context::open_all(library, |name| settings.wants_device(name)) {
            Ok(contexts) => contexts,
            Err(error) => return Ok(Err(format!("devices cannot be listed: {error}"))),
        };
        let mut candidates: Vec<(Arc<Context>, PortFacts)> = Vec::new();
        for context in &contexts {
            let ports = context.attributes().map_or(0, |attributes| attributes.phys_port_cnt);
            for number in 1..=ports {
                match context.port(number) {
                    Ok(facts) if facts.active && settings.wants_port(&context.name, number) => {
                        candidates.push((Arc::clone(context), facts));
                    }
                    Ok(facts) => log::debug!("{NAME}: {} port {number} is not used: {facts:?}", context.name),
                    Err(error) => log::info!("{NAME}: {} port {number} does not answer: {error}", context.name),
                }
            }
        }
        // What lies nearest, then what is fastest; of equals the first by name.
        candidates.sort_by_key(|(context, facts)| {
            (distance(&context.name), std::cmp::Reverse(facts.megabits()), context.name.clone(), facts.number)
        });
        let mut outside = Vec::new();
        for (context, facts) in candidates {
            let partition = match settings.choose_partition(&context, &facts)? {
                Ok(partition) => partition,
                Err(reason) => {
                    log::info!("{NAME}: {reason}: it is not used");
                    outside.push(reason);
                    continue;
                }
            };
            let Some(gid) = settings.choose_gid(&context, &facts)? else {
                log::info!("{NAME}: {} port {} has no address", context.name, facts.number);
                continue;
            };
            match Self::set_up(context, facts, (gid, partition), settings, peers) {
                Ok(port) => return Ok(Ok(port)),
                Err(error) => log::warn!("{error}; it is not used"),
            }
        }
        if !outside.is_empty() {
            return Err(crate::invalid("btl_openib_ib_pkey_val", outside.join("; ")));
        }
        Ok(Err("no device that may be used has an active port with an address".to_owned()))
    }

    fn set_up(
        context: Arc<Context>,
        facts: PortFacts,
        (gid, partition): (Gid, Partition),
        settings: &Settings,
        peers: usize,
    ) -> Result<Self, Error> {
        let failed = |what: &'static str| {
            let name = context.name.clone();
            move |error| Error::system(NAME, format!("{name}: {what}"), error)
        };
        let attributes = context.attributes().map_err(failed("cannot be asked for its limits"))?;
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
        // Soft-iWARP's queues do not grow. Where two ask each other, one of them has two ends for a while.
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
            reads,
            room,
            expected,
            most_completions,
            depth,
        })
    }

    /// Makes room for the completions of so many more receive buffers.
    ///
    /// # Errors
    /// The device has no more.
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

    /// So many receive buffers will report nothing after all.
    pub(crate) fn expect_less(&self, receives: usize) {
        let mut expected = self.expected.lock();
        expected.receives = expected.receives.saturating_sub(receives);
    }

    /// Receive buffers that each connection has of its own.
    pub(crate) fn own_buffers(&self) -> usize {
        self.queues.iter().filter(|queue| queue.shared.is_none()).map(|queue| queue.options.count).sum()
    }

    /// The way from here to a peer's port.
    pub(crate) fn path_to(&self, peer: &crate::card::Address, settings: &Settings) -> Path {
        // Within an InfiniBand subnet the local identifier is enough.
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

impl PortFacts {
    /// Of the link.
    pub(crate) fn megabits(&self) -> u64 {
        let lanes = match self.width {
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 1,
        };
        let lane = match self.speed {
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            _ => 2_500,
        };
        lanes * lane
    }
}

impl Settings {
    fn wants_device(&self, name: &str) -> bool {
        let names = |entries: &[String]| entries.iter().any(|entry| entry.split(':').next() == Some(name));
        // A device of which only a port is excluded is opened for the others.
        let excluded = self.exclude.iter().any(|entry| entry == name);
        if self.include.is_empty() { !excluded } else { names(&self.include) }
    }

    fn wants_port(&self, device: &str, port: u8) -> bool {
        let both = format!("{device}:{port}");
        let names = |entries: &[String]| entries.iter().any(|entry| entry == device || *entry == both);
        if self.include.is_empty() { !names(&self.exclude) } else { names(&self.include) }
    }

    fn choose_gid(&self, context: &Context, facts: &PortFacts) -> Result<Option<Gid>, Error> {
        let table = gid::table(context, facts.number, facts.gids, facts.ethernet);
        let Some(index) = self.gid_index else { return Ok(gid::choose(&table)) };
        let found = table.iter().find(|gid| gid.index == index).copied();
        found.map(Some).ok_or_else(|| {
            let reason = format!("{} port {} has no entry {index}", context.name, facts.number);
            crate::invalid("btl_openib_gid_index", reason)
        })
    }
}

impl Settings {
    /// The partition to use a port in. None: it has not the one that is wanted, and what it has.
    ///
    /// # Errors
    /// There is nothing at the place that was given.
    fn choose_partition(&self, context: &Context, facts: &PortFacts) -> Result<Result<Partition, String>, Error> {
        let port = format!("{} port {}", context.name, facts.number);
        if context.is_iwarp() {
            let none = Partition { index: 0, key: 0 };
            return Ok(self.pkey.map_or(Ok(none), |_| Err(format!("{port} speaks iWARP, which has no partitions"))));
        }
        let table: Vec<u16> = (0..facts.pkeys).map_while(|index| context.pkey(facts.number, index).ok()).collect();
        if let Some(wanted) = self.pkey {
            let found = partitions::choose(&table, wanted);
            let reason = || format!("{port} has no partition 0x{wanted:04x}, but {}", partitions::describe(&table));
            return Ok(found.ok_or_else(reason));
        }
        let index = self.pkey_index;
        match table.get(usize::from(index)) {
            Some(&key) => Ok(Ok(Partition { index, key })),
            None if index == 0 => Ok(Ok(Partition { index, key: 0 })),
            None => {
                let table = partitions::describe(&table);
                Err(crate::invalid("btl_openib_pkey_index", format!("{port} has no entry {index}, but {table}")))
            }
        }
    }
}

/// 0 where the device hangs on the NUMA node that this thread runs on, or nobody knows.
fn distance(device: &str) -> u32 {
    let text = std::fs::read_to_string(PathBuf::from(format!("/sys/class/infiniband/{device}/device/numa_node")));
    let Some(node) = text.ok().and_then(|text| text.trim().parse::<u32>().ok()) else { return 0 };
    let cpu = rustix::thread::sched_getcpu();
    u32::from(!PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/node{node}")).exists())
}
