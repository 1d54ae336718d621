//! The objects that Cableway keeps in one context of the program to copy there.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use super::slots::Slots;
use super::streams::CopyStreams;
use crate::context::Context;
use crate::copier::Copier;
use crate::copy::{Direction, Order};
use crate::costs::{Costs, DeviceCosts};
use crate::cpu_mapping::CpuMapping;
use crate::driver::Failure;
use crate::kernels::{Kernels, Launching, Reducers};
use crate::location::DeviceIndex;
use crate::mapping_gate::Gate;
use crate::memo::Memo;
use crate::memory::ListMemory;
use crate::order::DefaultStream;
use crate::settings::Settings;

/// Cableway's streams, kernels and memory in one context. Each releases its objects when it is dropped.
pub(crate) struct Workspace {
    pub(crate) context: Arc<Context>,
    pub(crate) default_stream: Arc<DefaultStream>,
    pub(crate) settings: Settings,
    pub(super) streams: CopyStreams,
    pub(super) slots: Slots,
    pub(crate) kernels: Kernels,
    pub(super) reducers: Reducers,
    pub(super) copier: Copier,
    pub(crate) lists: Arc<ListMemory>,
    pub(super) mapping: CpuMapping,
    /// Operations that have begun to copy and are not complete.
    pub(super) under_way: AtomicUsize,
    costs: Arc<Costs>,
    /// The context's device, once it is known. Measured costs depend on it.
    device: OnceLock<DeviceIndex>,
}

impl Workspace {
    pub(crate) fn new(
        context: Arc<Context>,
        settled: Arc<Memo>,
        settings: Settings,
        costs: Arc<Costs>,
        gate: &Arc<Gate>,
    ) -> Self {
        let default_stream = Arc::new(DefaultStream::new(context.clone(), settled));
        let launching = Arc::<Launching>::default();
        let kernels =
            Kernels::new(context.clone(), default_stream.clone(), settings.kernels, gate.clone(), launching.clone());
        Workspace {
            settings,
            streams: CopyStreams::new(context.clone(), settings.turn),
            slots: Slots::new(context.clone()),
            kernels,
            reducers: Reducers::new(context.clone(), settings.kernels, gate.clone(), launching),
            copier: Copier::new(context.clone(), settings),
            lists: Arc::new(ListMemory::new(context.clone(), default_stream.clone(), settings.list_memory)),
            mapping: CpuMapping::new(context.clone(), default_stream.clone(), settings),
            under_way: AtomicUsize::new(0),
            costs,
            device: OnceLock::new(),
            default_stream,
            context,
        }
    }

    /// Returns the measured costs of its device.
    pub(crate) fn costs(&self) -> Option<&DeviceCosts> {
        self.costs.of(*self.device.get()?)
    }

    /// Sets the context's device. Its measured costs apply from now on.
    pub(crate) fn known_as(&self, device: DeviceIndex) {
        let _ = self.device.set(device);
    }

    /// Loads the kernels once, if the default stream is idle or was just found `idle`. The context is current.
    #[inline]
    pub(crate) fn load_kernels(&self, idle: bool) {
        if let Some(_loading) = self.kernels.load(idle)
            && self.settings.copier
        {
            self.copier.load();
        }
    }

    /// Checks whether work in this order waits for the default stream.
    pub(super) fn waits(&self, order: Order) -> bool {
        order == Order::AfterDefaultStream && self.settings.ordered
    }

    /// Makes the streams for copies, so that later copies make none. The context is current.
    pub(crate) fn make_streams(&self) -> Result<(), Failure> {
        self.streams.make_all()
    }

    /// Asks the driver whether the context still works.
    ///
    /// # Errors
    /// The context is destroyed, or a kernel has faulted there.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let asked = self.context.enter().and_then(|_scope| self.streams.ask_own(Direction::DeviceToHost));
        self.context.check_query(asked)
    }

    /// Checks whether the default stream is idle; `None` if a capture forbids the query. The context is current.
    pub(crate) fn ask_default_stream(&self) -> Result<Option<bool>, Failure> {
        let idle = self.default_stream.is_idle()?;
        if idle == Some(true) {
            self.load_kernels(true);
        }
        Ok(idle)
    }

    /// Checks whether kernels make copies in the context at present.
    pub(crate) fn has_kernels(&self) -> bool {
        if !self.settings.kernels {
            return false;
        }
        if !self.kernels.tried()
            && let Ok(_scope) = self.context.enter()
        {
            self.load_kernels(false);
        }
        self.kernels.ready()
    }
}
