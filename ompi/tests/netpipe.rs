//! NetPIPE's integrity check: an independent program sends messages of sizes around each power of two and checks every
//! byte.

mod support;

fn every_size_arrives(options: &[&str]) {
    if !support::has_netpipe() {
        return support::skip(support::NO_NETPIPE);
    }
    // Default mode; pre-posted receives; synchronous sends; receives from any source.
    for mode in [&[][..], &["-a"], &["-S"], &["-z"]] {
        support::netpipe(support::mpirun(2).args(options), 4 << 20, mode, support::HANG);
    }
}

#[test]
fn netpipe_finds_every_byte_over_shared_memory() {
    every_size_arrives(&["--mca", "pml_cableway_btl", "self,sm"]);
}

#[test]
fn netpipe_finds_every_byte_over_sockets() {
    every_size_arrives(&["--mca", "pml_cableway_btl", "self,tcp"]);
}
