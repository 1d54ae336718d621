//! Many small copies through the public interface, for callgrind: `copy_cost COUNT`.

use cableway_base::Parameters;
use cableway_common_cuda::{BouncePool, BufferKind, DeviceBuffer, DeviceIndex, Devices, Direction, Order, Within};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(1000, |count| count.parse().expect("a count"));
    let mut parameters = Parameters::default();
    parameters.assign_internal("costs=default").expect("there is such a parameter");
    for assignment in arguments {
        parameters.assign_internal(&assignment).expect("there is such a parameter");
    }
    let devices = Devices::open(&parameters);
    devices.initialise().expect("CABLEWAY_CUDA_LIBDIR names the folder of a driver");
    let len = 1 << 20;
    let memory = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, len).expect("there is memory");
    let other = DeviceBuffer::new(&devices, DeviceIndex(0), BufferKind::Device, len).expect("there is memory");
    let pool = BouncePool::new(&devices, 64 << 10, 4);
    let mut bounce = pool.take().expect("there is memory");
    let host = bounce.as_mut_ptr();
    let (device, other) = (memory.as_device_ptr(), other.as_device_ptr());
    for _ in 0..count {
        for direction in [Direction::DeviceToHost, Direction::HostToDevice, Direction::DeviceToDevice] {
            let at = devices.classify(device, 64);
            assert!(devices.one_allocation(&at, device, 64));
            let mut batch = devices.batch(&at, direction, Order::AfterDefaultStream).expect("the context is there");
            let (to, from) = match direction {
                Direction::DeviceToHost => (host, device),
                Direction::HostToDevice => (device, host),
                Direction::DeviceToDevice | Direction::WithinDevice => (other, device),
            };
            if direction == Direction::DeviceToDevice {
                batch.reachable(Within::OneDevice);
            } else {
                batch.page_locked();
            }
            // SAFETY: memory of this program, which nobody else uses, and which is waited for.
            unsafe { batch.copy(to, from, 6000) };
            let completion = batch.finish().expect("it begins");
            // Poll once, so that the count does not depend on the machine.
            std::thread::sleep(std::time::Duration::from_micros(300));
            completion.wait().expect("it ends");
        }
    }
}
