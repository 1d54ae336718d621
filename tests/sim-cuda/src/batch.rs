//! `cuMemcpyBatchAsync`: many copies by one call, in any order among themselves.

use std::ffi::{c_int, c_uint};

use cudarc::driver::sys::CUmemcpySrcAccessOrder as Order;

use crate::abi::{Address, List, Out, driver_api};
use crate::context::current;
use crate::copies::{Claim, copy_later};
use crate::error::Error;
use crate::stream;

/// `CUmemcpyAttributes`, with integers for its enumerations, because a caller may pass any value.
#[derive(Clone, Copy)]
#[repr(C)]
struct Attributes {
    order: c_int,
    source: [c_int; 2],
    destination: [c_int; 2],
    flags: c_uint,
}

const _: () = assert!(size_of::<Attributes>() == size_of::<cudarc::driver::sys::CUmemcpyAttributes_st>());

/// The arguments that both versions have in common.
struct Batch {
    dsts: List<Address>,
    srcs: List<Address>,
    sizes: List<usize>,
    count: usize,
    attributes: List<Attributes>,
    first: List<usize>,
    attribute_count: usize,
    stream: usize,
}

impl Batch {
    /// Executes the batch. On an error, reports which copy caused it, if one did.
    fn run(&self) -> Result<(), (Error, Option<usize>)> {
        let whole = |error| (error, None);
        current().map_err(whole)?;
        let stream = stream::get(self.stream).map_err(whole)?;
        if stream.is_legacy() || self.count == 0 || self.attribute_count == 0 || self.attribute_count > self.count {
            return Err((Error::INVALID_VALUE, None));
        }
        let attributes = self.attributes.get(self.attribute_count).map_err(whole)?;
        let first = self.first.get(self.attribute_count).map_err(whole)?;
        // The first attributes apply from the first copy on, the others from a later one on.
        if first[0] != 0 || first.windows(2).any(|pair| pair[0] >= pair[1]) || first.iter().any(|at| *at >= self.count)
        {
            return Err((Error::INVALID_VALUE, None));
        }
        const STREAM: c_int = Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM as c_int;
        const ANY: c_int = Order::CU_MEMCPY_SRC_ACCESS_ORDER_ANY as c_int;
        if attributes.iter().any(|attributes| !(STREAM..=ANY).contains(&attributes.order)) {
            return Err((Error::INVALID_VALUE, None));
        }
        let dsts = self.dsts.get(self.count).map_err(whole)?;
        let srcs = self.srcs.get(self.count).map_err(whole)?;
        let sizes = self.sizes.get(self.count).map_err(whole)?;
        if let Some(empty) = sizes.iter().position(|size| *size == 0) {
            return Err((Error::INVALID_VALUE, Some(empty)));
        }
        for (index, ((dst, src), size)) in dsts.into_iter().zip(srcs).zip(sizes).enumerate().rev() {
            copy_later((dst, Claim::Any), (src, Claim::Any), size, self.stream)
                .map_err(|error| (error, Some(index)))?;
        }
        Ok(())
    }
}

driver_api! {
    12080 cuMemcpyBatchAsync: fn cuMemcpyBatchAsync(dsts: List<Address>, srcs: List<Address>, sizes: List<usize>, count: usize, attributes: List<Attributes>, first: List<usize>, attribute_count: usize, failed: Out<usize>, stream: usize) {
        let result = Batch { dsts, srcs, sizes, count, attributes, first, attribute_count, stream }.run();
        failed.set_if_asked(result.err().and_then(|error| error.1).unwrap_or(usize::MAX));
        result.map_err(|error| error.0)
    }

    13000 cuMemcpyBatchAsync: fn cuMemcpyBatchAsync_v2(dsts: List<Address>, srcs: List<Address>, sizes: List<usize>, count: usize, attributes: List<Attributes>, first: List<usize>, attribute_count: usize, stream: usize) {
        let batch = Batch { dsts, srcs, sizes, count, attributes, first, attribute_count, stream };
        batch.run().map_err(|error: (Error, Option<usize>)| error.0)
    }
}
