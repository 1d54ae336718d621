//! Entry points for fuzzers of the messages between ranks and the built-in launcher. They must not panic.

use crate::modex::wire::{Reply, Request, frame};

/// Decodes a stream of frames as messages of a rank and of the launcher.
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
