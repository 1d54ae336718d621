//! Messages whose blocks lie in several allocations, as possible with absolute addresses from `MPI_BOTTOM`.

use std::ops::{ControlFlow, Range};

use cableway_common_cuda::{Devices, Location};

use crate::convertor::message::Message;
use crate::node::Node;
use crate::walk::{Visitor, nth, walk_node};

/// The kind of memory changes only at page borders.
const PAGE: u64 = 4096;

/// A message as ranges of packed bytes, each in one allocation or in host memory.
pub(super) struct Segments {
    /// The first packed byte of each range, and its location.
    starts: Vec<(u64, Location)>,
    size: u64,
}

impl Segments {
    /// Classifies each block of the message, which has `size` bytes.
    pub(super) fn new(message: &Message<'_>, size: u64, devices: &Devices) -> Segments {
        let mut found = Finder { message, devices, starts: Vec::new(), packed: 0, host: None };
        let _whole = message.walk(0..size, &mut found);
        Segments { starts: found.starts, size }
    }

    /// Checks whether there is only one range.
    pub(super) fn is_one(&self) -> bool {
        self.starts.len() == 1
    }

    pub(super) fn first_on_device(&self) -> Option<Location> {
        self.starts.iter().map(|start| start.1).find(Location::on_device)
    }

    /// Returns the ranges that contain the packed bytes `range`, cut to it.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (&Location, Range<u64>)> {
        let first = self.starts.partition_point(|start| start.0 <= range.start).saturating_sub(1);
        let starts = self.starts.iter().skip(first).take_while(move |start| start.0 < range.end);
        starts.enumerate().map(move |(i, (start, location))| {
            let end = self.starts.get(first + i + 1).map_or(self.size, |next| next.0);
            (location, (*start).max(range.start)..end.min(range.end))
        })
    }
}

struct Finder<'a> {
    message: &'a Message<'a>,
    devices: &'a Devices,
    starts: Vec<(u64, Location)>,
    packed: u64,
    /// The page of the last byte that was found in host memory.
    host: Option<u64>,
}

impl Finder<'_> {
    fn found(&mut self, location: Location, len: u64) {
        let same = |last: &Location| match location.on_device() {
            // An id of 0 is unknown and may belong to any allocation.
            true => *last == location && location.buffer_id != 0,
            false => !last.on_device(),
        };
        if !self.starts.last().is_some_and(|(_, last)| same(last)) {
            self.starts.push((self.packed, location));
        }
        self.packed += len;
    }

    /// Returns the location of `span` bytes from `offset` on, if they are in one allocation of a device.
    fn on_one_device(&self, offset: i64, span: u64) -> Option<Location> {
        let address = self.message.at(offset);
        let location = self.devices.classify(address, 1);
        let one = location.on_device() && self.devices.one_allocation(&location, address, span as usize);
        one.then_some(location)
    }
}

impl Visitor for Finder<'_> {
    fn block(&mut self, offset: i64, len: u64) -> ControlFlow<()> {
        let address = self.message.at(offset);
        let last = address.addr() as u64 + (len - 1);
        if self.host == Some(address.addr() as u64 / PAGE) && self.host == Some(last / PAGE) {
            self.found(Location::HOST, len);
            return ControlFlow::Continue(());
        }
        let location = self.devices.classify(address, len as usize);
        if len > 1 && !self.devices.one_allocation(&location, address, len as usize) {
            // Two adjacent allocations.
            let half = len / 2;
            self.block(offset, half)?;
            return self.block(offset + half as i64, len - half);
        }
        self.host = (!location.on_device()).then_some(last / PAGE);
        self.found(location, len);
        ControlFlow::Continue(())
    }

    fn repeat(&mut self, offset: i64, count: u64, stride: i64, body: &Node) -> ControlFlow<()> {
        if let Node::Block(len) = body {
            let end = nth(offset, count - 1, stride);
            let (low, span) = (offset.min(end), offset.abs_diff(end) + len);
            if let Some(location) = self.on_one_device(low, span) {
                self.host = None;
                self.found(location, count * len);
                return ControlFlow::Continue(());
            }
        }
        (0..count).try_for_each(|i| walk_node(body, nth(offset, i, stride), self))
    }
}
