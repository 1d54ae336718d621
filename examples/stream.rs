//! Two ranks pass device memory back and forth in the order of a CUDA stream. The host makes all calls first, and waits
//! once.
//!
//! ```text
//! cargo build --release --example stream
//! target/release/cableway run -n 2 -- target/release/examples/stream
//! ```

use std::ffi::{c_int, c_uint, c_void};
use std::path::PathBuf;

use cableway::{BufferKind, DeviceBuffer, DeviceIndex, LIBDIR_VARIABLE, Vendor, World};

const STEPS: usize = 100;
const BYTES: usize = 1 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let world = World::init()?;
    world.devices().initialise()?;
    let (everyone, me) = (world.communicator(), world.rank());
    let peer = if me < 2 { 1 - me } else { return Ok(()) };
    let device = DeviceIndex(me % world.devices().facts()?.devices.len() as u32);
    let mut memory = DeviceBuffer::new(world.devices(), device, BufferKind::Device, BYTES)?;
    memory.copy_from_host(0, &vec![me as u8; BYTES])?;

    // SAFETY: the program never destroys the stream.
    let stream = unsafe { world.stream(Vendor::Nvidia, new_stream(device.0 as c_int)?) }?;
    stream.scope(|scope| {
        let data = scope.lend(&mut memory)?;
        for _step in 0..STEPS {
            // Launch kernels that change the memory at `data.as_ptr()` between these calls.
            if me == 0 {
                scope.send(everyone, &data, peer, 7)?;
                scope.recv(everyone, &data, peer, 7)?;
            } else {
                scope.recv(everyone, &data, peer, 7)?;
                scope.send(everyone, &data, peer, 7)?;
            }
        }
        Ok::<(), cableway::Error>(())
    })?;
    stream.check()?;

    let mut host = vec![9; BYTES];
    memory.copy_to_host(0, &mut host)?;
    let right = host.iter().all(|&byte| byte == 0);
    println!("rank {me}: {STEPS} steps, the data is {}", if right { "right" } else { "wrong" });
    Ok(())
}

/// Creates a stream in a device's primary context, as `cudaSetDevice` and `cudaStreamCreate` do.
fn new_stream(device: c_int) -> Outcome<*mut c_void> {
    type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
    type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint) -> c_int;
    let folder = std::env::var_os(LIBDIR_VARIABLE).map(PathBuf::from).unwrap_or_default();
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the driver's functions have these signatures. The library stays loaded.
    let answers = unsafe {
        let driver = libloading::Library::new(folder.join("libcuda.so.1"))?;
        let answers = [
            driver.get::<Retain>("cuDevicePrimaryCtxRetain")?(&raw mut context, device),
            driver.get::<SetCurrent>("cuCtxSetCurrent")?(context),
            driver.get::<Create>("cuStreamCreate")?(&raw mut stream, 0),
        ];
        std::mem::forget(driver);
        answers
    };
    if answers == [0; 3] { Ok(stream) } else { Err(format!("the driver answered {answers:?}").into()) }
}
