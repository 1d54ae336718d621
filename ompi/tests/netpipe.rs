//! NetPIPE's integrity check: messages of all sizes, each a little more and less than a power of two, every byte looked at
//! by a program that is not ours.

mod support;

fn every_size_arrives(options: &[&str]) {
    if !support::has_netpipe() {
        return support::skip(support::NO_NETPIPE);
    }
    // As it comes; receives posted before; synchronous sends; from anybody.
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
