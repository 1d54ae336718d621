//! The parameters as this transport uses them: consistent with each other and within the limits of its rings.

use cableway_base::Parameters;
use cableway_base::parameters::{DeviceProtocols, SingleCopy};
use cableway_btl::{Job, MIN_MESSAGE};

use crate::cost::Estimates;
use crate::ring::fast_box::{MAX_INLINE, PAYLOAD, SLOT};
use crate::segment::{DeviceGeometry, Geometry};

/// Larger eager messages use large fragments, so that the small fragments stay close together.
const SMALL_FRAGMENT: usize = (4 << 10) + HEADER_ROOM;
/// The room for `pml`'s header besides a message's data.
const HEADER_ROOM: usize = 64;
/// The eager pool may grow to this multiple of `btl_sm_fragments`. Pages use memory only after their first access.
const POOL_GROWTH: usize = 16;
/// The number of larger fragments for each eager fragment.
const LARGE_SHARE: usize = 4;
/// The number of records that a peer may have in the own FIFO, if there are few peers.
const FIFO_QUOTA: usize = 32;
/// With more cells than this peers get smaller quotas.
const FIFO_CELLS: usize = 1 << 16;
/// The number of processes of other jobs that may share memory with this one at a time.
const MOST_FOREIGN_PROCESSES: usize = 124;
/// The data of a small device fragment.
const DEVICE_SMALL: usize = (64 << 10) + HEADER_ROOM;
/// The number of small device fragments for each large one.
const DEVICE_SMALL_SHARE: usize = 8;

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) geometry: Geometry,
    pub(crate) device_geometry: DeviceGeometry,
    pub(crate) inline_limit: usize,
    pub(crate) eager_limit: usize,
    /// The largest message that one call copies into a small fragment or a box. Larger ones use non-temporal stores.
    pub(crate) short_limit: usize,
    pub(crate) max_send_size: usize,
    pub(crate) device_max_send_size: usize,
    pub(crate) streaming_limit: usize,
    pub(crate) box_threshold: usize,
    /// True if devices copy between memories of two processes.
    pub(crate) device_copy: bool,
    /// True if kernels copy blocks at regular distances.
    pub(crate) device_kernels: bool,
    pub(crate) device_costs: Estimates,
    pub(crate) single_copy: bool,
    pub(crate) single_copy_limit: usize,
}

