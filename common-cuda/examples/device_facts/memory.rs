//! Which host memory the driver registers.

use std::ffi::c_void;
use std::time::Instant;

use crate::{Bench, fact};

const LEN: usize = 64 << 20;

pub(crate) fn run(bench: &Bench) {
    // SAFETY: a constant name; the descriptor is closed below.
    let memfd = unsafe { libc::memfd_create(c"cableway-facts".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: the descriptor made above.
    let sized = unsafe { libc::ftruncate(memfd, LEN as libc::off_t) };
    // SAFETY: as above; seals as our segments carry them.
    let sealed =
        unsafe { libc::fcntl(memfd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) };
    fact("memfd of 64 MiB, sealed", format_args!("{}", sized == 0 && sealed == 0));
    register(bench, "a shared mapping of a sealed memfd", memfd, libc::MAP_SHARED);
    // SAFETY: the descriptor made above, not used after.
    unsafe { libc::close(memfd) };
    register(bench, "an anonymous private mapping", -1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
}

fn register(bench: &Bench, name: &str, descriptor: i32, flags: i32) {
    // SAFETY: a new mapping at an address of the kernel's choice.
    let mapping =
        unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_READ | libc::PROT_WRITE, flags, descriptor, 0) };
    if mapping == libc::MAP_FAILED {
        return fact(name, std::io::Error::last_os_error());
    }
    let start = Instant::now();
    let registered = bench.app.cuMemHostRegister(mapping, LEN, 1);
    let spent = start.elapsed().as_secs_f64() * 1e3;
    fact(&format!("register {name}, 64 MiB"), format_args!("{registered:?} in {spent:.1} ms"));
    if registered.is_ok() {
        copy_through(bench, name, mapping);
        bench.app.cuMemHostUnregister(mapping).unwrap();
    }
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(mapping, LEN) };
}

fn copy_through(bench: &Bench, name: &str, mapping: *mut c_void) {
    let app = &bench.app;
    let (address, stream) = (app.malloc(LEN), app.stream(1));
    let start = Instant::now();
    app.cuMemcpyAsync(mapping as u64, address, LEN, stream).unwrap();
    let issued = start.elapsed().as_secs_f64() * 1e6;
    app.cuStreamSynchronize(stream).unwrap();
    let rate = LEN as f64 / start.elapsed().as_secs_f64() / 1e9;
    fact(&format!("copy of 64 MiB to {name}"), format_args!("issued in {issued:.1} us, {rate:.1} GB/s"));
    app.cuStreamDestroy(stream).unwrap();
    app.cuMemFree(address).unwrap();
}
