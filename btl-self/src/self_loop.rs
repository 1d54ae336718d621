//! The BTL as `pml` uses it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use cableway_base::Parameters;
use cableway_btl::{Btl, Endpoint, Error, Job, Rank, Received, SharedBytes, Token, Upcalls};
use cableway_common_cuda::Devices;
use parking_lot::Mutex;

use crate::NAME;
use crate::endpoint::SelfEndpoint;
use crate::shared::Shared;

/// The transport of a process to itself.
pub struct SelfLoop {
    rank: Rank,
    eager_limit: usize,
    shared: Arc<Shared>,
    /// Held by the thread inside `progress`.
    progressing: Mutex<()>,
}

impl SelfLoop {
    /// Makes the transport of `job`'s own rank.
    pub fn new(job: &Job, parameters: &Parameters, devices: &Devices) -> Arc<Self> {
        Arc::new(SelfLoop {
            rank: job.rank,
            eager_limit: parameters.btl_self_eager_limit,
            shared: Arc::new(Shared {
                devices: devices.clone(),
                queue: Arc::default(),
                copies: Mutex::default(),
                registered: Arc::default(),
            }),
            progressing: Mutex::new(()),
        })
    }
}

impl Btl for SelfLoop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn card(&self) -> Vec<u8> {
        Vec::new()
    }

    fn connect(&self, peer: Rank, _card: &[u8]) -> Result<Vec<Box<dyn Endpoint>>, Error> {
        if peer != self.rank {
            return Ok(Vec::new());
        }
        Ok(vec![Box::new(SelfEndpoint::new(peer, self.eager_limit, self.shared.clone()))])
    }

    fn is_connected(&self, peer: Rank) -> bool {
        peer == self.rank
    }

    fn progress(&self, upcalls: &dyn Upcalls) -> usize {
        let Some(_inside) = self.progressing.try_lock() else { return 0 };
        let mut events = 0;
        // Deliver only messages that wait now, as an upcall may answer each message with another.
        for _ in 0..self.shared.queue.len() {
            let Some(message) = self.shared.queue.pop() else { break };
            upcalls.receive(self.rank, Received::new(SharedBytes::from_private(message.bytes()), None));
            self.shared.queue.recycle(message);
            events += 1;
        }
        let done: Vec<(Token, Result<(), Error>)> = self.shared.copies.lock().take_done(&self.shared.devices);
        for (token, result) in done {
            upcalls.completed(token, result);
            events += 1;
        }
        events
    }

    fn arm<'a>(&'a self, _wakers: &mut Vec<BorrowedFd<'a>>) -> bool {
        // Only threads of this process send here, so there is no descriptor to wait on.
        self.shared.queue.len() == 0 && self.shared.copies.lock().is_empty()
    }

    fn finalize(&self) -> bool {
        true
    }
}
