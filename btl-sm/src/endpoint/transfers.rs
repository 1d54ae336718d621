//! `get` and `put`: single copies by the kernel, and copies by devices.

use cableway_btl::{Access, DeviceMapping, Error, Flags, Local, Packed, Region, Remote as Memory, Token, Transfer};
use cableway_common_cuda::{Location, Strided};

use super::SmEndpoint;
use crate::cost::PeerDevice;
use crate::device_copy::handle::Handle as DeviceHandle;
use crate::device_copy::{CopyRanges, NotBegun};
use crate::handle::Handle;
use crate::inner::Request;
use crate::peer::Status;
use crate::single_copy::{self, CopyError, Remote};

impl SmEndpoint {
    /// Returns the device of the peer's exported memory.
    pub(super) fn other(&self, local: &Location, handle: &DeviceHandle) -> PeerDevice {
        match self.inner.device_copies.on_one_device(local, handle) {
            true => PeerDevice::Same,
            false => PeerDevice::Device(*handle.device()),
        }
    }

    /// The local memory, the peer's memory, and an address in it that was checked against the handle.
    pub(super) fn resolve(
        &mut self,
        operation: &'static str,
        local: &Local<'_>,
        Memory { handle, offset, blocks }: &Memory<'_>,
        access: Access,
    ) -> Result<(Region, Remote, u64), Error> {
        if self.peer.status() == Status::Failed {
            return Err(self.peer.error());
        }
        self.refresh();
        let remote = self.peer.link.get().and_then(|link| link.remote);
        let Some(remote) = remote.filter(|_| self.capabilities.flags.contains(Flags::GET)) else {
            return Err(self.unavailable(operation, "single copy does not work with this peer"));
        };
        let (&Local::Run(local), None) = (local, blocks) else {
            return Err(self.unavailable(operation, "host memory in blocks"));
        };
        if local.location.on_device() {
            return Err(self.unavailable(operation, "the local memory is a device's"));
        }
        let address = Handle::resolve(handle, access, *offset, local.len);
        Ok((local, remote, address.map_err(|reason| self.unavailable(operation, reason))?))
    }

    /// # Safety
    /// As [`DeviceCopies::start`](crate::device_copy::DeviceCopies::start).
    pub(super) unsafe fn copy_on_device(
        &mut self,
        operation: &'static str,
        local: &Local<'_>,
        (handle, access, remote): (&DeviceHandle, Access, &Memory<'_>),
        token: Token,
    ) -> Result<Transfer, Error> {
        if self.peer.status() == Status::Failed {
            return Err(self.peer.error());
        }
        if !self.capabilities.flags.contains(Flags::DEVICE_GET) {
            return Err(self.unavailable(operation, "devices do not copy between the two processes"));
        }
        let (mut ours, mut theirs) = (Strided::run(local.len()), Strided::run(local.len()));
        let (region, what) = match *local {
            Local::Run(region) if remote.blocks.is_none() => (region, CopyRanges::Run(remote.offset)),
            Local::Packed(Packed { user: address, spread, position, len, location, order }) => {
                let region = Region { address, len, location, order };
                (region, CopyRanges::Packed { spread, position, offset: remote.offset })
            }
            Local::Run(region) | Local::Blocks { region, .. } => {
                if let Local::Blocks { blocks, .. } = local {
                    ours = *blocks;
                }
                theirs = remote.blocks.unwrap_or(theirs);
                (region, CopyRanges::Blocks { ours: &ours, theirs: &theirs, len: local.len() })
            }
        };
        let at = &region.location;
        // The limits are those of copies between devices.
        if at.on_device() {
            self.follow(at, self.other(at, handle));
        }
        let by = (self.peer.rank, &mut self.recent);
        // SAFETY: the caller's promise.
        let started = unsafe { self.inner.device_copies.start(by, &region, (handle, access), what, token) };
        started.map_err(|NotBegun { reason, wanted }| {
            if let Some(wanted) = wanted {
                self.inner.request(Request::Ask(self.peer.clone(), wanted));
            }
            self.refresh();
            self.unavailable(operation, reason)
        })
    }

    /// See [`Endpoint::map_device`](cableway_btl::Endpoint::map_device).
    pub(super) fn map_on_device(
        &mut self,
        what: (&DeviceHandle, Access),
        into: &Location,
    ) -> Result<Option<DeviceMapping>, Error> {
        if self.peer.status() == Status::Failed {
            return Err(self.peer.error());
        }
        if !self.capabilities.flags.contains(Flags::DEVICE_GET) {
            return Ok(None);
        }
        self.follow(into, self.other(into, what.0));
        match self.inner.device_copies.map((self.peer.rank, &mut self.recent), what, into) {
            Ok(mapping) => Ok(Some(mapping)),
            Err(NotBegun { reason, wanted }) => {
                if let Some(wanted) = wanted {
                    self.inner.request(Request::Ask(self.peer.clone(), wanted));
                }
                self.refresh();
                log::debug!("memory of rank {} is not mapped: {reason}", self.peer.rank);
                Ok(None)
            }
        }
    }

    pub(super) fn copied(&mut self, operation: &'static str, result: Result<(), CopyError>) -> Result<Transfer, Error> {
        match result {
            Ok(()) => Ok(Transfer::Done),
            Err(error) if error.is_death() => {
                let error = self.peer.gone("it died");
                self.inner.fail_from_outside(&self.peer, error.clone());
                Err(error)
            }
            Err(error) => {
                if matches!(&error, CopyError::System(error) if error.raw_os_error() != Some(libc::EPERM)) {
                    return Err(self.unavailable(operation, error.to_string()));
                }
                single_copy::explain(&error);
                self.peer.single_copy_checked(false);
                self.refresh();
                Err(self.unavailable(operation, error.to_string()))
            }
        }
    }
}
