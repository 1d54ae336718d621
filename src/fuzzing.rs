//! Entry points for fuzzers: what ranks and the built-in launcher say to each other. None may panic.

use crate::modex::wire::{Reply, Request, frame};

/// A stream of frames from a rank, and from the launcher.
pub fn launcher(mut bytes: &[u8]) {
    while let Ok(Some((content, length))) = frame(bytes) {
        if let Ok(request) = Request::decode(content) {
            assert_eq!(&request.encode()[4..], content);
        }
        if let Ok(reply) = Reply::decode(content) {
            assert_eq!(&reply.encode()[4..], content);
        }
        bytes = &bytes[length..];
    }
}
