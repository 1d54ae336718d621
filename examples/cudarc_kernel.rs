//! A kernel between two messages, with the crate cudarc: rank 0 sends numbers, rank 1 doubles them on its device, and sends
//! them back. Neither waits for a stream: the library waits for a slice's work before it sends the slice.
//!
//! ```text
//! cargo build --release --features cudarc --example cudarc_kernel
//! target/release/cableway run -n 2 -- target/release/examples/cudarc_kernel
//! ```

use cableway::World;
use cableway::cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg};
use cableway::cudarc::nvrtc::Ptx;

const COUNT: u32 = 1 << 20;

/// `__global__ void twice(float *values, unsigned count)`
const TWICE: &str = r"
.version 7.0
.target sm_52
.address_size 64
.visible .entry twice(.param .u64 values, .param .u32 count)
{
    .reg .pred %past;
    .reg .b32 %block, %blocks, %thread, %index, %count;
    .reg .b64 %values, %offset, %address;
    .reg .f32 %value;
    ld.param.u64 %values, [values];
    ld.param.u32 %count, [count];
    mov.u32 %block, %ntid.x;
    mov.u32 %blocks, %ctaid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %index, %blocks, %block, %thread;
    setp.ge.u32 %past, %index, %count;
    @%past ret;
    cvta.to.global.u64 %values, %values;
    mul.wide.u32 %offset, %index, 4;
    add.u64 %address, %values, %offset;
    ld.global.f32 %value, [%address];
    add.f32 %value, %value, %value;
    st.global.f32 [%address], %value;
    ret;
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::init()?;
    let everyone = world.communicator();
    let devices = CudaContext::device_count()?.max(1) as u32;
    let context = CudaContext::new((world.rank() % devices) as usize)?;
    let stream = context.new_stream()?;
    match world.rank() {
        0 => {
            let numbers: Vec<f32> = (0..COUNT).map(|number| number as f32).collect();
            let mut values = stream.clone_htod(&numbers)?;
            everyone.send(&values, 1, 0)?;
            everyone.recv(&mut values, 1, 0)?;
            let doubled = stream.clone_dtoh(&values)?;
            let right = doubled.iter().zip(&numbers).all(|(doubled, number)| *doubled == number * 2.0);
            println!("rank 1 doubled {COUNT} numbers: {}", if right { "right" } else { "wrong" });
        }
        1 => {
            let twice = context.load_module(Ptx::from_src(TWICE))?.load_function("twice")?;
            let mut values = stream.alloc_zeros::<f32>(COUNT as usize)?;
            everyone.recv(&mut values, 0, 0)?;
            let mut launch = stream.launch_builder(&twice);
            launch.arg(&mut values).arg(&COUNT);
            // SAFETY: the kernel has these parameters, and accesses as many values as it is told.
            unsafe { launch.launch(LaunchConfig::for_num_elems(COUNT))? };
            everyone.send(&values, 0, 0)?;
        }
        _ => {}
    }
    Ok(())
}
