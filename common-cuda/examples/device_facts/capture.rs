//! What a stream capture permits to other threads, and how a thread detects its own capture.

use std::sync::Barrier;

use crate::app::{
    App, BLOCKING_STREAM, CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, Handle, LEGACY_STREAM, NON_BLOCKING_STREAM,
};
use crate::{Bench, fact};

pub(crate) fn run(bench: &Bench) {
    let app = &bench.app;
    let event = app.event();
    for (stream_name, flags) in [("non-blocking", NON_BLOCKING_STREAM), ("blocking", BLOCKING_STREAM)] {
        for (mode_name, mode) in [("global", CAPTURE_GLOBAL), ("thread-local", CAPTURE_THREAD_LOCAL)] {
            let during = format!("{mode_name} capture of a {stream_name} stream");
            same_thread(app, &during, flags, mode, event);
            other_thread(app, &during, flags, mode, event);
        }
    }
}

/// Runs `call` in a capture mode.
fn in_mode<T>(app: &App, mut mode: i32, call: impl FnOnce() -> T) -> T {
    app.cuThreadExchangeStreamCaptureMode(&raw mut mode).unwrap();
    let result = call();
    app.cuThreadExchangeStreamCaptureMode(&raw mut mode).unwrap();
    result
}

fn legacy_status(app: &App) -> Result<i32, i32> {
    let mut status = 0;
    app.cuStreamIsCapturing(LEGACY_STREAM, &raw mut status).map(|()| status)
}

fn end(app: &App, stream: Handle) -> Result<(), i32> {
    let mut graph = 0;
    app.cuStreamEndCapture(stream, &raw mut graph)?;
    if graph == 0 { Ok(()) } else { app.cuGraphDestroy(graph) }
}

fn same_thread(app: &App, during: &str, flags: u32, mode: i32, event: Handle) {
    let stream = app.stream(flags);
    app.cuStreamBeginCapture(stream, mode).unwrap();
    fact(&format!("own {during}: the legacy stream's status"), format_args!("{:?}", legacy_status(app)));
    fact(
        &format!("own {during}: event query, relaxed mode"),
        format_args!("{:?}", in_mode(app, 2, || app.cuEventQuery(event))),
    );
    fact(&format!("own {during}: end after that"), format_args!("{:?}", end(app, stream)));
    app.cuStreamBeginCapture(stream, mode).unwrap();
    fact(
        &format!("own {during}: event query, thread-local mode"),
        format_args!("{:?}", in_mode(app, 1, || app.cuEventQuery(event))),
    );
    fact(&format!("own {during}: end after that"), format_args!("{:?}", end(app, stream)));
    app.cuStreamDestroy(stream).unwrap();
}

fn other_thread(app: &App, during: &str, flags: u32, mode: i32, event: Handle) {
    let context = app.current();
    for relaxed in [2, 1] {
        let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                app.cuCtxSetCurrent(context).unwrap();
                let stream = app.stream(flags);
                app.cuStreamBeginCapture(stream, mode).unwrap();
                begun.wait();
                go_on.wait();
                let ended = end(app, stream);
                app.cuStreamDestroy(stream).unwrap();
                ended
            });
            begun.wait();
            let name = if relaxed == 2 { "relaxed" } else { "thread-local" };
            let here = in_mode(app, relaxed, || {
                let legacy = legacy_status(app);
                let query = app.cuEventQuery(event);
                let mut registered = vec![0_u8; 1 << 20];
                let address = registered.as_mut_ptr().cast();
                let register = app.cuMemHostRegister(address, registered.len(), 1);
                let unregister = app.cuMemHostUnregister(address);
                let created = app.event();
                let stream = app.stream(NON_BLOCKING_STREAM);
                let record = app.cuEventRecord(created, stream);
                let _ = app.cuStreamSynchronize(stream);
                let _ = app.cuStreamDestroy(stream);
                let _ = app.cuEventDestroy(created);
                format!("legacy {legacy:?}, query {query:?}, register {register:?}, {unregister:?}, record {record:?}")
            });
            fact(&format!("other thread's {during}, {name} mode here"), here);
            go_on.wait();
            fact(&format!("other thread's {during}: its end"), format_args!("{:?}", other.join()));
        });
    }
}
