//! Copies within this process, with host or device memory on either side.

use cableway_btl::{Error, Region, Token, Transfer};
use cableway_common_cuda::{Completion, DeviceError, Devices, Direction, Order};

use crate::NAME;

/// The device copies in flight.
#[derive(Default)]
pub(crate) struct Copies {
    running: Vec<Copying>,
}

struct Copying {
    token: Token,
    completion: Completion,
    /// A copy between two contexts first waits for the destination's default stream. This pair is copied after that.
    then: Option<Pair>,
}

/// Source and destination of one copy; equal lengths.
#[derive(Clone, Copy)]
struct Pair {
    to: Region,
    from: Region,
}

impl Copies {
    /// Copies `from` to `to`, which have equal lengths.
    ///
    /// # Safety
    /// Both regions stay valid until the copy completes. Until then no code writes `from` or accesses `to`.
    pub(crate) unsafe fn start(
        &mut self,
        devices: &Devices,
        to: Region,
        from: Region,
        token: Token,
    ) -> Result<Transfer, Error> {
        debug_assert_eq!(to.len, from.len);
        let pair = Pair { to, from };
        let (completion, then) = match (from.location.on_device(), to.location.on_device()) {
            (false, false) => {
                // SAFETY: host memory on both sides, valid by the caller's promise. A program may send a buffer to
                // itself only into another one, but nothing stops two requests from overlapping: hence `copy_to`.
                unsafe { from.address.copy_to(to.address, to.len) };
                return Ok(Transfer::Done);
            }
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
        self.running.push(Copying { token, completion, then });
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
                        Err(error) => Err(unavailable(error)),
                    },
                },
                Err(error) => Err(unavailable(error)),
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
    unsafe fn start(self, devices: &Devices) -> Result<Completion, DeviceError> {
        devices.check_one_vendor(&self.from.location, &self.to.location)?;
        let (from, to) = (&self.from.location, &self.to.location);
        let (direction, at) = Direction::between(from, to).unwrap_or((Direction::HostToDevice, *to));
        let mut batch = devices.batch(&at, direction, self.from.order.max(self.to.order))?;
        // SAFETY: the caller's promise.
        unsafe { batch.copy(self.to.address, self.from.address, self.to.len) };
        batch.finish()
    }
}

fn unavailable(error: DeviceError) -> Error {
    Error::Unavailable { btl: NAME, operation: "get", reason: error.to_string() }
}
