//! Streams of engines that must not have any.

mod common;

use cableway_btl::Flags;
use cableway_common_cuda::Vendor;
use cableway_pml::{Error, Streams};

use common::{Link, Ranks};

#[test]
fn an_engine_without_locks_has_no_streams() {
    let ranks = Ranks::with(1, &[Link::new("net", Flags::empty())], &[], true);
    let error = Streams::new(&ranks.engines[0]).err().unwrap();
    assert!(matches!(error, Error::SerializedCalls), "{error}");
    assert!(error.to_string().contains("MPI_THREAD_MULTIPLE"), "{error}");
}

#[test]
fn without_a_driver_a_stream_is_an_error() {
    let ranks = Ranks::new(1, &[Link::new("net", Flags::empty())]);
    let streams = Streams::new(&ranks.engines[0]).unwrap();
    // SAFETY: nobody can use the stream.
    let error = unsafe { streams.stream(Vendor::Nvidia, 0x1000) }.err().unwrap();
    assert!(matches!(&error, Error::Stream(source) if source.to_string().contains("no device driver")), "{error}");
    // SAFETY: the default stream exists.
    let error = unsafe { streams.kernel_words(Vendor::Nvidia, 0) }.err().unwrap();
    assert!(matches!(&error, Error::Stream(source) if source.to_string().contains("no device driver")), "{error}");
    assert_eq!((streams.rounds(), streams.is_asleep()), (0, false));
}
