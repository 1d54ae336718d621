//! What the command says to wrong input.

use crate::support::{Test, cableway, finish};

pub(crate) const TESTS: &[Test] = &[("cli::wrong_input_is_explained", wrong_input_is_explained)];

fn wrong_input_is_explained() {
    let cases: &[(&[&str], &str)] = &[
        (&["run", "-n", "0", "--", "true"], "0"),
        (&["run", "-n", "2"], "PROGRAM"),
        (&["run", "--", "true"], "--np"),
        (&["run", "-n", "1", "--set", "btl_sm_eagr_limit=1", "--", "true"], "btl_sm_eager_limit"),
        (&["run", "-n", "1", "--set", "btl_sm_eager_limit=much", "--", "true"], "'much'"),
        (&["run", "-n", "1", "--set", "btl_sm_eager_limit", "--", "true"], "NAME=VALUE"),
        (&["run", "-n", "1", "--cuda-libdir", "/no/such", "--", "true"], "/no/such"),
        (&["run", "-n", "1", "--bind", "socket", "--", "true"], "core"),
    ];
    for (arguments, expected) in cases {
        let finished = finish(cableway().args(*arguments));
        assert_eq!(finished.code(), 2, "{arguments:?}: {finished:?}");
        assert!(finished.stderr.contains(expected), "{arguments:?}: {finished:?}");
    }
    let finished = finish(cableway().args(["run", "-n", "1", "true"]).env("CABLEWAY_PEER_TIMOUT", "1"));
    assert_eq!(finished.code(), 2);
    assert!(finished.stderr.contains("peer_timeout"), "{finished:?}");
}
