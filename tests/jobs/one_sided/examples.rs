//! The examples on device memory, and the page that goes through them.

use super::Outcome;
use crate::support::{Driver, finish, over, role_job, transports};

#[path = "../../../examples/one_sided_device.rs"]
mod device;

const PAGE: &str = include_str!("../../../docs/one-sided-examples.md");
const RUST: &str = include_str!("../../../examples/one_sided_device.rs");
const CPP: &str = include_str!("../../../capi/examples/one_sided_device.cc");

pub(super) fn example() -> Outcome {
    Ok(device::main()?)
}

pub(super) fn over_every_transport() {
    let driver = Driver::find().options();
    for (btl, ranks) in transports().iter().flat_map(|btl| [(btl, 1), (btl, 2), (btl, 3)]) {
        let mut options = over(btl);
        options.extend_from_slice(&driver);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let finished = finish(&mut role_job(ranks, &options, "one_sided_example")).assert_success();
        assert_eq!(finished.stdout.matches(" is done").count(), ranks as usize, "{finished:#?}");
    }
}

/// Returns lines without the blanks before them.
fn lines(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

pub(super) fn the_page_has_the_code_of_the_examples() {
    let mut parts = 0;
    for (language, program) in [("```rust\n", RUST), ("```cpp\n", CPP)] {
        let program = lines(program);
        for part in PAGE.split(language).skip(1) {
            let code = part.split("```").next().unwrap_or_default();
            assert!(program.contains(&lines(code)), "the page differs from the example: {code}");
            parts += 1;
        }
    }
    assert_eq!(parts, 14);
}
