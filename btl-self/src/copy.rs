//! Copies within this process, with host or device memory on either side.

use cableway_btl::{Error, Region, Token, Transfer};
use cableway_common_cuda::{Completion, CopyShape, DeviceError, Devices, Direction, Order, Within};

use crate::NAME;

/// The device copies in flight.
#[derive(Default)]
pub(crate) struct Copies {
    running: Vec<Copying>,
}

struct Copying {
    /// Its name in errors.
    operation: &'static str,
    token: Token,
    completion: Completion,
    /// A copy between two contexts first waits for the destination's default stream. This pair is copied after that.
    then: Option<Pair>,
}

/// Source and destination of one copy.
pub(crate) struct Pair {
    pub(crate) to: Region,
    pub(crate) from: Region,
    pub(crate) how: CopyShape,
}

impl Copies {
    /// Starts a copy.
    ///
    /// # Safety
    /// Both regions stay valid until the copy completes. Until then no code writes the source or accesses the
    /// destination. The blocks lie in the regions, or, for irregular ones, in one allocation.
    pub(crate) unsafe fn start(
        &mut self,
        devices: &Devices,
        operation: &'static str,
        pair: Pair,
        token: Token,
    ) -> Result<Transfer, Error> {
        let unavailable = |error| unavailable(operation, error);
        let (to, from) = (pair.to, pair.from);
        let (completion, then) = match (from.location.on_device(), to.location.on_device()) {
            (false, false) => {
                // SAFETY: host memory on both sides, valid by the caller's promise. A program may send a buffer to
                // itself only into another one, but nothing stops two requests from overlapping: hence `copy_to`.
                unsafe { from.address.copy_to(to.address, to.len) };
                return Ok(Transfer::Done);
            }
            // Kernels copy blocks within one context only.
            (true, true) if from.location.context != to.location.context => {
                // An empty batch would complete at once, whatever its order.
                let ordered = match to.order {
                    Order::None => Completion::DONE,
                    _ => devices.default_stream(&to.location).map_err(unavailable)?,
                };
                (ordered, Some(pair))
            }
            // SAFETY: the caller's promise.
            _ => (unsafe { pair.start(devices) }.map_err(unavailable)?, None),
        };
        self.running.push(Copying { operation, token, completion, then });
        Ok(Transfer::Started)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Completes finished copies.
    pub(crate) fn take_done(&mut self, devices: &Devices) -> Vec<(Token, Result<(), Error>)> {
        let mut done = Vec::new();
        self.running.retain_mut(|copying| {
            let result = match copying.completion.poll() {
                Ok(false) => return true,
                Ok(true) => match copying.then.take() {
                    None => Ok(()),
                    // SAFETY: `start`'s caller promised validity until we report completion.
                    Some(pair) => match unsafe { pair.start(devices) } {
                        Ok(completion) => {
                            copying.completion = completion;
                            return true;
                        }
                        Err(error) => Err(unavailable(copying.operation, error)),
                    },
                },
                Err(error) => Err(unavailable(copying.operation, error)),
            };
            done.push((copying.token, result));
            false
        });
        done
    }
}

impl Pair {
    /// # Safety
    /// As [`Copies::start`].
    unsafe fn start(&self, devices: &Devices) -> Result<Completion, DeviceError> {
        devices.check_one_vendor(&self.from.location, &self.to.location)?;
        let (from, to) = (&self.from.location, &self.to.location);
        let (direction, at) = Direction::between(from, to).unwrap_or((Direction::HostToDevice, *to));
        let mut batch = devices.batch(&at, direction, self.from.order.max(self.to.order))?;
        if !matches!(self.how, CopyShape::Run) {
            batch.reachable(Within::OneDevice);
        }
        // SAFETY: the caller's promise.
        unsafe { batch.copy_shape(self.to.address, self.from.address, self.to.len, &self.how) };
        batch.finish()
    }
}

fn unavailable(operation: &'static str, error: DeviceError) -> Error {
    Error::Unavailable { btl: NAME, operation, reason: error.to_string() }
}
