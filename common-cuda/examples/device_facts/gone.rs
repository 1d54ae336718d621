//! The effect of calls on handles of destroyed contexts, each in a separate process, since some may crash.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::app::{App, Handle};
use crate::{Bench, fact};

const PROBES: [&str; 8] = [
    "id-destroyed",
    "id-reset",
    "push-destroyed",
    "push-reset",
    "query-event-destroyed",
    "query-event-reset",
    "synchronize-stream-destroyed",
    "id-reused",
];

pub(crate) fn run(_bench: &Bench) {
    for probe in PROBES {
        let output = std::env::current_exe().and_then(|this| Command::new(this).args(["--probe", probe]).output());
        match output {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                let end = match output.status.signal() {
                    Some(signal) => format!("killed by signal {signal}"),
                    None => format!("exit {:?}", output.status.code()),
                };
                fact(probe, format_args!("{said} ({end})"));
            }
            Err(error) => fact(probe, error),
        }
    }
}

/// One probe, in the process that may crash.
pub(crate) fn probe(bench: &Bench, probe: &str) {
    let app = &bench.app;
    let destroyed = probe.ends_with("destroyed");
    let context = if destroyed { app.create_context(0) } else { app.current() };
    let (event, stream) = (app.event(), app.stream(1));
    app.cuEventRecord(event, stream).unwrap();
    let before = id(app, context);
    if destroyed {
        app.cuCtxDestroy(context).unwrap();
    } else {
        app.cuDevicePrimaryCtxReset(0).unwrap();
    }
    app.cuCtxSetCurrent(0).unwrap();
    match probe {
        "push-destroyed" | "push-reset" => print!("{:?}", app.cuCtxPushCurrent(context)),
        "query-event-destroyed" | "query-event-reset" => print!("{:?}", app.cuEventQuery(event)),
        "synchronize-stream-destroyed" => print!("{:?}", app.cuStreamSynchronize(stream)),
        "id-reused" => {
            let again = app.use_device(0);
            let after = id(app, again);
            print!("handle again: {}, before {before:?}, after {after:?}", again == context);
        }
        _ => print!("before {before:?}, after {:?}", id(app, context)),
    }
}

fn id(app: &App, context: Handle) -> Result<u64, i32> {
    let mut id = 0;
    app.cuCtxGetId(context, &raw mut id).map(|()| id)
}
