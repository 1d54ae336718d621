//! Chooses the ports of this process, one for each network: the nearest first, then the fastest, then by name.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;

use cableway_base::Parameters;
use cableway_btl::Error;

use crate::NAME;
use crate::gid::{self, Gid, Kind};
use crate::networks::Network;
use crate::partitions::{self, Partition};
use crate::settings::Settings;
use crate::verbs::{Context, Library, PortFacts};

/// A port, and its configuration.
pub(crate) struct Choice {
    pub(crate) context: Arc<Context>,
    pub(crate) facts: PortFacts,
    pub(crate) gid: Gid,
    pub(crate) partition: Partition,
    pub(crate) network: Network,
}

/// Iterates over the ports that the settings allow.
pub(crate) struct Selection<'s> {
    settings: &'s Settings,
    candidates: std::vec::IntoIter<(Arc<Context>, PortFacts)>,
    /// The networks of used ports.
    taken: Vec<Network>,
    /// The reasons why ports are not in the partition.
    outside: Vec<String>,
}

impl<'s> Selection<'s> {
    /// The inner error is the reason why there can be no port.
    pub(crate) fn new(settings: &'s Settings) -> Result<Self, String> {
        let candidates = candidates(settings)?.into_iter();
        Ok(Selection { settings, candidates, taken: Vec::new(), outside: Vec::new() })
    }

    /// Returns the best remaining port on an unused network.
    ///
    /// # Errors
    /// The settings name something invalid, and no network is used yet.
    pub(crate) fn next(&mut self) -> Result<Option<Choice>, Error> {
        for (context, facts) in self.candidates.by_ref() {
            let name = format!("{} port {}", context.name, facts.number);
            match self.settings.choose(context, facts) {
                Ok(Ok(choice)) if self.taken.iter().any(|taken| taken.is(&choice.network)) => {
                    log::info!("{NAME}: {name} is not used: another port on its network is used");
                }
                Ok(Ok(choice)) => return Ok(Some(choice)),
                Ok(Err(MissingProperty::Address)) => log::info!("{NAME}: {name} has no address"),
                Ok(Err(MissingProperty::Partition(reason))) => {
                    log::info!("{NAME}: {reason}: it is not used");
                    self.outside.push(reason);
                }
                // A requested table entry may exist on one port only.
                Err(error) if self.taken.is_empty() => return Err(error),
                Err(error) => log::info!("{NAME}: {name} is not used: {error}"),
            }
        }
        Ok(None)
    }

    /// Records that a port on this network is used.
    pub(crate) fn take(&mut self, network: Network) {
        self.taken.push(network);
    }

    /// Explains why no port can be used.
    ///
    /// # Errors
    /// No port is in the requested partition.
    pub(crate) fn nothing(&self) -> Result<String, Error> {
        if self.outside.is_empty() {
            return Ok("no device that may be used has an active port with an address".to_owned());
        }
        Err(crate::invalid("btl_openib_ib_pkey_val", self.outside.join("; ")))
    }
}

/// A port that would be used, for `cableway info`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortFound {
    /// The device's name.
    pub device: String,
    /// The port's number.
    pub port: u8,
    /// The protocol of the port.
    pub protocol: &'static str,
    /// The address (GID) of the port.
    pub address: Ipv6Addr,
    /// The speed of the link.
    pub megabits: u64,
}

impl PortFound {
    /// Lists the ports that a process would use, the best first, without using them. The inner error is the reason why
    /// there is none.
    ///
    /// # Errors
    /// Parameters contradict each other, or name something that the ports lack.
    pub fn all(parameters: &Parameters) -> Result<Result<Vec<Self>, String>, Error> {
        let settings = Settings::new(parameters)?;
        let mut selection = match Selection::new(&settings) {
            Ok(selection) => selection,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut ports = Vec::new();
        while ports.len() < settings.ports
            && let Some(choice) = selection.next()?
        {
            selection.take(choice.network);
            ports.push(PortFound {
                device: choice.context.name.clone(),
                port: choice.facts.number,
                protocol: match choice.gid.kind {
                    Kind::InfiniBand => "InfiniBand",
                    Kind::RoceV1 => "RoCE v1",
                    Kind::RoceV2 => "RoCE v2",
                    Kind::Iwarp => "iWARP",
                },
                address: choice.gid.bytes.into(),
                megabits: choice.facts.megabits(),
            });
        }
        if ports.is_empty() { selection.nothing().map(Err) } else { Ok(Ok(ports)) }
    }
}

/// Lists the ports that the settings allow, in order. The inner error is the reason why there can be none.
fn candidates(settings: &Settings) -> Result<Vec<(Arc<Context>, PortFacts)>, String> {
    if !crate::verbs::any_device() {
        return Err("this machine has no such device".to_owned());
    }
    let library = Library::load()?;
    // Do this before anything is registered.
    if settings.fork_support {
        library.support_forks();
    }
    let contexts = Context::open_all(library, |name| settings.wants_device(name))
        .map_err(|error| format!("devices cannot be listed: {error}"))?;
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
    candidates.sort_by_key(|(context, facts)| {
        (distance(&context.name), std::cmp::Reverse(facts.megabits()), context.name.clone(), facts.number)
    });
    Ok(candidates)
}

/// The property that a port lacks.
enum MissingProperty {
    Address,
    /// The reason for users.
    Partition(String),
}

impl PortFacts {
    /// Returns the speed of the link.
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
    /// Returns the configuration of a port, if it is usable.
    ///
    /// # Errors
    /// A requested table entry does not exist.
    fn choose(&self, context: Arc<Context>, facts: PortFacts) -> Result<Result<Choice, MissingProperty>, Error> {
        let partition = match self.choose_partition(&context, &facts)? {
            Ok(partition) => partition,
            Err(reason) => return Ok(Err(MissingProperty::Partition(reason))),
        };
        let Some(gid) = self.choose_gid(&context, &facts)? else { return Ok(Err(MissingProperty::Address)) };
        let network = Network::of_port(gid.kind, gid.bytes);
        Ok(Ok(Choice { context, facts, gid, partition, network }))
    }

    fn wants_device(&self, name: &str) -> bool {
        let names = |entries: &[String]| entries.iter().any(|entry| entry.split(':').next() == Some(name));
        // A device is opened for its other ports if only one port is excluded.
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

    /// Returns the partition for a port. The inner error says that the port lacks the requested one, and lists its
    /// partitions.
    ///
    /// # Errors
    /// The requested table entry does not exist.
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

/// Returns 0 if the device is attached to this thread's NUMA node, or if that is unknown.
fn distance(device: &str) -> u32 {
    let text = std::fs::read_to_string(PathBuf::from(format!("/sys/class/infiniband/{device}/device/numa_node")));
    let Some(node) = text.ok().and_then(|text| text.trim().parse::<u32>().ok()) else { return 0 };
    let cpu = rustix::thread::sched_getcpu();
    u32::from(!PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/node{node}")).exists())
}
