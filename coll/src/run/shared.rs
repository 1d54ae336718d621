//! What the operations of one engine share.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cableway_base::{Parameters, Rank};
use cableway_pml::{Engine, NodeCard};
use parking_lot::Mutex;

use super::memory::Pools;
use crate::choice::{Choice, Rules, Setup};
use crate::error::Error;

/// The collective operations of one engine.
pub struct Collectives {
    pub(super) engine: Arc<Engine>,
    parameters: Parameters,
    pub(super) rules: Rules,
    pub(super) pools: Pools,
    /// The cards of processes that have been met. A card never changes.
    cards: Mutex<HashMap<Rank, NodeCard>>,
    /// The choices of communicators. Those that are alike share one.
    choices: Mutex<Vec<Arc<Choice>>>,
    /// Is told of choices by rank 0 of each communicator.
    report: OnceLock<fn(&str)>,
}

/// What the choices of a communicator depend on, beside its processes.
#[derive(Clone, Copy)]
pub(super) struct Expected {
    /// The data is expected to be in device memory.
    pub(super) on_devices: bool,
    /// Ranks share a device.
    pub(super) one_device: bool,
}

/// The choices that are kept when no communicator uses them.
const KEPT_CHOICES: usize = 16;

impl Collectives {
    /// Creates the collective operations of an engine. Allocates nothing.
    pub fn new(engine: Arc<Engine>, parameters: &Parameters) -> Arc<Self> {
        let devices = engine.devices().clone();
        let (host, scratch) = (engine.host_pool().clone(), engine.scratch_pool().clone());
        Arc::new(Collectives {
            parameters: parameters.clone(),
            rules: Rules::new(parameters),
            pools: Pools { devices, host, scratch },
            cards: Mutex::default(),
            choices: Mutex::default(),
            report: OnceLock::new(),
            engine,
        })
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Calls `report` with one line for each algorithm that is chosen from now on by rank 0 of a communicator, and the
    /// predicted times behind the choice. Only the first report that is set counts.
    pub fn report_choices(&self, report: fn(&str)) {
        let _ = self.report.set(report);
    }

    /// Returns what is told of choices: the log, unless somebody asked for them.
    pub(super) fn report(&self) -> fn(&str) {
        self.report.get().copied().unwrap_or(|choice| log::debug!("{choice}"))
    }

    /// Returns the choice of a communicator of these processes.
    ///
    /// # Errors
    /// The modex cannot be reached.
    pub(super) fn choice(&self, processes: &[Rank], expected: Expected) -> Result<Arc<Choice>, Error> {
        let cards: Result<Vec<NodeCard>, Error> = processes.iter().map(|&process| self.card(process)).collect();
        let setup = Setup::new(cards?, expected.on_devices).on_one_device(expected.one_device);
        let mut choices = self.choices.lock();
        if let Some(known) = choices.iter().find(|choice| *choice.setup() == setup) {
            return Ok(known.clone());
        }
        let choice = Arc::new(Choice::new(setup, &self.parameters));
        if choices.len() >= KEPT_CHOICES {
            choices.retain(|choice| Arc::strong_count(choice) > 1);
        }
        choices.push(choice.clone());
        Ok(choice)
    }

    fn card(&self, process: Rank) -> Result<NodeCard, Error> {
        if let Some(card) = self.cards.lock().get(&process) {
            return Ok(*card);
        }
        // All members read the same card, so all take this one for a missing one.
        let card = self.engine.node_card(process)?.unwrap_or_default();
        self.cards.lock().insert(process, card);
        Ok(card)
    }
}
