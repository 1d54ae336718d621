//! The cost of the driver's small calls.

use cableway_common_cuda::{BouncePool, BufferKind, DeviceBuffer, DeviceIndex, Direction, Order};

use crate::app::{LEGACY_STREAM, NON_BLOCKING_STREAM};
use crate::{Bench, cost, devices, fact};

pub(crate) fn run(bench: &Bench) {
    driver_calls(bench);
    copies(bench);
}

fn driver_calls(bench: &Bench) {
    let app = &bench.app;
    let context = app.current();
    cost("push and pop a context", 10_000, || {
        app.cuCtxPushCurrent(context).unwrap();
        let mut popped = 0;
        app.cuCtxPopCurrent(&raw mut popped).unwrap();
    });
    cost("get the current context", 10_000, || {
        app.current();
    });
    cost("id of a context", 10_000, || {
        let mut id = 0;
        app.cuCtxGetId(context, &raw mut id).unwrap();
    });
    cost("exchange the capture mode and back", 10_000, || {
        let mut mode = 2;
        app.cuThreadExchangeStreamCaptureMode(&raw mut mode).unwrap();
        app.cuThreadExchangeStreamCaptureMode(&raw mut mode).unwrap();
    });
    cost("is the legacy stream capturing", 10_000, || {
        let mut status = 0;
        app.cuStreamIsCapturing(LEGACY_STREAM, &raw mut status).unwrap();
    });
    cost("query the legacy stream, idle", 10_000, || {
        app.cuStreamQuery(LEGACY_STREAM).unwrap();
    });
    let (event, stream) = (app.event(), app.stream(NON_BLOCKING_STREAM));
    cost("query an event that was never recorded", 10_000, || app.cuEventQuery(event).unwrap());
    cost("record in the legacy stream, wait in another", 1000, || {
        app.cuEventRecord(event, LEGACY_STREAM).unwrap();
        app.cuStreamWaitEvent(stream, event, 0).unwrap();
    });
    app.cuCtxSynchronize().unwrap();
    // Check whether a poll needs to enter the context.
    let answer = std::thread::scope(|scope| scope.spawn(|| app.cuEventQuery(event)).join());
    fact("query of an event in a thread without context", format_args!("{answer:?}"));
}

fn copies(bench: &Bench) {
    let ordered = &bench.devices;
    let unordered = devices(&["default_stream_order=none"]);
    let buffer = DeviceBuffer::new(ordered, DeviceIndex(0), BufferKind::Device, 64 << 20).unwrap();
    let pool = BouncePool::new(ordered, 64 << 20, 1);
    let mut bounce = pool.take().unwrap();
    let at = buffer.location();
    for direction in [Direction::DeviceToHost, Direction::HostToDevice] {
        for len in [8, 4096, 64 << 10, 1 << 20, 64 << 20] {
            for (name, devices, order) in [
                ("after the default stream", ordered, Order::AfterDefaultStream),
                ("first, parameter none", &unordered, Order::AfterDefaultStream),
                ("continued", ordered, Order::None),
            ] {
                cost(
                    &format!("{direction:?} {len} bytes and wait, {name}"),
                    if len > 65536 { 20 } else { 2000 },
                    || {
                        let (dst, src) = match direction {
                            Direction::HostToDevice => (buffer.as_device_ptr(), bounce.as_mut_ptr().cast_const()),
                            _ => (bounce.as_mut_ptr(), buffer.as_device_ptr().cast_const()),
                        };
                        let mut batch = devices.batch(&at, direction, order).unwrap();
                        // SAFETY: both have 64 MiB, and the completion is waited for.
                        unsafe { batch.copy(dst, src, len) };
                        batch.finish().unwrap().wait().unwrap();
                    },
                );
            }
        }
    }
}