impl Settings {
    pub(crate) fn new(job: &Job, parameters: &Parameters) -> Self {
        let box_slots = previous_power_of_two((parameters.btl_sm_fast_box_size / SLOT).clamp(32, 1 << 17));
        let largest_inline = MAX_INLINE.min(box_slots / 8 * PAYLOAD);
        let eager_limit = parameters.btl_sm_eager_limit.clamp(MIN_MESSAGE, 1 << 28) + HEADER_ROOM;
        let inline_limit = parameters.btl_sm_inline_limit.clamp(PAYLOAD, largest_inline).min(eager_limit);
        let eager_size = fragment_size(eager_limit.min(SMALL_FRAGMENT).max(inline_limit));
        // Add room for a header, so that messages of a power of two bytes fill whole fragments.
        let data = parameters.btl_sm_max_send_size.clamp(eager_limit, 1 << 29);
        let large_size = fragment_size(data + HEADER_ROOM);
        let fragments = parameters.btl_sm_fragments.clamp(1, 1 << 14);

        // One more than the other processes, because a process connects to itself in tests.
        let foreign_processes = (job.foreign_processes as usize).min(MOST_FOREIGN_PROCESSES);
        let peers = (job.local_size as usize).clamp(2, 1 << 15) + 1 + foreign_processes;
        let quota = (FIFO_CELLS / peers).clamp(2, FIFO_QUOTA);
        let geometry = Geometry {
            fifo_cells: ((peers * quota).next_power_of_two() as u32).into(),
            fifo_quota: (quota as u32).into(),
            boxes: (parameters.btl_sm_fast_boxes.min(peers) as u32).into(),
            box_slots: (box_slots as u32).into(),
            eager_count: ((fragments * POOL_GROWTH) as u32).into(),
            eager_size: (eager_size as u32).into(),
            large_count: ((fragments * POOL_GROWTH / LARGE_SHARE).max(4) as u32).into(),
            large_size: (large_size as u32).into(),
        };

        let chunk_size = fragment_size(parameters.device_chunk_size.saturating_add(HEADER_ROOM).max(eager_limit));
        let chunks = (parameters.device_chunks * 2).clamp(2, 1 << 12);
        let device_geometry = DeviceGeometry {
            small_count: ((chunks * DEVICE_SMALL_SHARE) as u32).into(),
            // The messages of a window are in flight together, and there are few chunks.
            small_size: (large_size.min(fragment_size(DEVICE_SMALL)).min(chunk_size).max(eager_size) as u32).into(),
            chunk_count: (chunks as u32).into(),
            chunk_size: (chunk_size as u32).into(),
        };

        Settings {
            geometry,
            device_geometry,
            inline_limit,
            eager_limit,
            short_limit: eager_limit
                .min(eager_size)
                .min(parameters.btl_sm_streaming_limit.saturating_sub(1))
                .max(inline_limit),
            max_send_size: large_size,
            device_max_send_size: chunk_size,
            streaming_limit: parameters.btl_sm_streaming_limit,
            box_threshold: parameters.btl_sm_fast_box_threshold,
            device_copy: cfg!(any(feature = "cuda", feature = "rocm"))
                && parameters.device_ipc
                && parameters.device_protocols != DeviceProtocols::Copy,
            device_kernels: parameters.device_kernels,
            device_costs: Estimates::new(parameters),
            single_copy: parameters.btl_sm_single_copy != SingleCopy::None,
            single_copy_limit: parameters.btl_sm_single_copy_limit,
        }
    }
}

fn fragment_size(size: usize) -> usize {
    size.clamp(256, 1 << 29).next_multiple_of(64)
}

fn previous_power_of_two(value: usize) -> usize {
    1 << value.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_parameters_make_a_usable_segment() {
        for (name, value) in [
            ("btl_sm_eager_limit", "0"),
            ("btl_sm_eager_limit", "1G"),
            ("btl_sm_max_send_size", "0"),
            ("btl_sm_fast_box_size", "0"),
            ("btl_sm_fast_box_size", "1G"),
            ("btl_sm_streaming_limit", "0"),
            ("btl_sm_streaming_limit", "1G"),
            ("btl_sm_inline_limit", "0"),
            ("btl_sm_inline_limit", "1M"),
            ("btl_sm_fragments", "0"),
            ("btl_sm_fragments", "1000000"),
            ("btl_sm_fast_boxes", "0"),
            ("device_chunk_size", "0"),
            ("device_chunks", "0"),
        ] {
            for local_size in [0, 1, 2, 256, 100_000] {
                let mut parameters = Parameters::default();
                parameters.set_internal(name, value).unwrap();
                let job = Job::new("settings".into(), [0; 32], 0, local_size, local_size);
                let settings = Settings::new(&job, &parameters);
                let layout = settings.geometry.layout().unwrap_or_else(|error| panic!("{name}={value}: {error}"));
                assert!(layout.fifo_cells >= layout.fifo_quota * 2, "{name}={value}");
                assert!(settings.inline_limit <= settings.eager_limit, "{name}={value}");
                assert!(settings.eager_limit <= layout.large.size, "{name}={value}");
                assert!(settings.short_limit <= layout.eager.size, "{name}={value}");
                assert!(settings.eager_limit <= settings.device_max_send_size, "{name}={value}");
                // Otherwise a message of one chunk would need two.
                let chunk = parameters.device_chunk_size + HEADER_ROOM;
                assert!(settings.device_max_send_size >= chunk, "{name}={value}");
                assert!(settings.inline_limit <= settings.short_limit, "{name}={value}");
                assert!(settings.max_send_size <= layout.large.size, "{name}={value}");
                settings.device_geometry.layout().unwrap_or_else(|error| panic!("{name}={value}: {error}"));
            }
        }
    }
}
