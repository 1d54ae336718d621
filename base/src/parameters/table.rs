//! The table itself. A row: name, kind, default as a user would write it, help.

use super::kind::{
    CostSource, Count, DefaultStreamOrder, DeviceProtocols, Families, Flag, GpuDirect, Kind, SingleCopy, Size, Text,
    Time,
};
use super::{ParameterError, Row, Source};

macro_rules! parameters {
    ($( $name:ident : $kind:ty = $default:literal, $help:literal; )+) => {
        /// Every run-time parameter. Fields are read freely; [`Parameters::set`] records where a value came from.
        #[derive(Clone, Debug)]
        pub struct Parameters {
            $( #[doc = $help] pub $name: <$kind as Kind>::Value, )+
            sources: [Source; Parameters::ROWS.len()],
        }

        impl Default for Parameters {
            fn default() -> Self {
                Parameters {
                    $( $name: <$kind>::parse($default)
                        .unwrap_or_else(|reason| panic!("default of {}: {reason}", stringify!($name))), )+
                    sources: [Source::Default; Parameters::ROWS.len()],
                }
            }
        }

        impl Parameters {
            /// The rows, in the order of the table.
            pub const ROWS: &'static [Row] = &[
                $( Row { name: stringify!($name), kind: <$kind>::NAME, default: $default, help: $help }, )+
            ];

            /// Each row's value and where it came from, in the order of [`ROWS`](Self::ROWS).
            pub fn values(&self) -> Vec<(String, Source)> {
                [$( <$kind>::show(&self.$name), )+].into_iter().zip(self.sources).collect()
            }

            pub(super) fn sources(&self) -> &[Source] {
                &self.sources
            }

            /// Sets one parameter. A weaker source never overrides a stronger one.
            ///
            /// # Errors
            /// An unknown name, or a value that does not parse.
            pub fn set(&mut self, name: &str, value: &str, source: Source) -> Result<(), ParameterError> {
                let mut index = 0;
                $(
                    if name == stringify!($name) {
                        let parsed = <$kind>::parse(value).map_err(|reason| ParameterError::BadValue {
                            name: stringify!($name), value: value.to_owned(), reason,
                        })?;
                        if source >= self.sources[index] {
                            self.$name = parsed;
                            self.sources[index] = source;
                        }
                        return Ok(());
                    }
                    index += 1;
                )+
                let _ = index;
                Err(Self::unknown(name))
            }
        }
    };
}

parameters! {
    btl: Text = "", "the transports to use, by name and separated by commas (self, sm, tcp, and openib in a build with that feature); empty means every one that reaches the peer, the best first";

    device_protocols: DeviceProtocols = "auto", "auto: a device buffer takes the cheapest protocol that works; copy: only protocols that first copy into internal buffers";
    default_stream_order: DefaultStreamOrder = "legacy", "legacy: work already in a context's legacy default stream is done before a device buffer is read or written; none: the program has waited for it";
    device_register_host: Flag = "yes", "register internal buffers with the device's driver when the first device buffer appears";
    device_chunk_size: Size = "2M", "size of the largest pieces in which a large device message is copied through host memory";
    device_chunks: Count = "8", "pieces of a device message in flight per direction";
    device_batch_size: Size = "512K", "pieces of device messages that come together and amount to so many bytes are copied through host memory together; a batch leaves as a whole, while the next one is copied";
    device_landing_patience: Time = "20us", "a small copy from a device to internal buffers is over when its bytes are seen in memory, which is sooner than the driver tells; after so long without them the driver is asked; 0s: always";
    device_mapped_read_limit: Size = "0", "largest copy from a device that the CPU makes by loads, through a mapping of device memory (a driver from 13.3 on, or gdrcopy's kernel module) while nothing else is under way; 0: none. Never tried on hardware; a self-test runs at first use. 256 is a value to begin with";
    device_mapped_write_limit: Size = "0", "largest copy to a device that the CPU makes by stores, as device_mapped_read_limit; 0: none. 4K is a value to begin with";

    staging_limit: Size = "0", "host memory for copies of device buffers, of calls that Open MPI serves from host memory only; 0 means half of the machine's";
    device_kernels: Flag = "yes", "let kernels of ours make copies between devices where they are faster than copy engines: many at once, and data in blocks; and let them pack and unpack data in blocks that passes through the host; device_protocols=copy has no use for them";
    device_kernel_patience: Time = "200us", "a kernel of ours that finds no room on its device for so long is revoked, and copy engines do its work: what fills the device may be waiting for the message";
    device_kernel_limit: Size = "256K", "copies between devices are made by a kernel where several come together that are no larger than this on average; copy engines take larger ones, but within one device; where it is not set, what was measured decides (device_costs)";
    device_copier: Flag = "no", "let a kernel of ours stay on a device for a while and make small copies to other devices as it is told, in half the time that a copy engine takes; while it stays, cudaDeviceSynchronize and cudaFree wait for it in any thread of the program, up to device_copier_lease";
    device_copier_idle: Time = "200us", "the kernel that stays for small copies ends when it had none for so long; it is launched when small copies follow each other faster";
    device_copier_lease: Time = "2ms", "the kernel that stays for small copies ends after so long in any case, and stays away for as long as it was there";
    device_pack_latency: Time = "4us", "what a kernel of ours takes longer to pack or unpack data in blocks than a copy engine to copy the same in one run; where copy engines take longer for the blocks than that, as they do for many calls or short rows, the kernel does it";
    device_scratch_size: Size = "32M", "device memory taken in each context that receives data in irregular blocks from data that is in blocks, too: the sender's kernel packs it there in eighths of this, which the receiver's unpacks; 0: such messages go through the host";
    device_list_memory: Size = "64M", "device memory taken at most in each context for lists of irregular blocks that are sent or received again and again: kernels read them there faster than in host memory, where lists stay that find no room";
    device_ipc: Flag = "yes", "let processes of one node map each other's device memory, so that a message between devices is one copy; device_protocols=copy has no use for it";
    device_ipc_mappings: Count = "256", "allocations of other processes that are kept mapped; those not used for longest are closed";
    device_ipc_bytes: Size = "64G", "bytes of other processes' device memory that are kept mapped";
    device_ipc_pool_size: Size = "16K", "a message of at least this size from or to memory of a pool that was made to be shared by file descriptor is copied by a device; unlike other memory it has to be mapped and unmapped for each message";
    device_ipc_open_size: Size = "96M", "a message of at least this size maps its allocation at once; smaller ones do so when they meet the allocation a second time, because to map it takes the driver as long as to copy so much through the host";
    device_costs: CostSource = "cached", "where it is known from what copies by a device cost, by which it is decided who copies, by copy engine or kernel, and from device to device or through the host. cached: from device_costs_folder, where `cableway info --measure` keeps it; measure: what is not there is measured in the background when a device is first used, which takes milliseconds, and kept there; default: the estimates of this table. What is set by hand among these holds in any case: device_staged_*, device_direct_*, device_push_latency, device_kernel_limit";
    device_costs_folder: Text = "", "where what was measured of devices is kept, in a file for each; empty means cableway/device-costs in XDG_CACHE_HOME or ~/.cache. To have it measured anew, delete the files";
    device_staged_latency: Time = "19us", "what a small message between devices takes through the host; with the other estimates it decides for which sizes a single copy is made; measured unless it is set (device_costs), as are the next four";
    device_staged_rate: Size = "45G", "bytes a second of large messages between devices through the host";
    device_direct_latency: Time = "10us", "what a small message takes by a single copy between devices of two processes, its handshake included";
    device_direct_rate: Size = "350G", "bytes a second of such copies";
    device_push_latency: Time = "10us", "as device_direct_latency, where the sender copies instead of the receiver; if it takes no longer, the sender copies up to device_push_limit, and if it takes less time, everything";
    device_push_limit: Size = "1M", "largest message between devices that its sender copies: that is faster, but a receiver waits for a sender that computes; on one device the lower rank copies in any case";
    device_invitations: Flag = "no", "where senders store what they send between devices, tell them the address of a receive when it is posted, before the message is announced, if no other receive can get that message; ping-pongs were no faster with it";
    device_turn_latency: Time = "150us", "what a copy takes on a device on which several processes copy in turns; between processes on one device the lower rank copies";

    pml_unexpected_limit: Size = "4M", "bytes of messages without a posted receive that a peer may have here; beyond it their data stays with the sender";
    pml_early_messages: Count = "1000000", "messages that one peer may have here for communicators that this process has not created yet";
    pml_pipeline_depth: Count = "8", "fragments of a rendezvous message in flight";
    pml_offer_window: Size = "256K", "bytes of a rendezvous message that its sender is asked to copy at a time, where the receiver could also fetch them";
    pml_offer_patience: Count = "100", "polls without a sign of a sender that was asked to copy before the receiver fetches the message itself";
    pml_spin: Count = "2000", "polls without an event before a waiting call yields the processor; 0 yields at once; ranks that outnumber the cores always do";
    pml_sleep_after: Count = "0", "polls without an event before a waiting call sleeps until a transport has something, where all that are in use can wake it (self, tcp, openib); 0 polls on";
    peer_timeout: Time = "10s", "a peer that does not answer for so long over the network is taken for dead";
    progress_thread: Flag = "no", "run a thread that progresses messages while the program computes";

    btl_self_eager_limit: Size = "1K", "largest message to oneself that is copied at once";

    btl_sm_eager_limit: Size = "16K", "largest message that is sent without a handshake";
    btl_sm_max_send_size: Size = "64K", "data in the largest fragment that passes through the shared segment";
    btl_sm_streaming_limit: Size = "8K", "smallest message, header included, that is stored into a fragment past the caches, which is faster where two cores share none";
    btl_sm_fast_box_size: Size = "16K", "size of the ring through which one process sends small messages to one peer";
    btl_sm_fast_boxes: Count = "32", "how many peers may have a fast box of ours";
    btl_sm_fast_box_threshold: Count = "16", "messages to a peer before it gets a fast box";
    btl_sm_inline_limit: Size = "256", "largest message, header included, that is copied into a fast box";
    btl_sm_fragments: Count = "64", "fragments for eager messages in a process's segment at first";
    btl_sm_single_copy: SingleCopy = "auto", "how large messages are copied straight from one process's memory into another's";
    btl_sm_single_copy_limit: Size = "16K", "smallest message that is moved by single copy";
    btl_sm_set_ptracer: Flag = "no", "let any process of this user attach to this one (PR_SET_PTRACER_ANY), so that single copy works where Yama forbids it";
    btl_sm_socket_folder: Text = "", "folder for the sockets that pass segments, where ranks do not share a network namespace; empty means abstract sockets";

    btl_tcp_eager_limit: Size = "64K", "largest message that is sent without a handshake, its header included";
    btl_tcp_max_send_size: Size = "128K", "largest fragment";
    btl_tcp_if_include: Text = "", "interfaces, or addresses as CIDR, to use, separated by commas; empty means all but the excluded ones";
    btl_tcp_if_exclude: Text = "", "interfaces, or addresses as CIDR, not to use, separated by commas; not together with btl_tcp_if_include";
    btl_tcp_links: Count = "1", "connections per pair of interfaces";
    btl_tcp_port_min: Count = "0", "first port to listen on; 0 lets the system choose";
    btl_tcp_port_range: Count = "1000", "how many ports from btl_tcp_port_min on may be tried";
    btl_tcp_nodelay: Flag = "yes", "send small segments at once (TCP_NODELAY)";
    btl_tcp_sndbuf: Size = "0", "socket send buffer; 0 leaves it to the system";
    btl_tcp_rcvbuf: Size = "0", "socket receive buffer; 0 leaves it to the system";
    btl_tcp_retained_limit: Size = "64M", "received data that may wait in this transport's buffers for devices to copy it; beyond, it is copied elsewhere at once";
    btl_tcp_family: Families = "both", "address families of connections";

    btl_openib_eager_limit: Size = "12K", "largest message that is sent without a handshake, its header included";
    btl_openib_receive_queues: Text = "S,64K,256,64,32", "buffers for what arrives, in queues of growing sizes separated by colons; a message goes to the first that holds it. S,SIZE,NUMBER,LOW,WINDOW: shared by all peers; below LOW free ones messages are not kept in them, and WINDOW messages of one peer may wait there. P,SIZE,NUMBER,LOW,WINDOW: so many for each peer, which is told of every WINDOW messages that were consumed. LOW and WINDOW may be left out. Where librdmacm makes connections the last is used alone. Alike in all processes";
    btl_openib_min_rdma_size: Size = "64K", "smallest message that the device moves from buffer to buffer by itself, once both are registered for it";
    btl_openib_get: Flag = "yes", "large messages are read by the receiver's device; otherwise the sender's writes them, into memory that is registered for each anew";
    btl_openib_registration_cache: Size = "1G", "bytes of the program's memory that stay registered after they were sent from or received into, so that the next transfer finds them so, and as many of device memory; of host memory at most half of what may be locked; 0 registers for each transfer";
    btl_openib_want_fork_support: Flag = "yes", "where the kernel (before 5.12) does not copy pinned pages for a forked child, have the verbs library keep all memory that is registered from children, so that a fork never has the device and the program see different pages; a child that touches such a page before it executes another program ends, and memory of hugetlbfs takes RDMAV_HUGEPAGES_SAFE=1 in the environment";
    btl_openib_gpudirect: GpuDirect = "auto", "how the network device reaches device memory itself (GPUDirect RDMA): dmabuf, as the device's driver exports it; peer_memory, by the kernel's module nvidia_peermem; auto, whichever is there; off: device memory goes through host buffers, as it does where neither works";
    btl_openib_gpudirect_limit: Size = "128K", "largest message from or to device memory that the network device moves itself; larger ones go through host buffers in pieces that overlap, because on many machines it reads device memory slowly; where both hang on one PCI Express switch, a larger limit may pay";
    btl_openib_gpudirect_sysfs: Text = "/sys", "where the kernel shows its modules, of which one lets the network device reach device memory";
    btl_openib_if_include: Text = "", "devices to use, as DEVICE or DEVICE:PORT, separated by commas; empty means all but the excluded ones";
    btl_openib_if_exclude: Text = "", "devices not to use, as DEVICE or DEVICE:PORT, separated by commas; not together with btl_openib_if_include";
    btl_openib_max_btls: Count = "4", "how many ports to use at most, each of a network of its own (an InfiniBand subnet, an IP network): what lies nearest, then what is fastest; a peer is reached by the best that both are on, and the others stand by, should it break; 16 at most";
    btl_openib_gid_index: Text = "auto", "which of a port's addresses to use; auto prefers RoCE v2, and of those an IPv4 address, then any that is not link-local";
    btl_openib_connection_manager: Text = "auto", "how connections are made: datagrams (of the transport's own), rdmacm (by librdmacm, which needs an IP address on the port, and brings one queue pair to each peer), or auto: datagrams, but rdmacm where the device has none (iWARP)";
    btl_openib_cq_size: Count = "8192", "completions that may wait; work under way on all connections is kept below";
    btl_openib_send_depth: Count = "15", "work under way on one connection; queues take memory for the next power of two above";
    btl_openib_max_inline: Size = "48", "largest message that is written into the work request itself, if the device allows";
    btl_openib_ib_pkey_val: Text = "", "the partition to use, by its key (P_Key), such as 0x8001: of the ports, those that have it; which of its highest bits, that of full members, does not matter; empty: that at btl_openib_pkey_index";
    btl_openib_pkey_index: Count = "0", "the partition to use, by the place of its key in the port's table";
    btl_openib_allow_different_subnets: Flag = "no", "also reach peers to which no way is known: over InfiniBand those of other subnets, with librdmacm, which asks for the way through routers; over RoCE and iWARP those to which the kernel has no route by the port's own interface";
    btl_openib_service_level: Count = "0", "service level of connections (InfiniBand; of RoCE the priority); 0 where librdmacm makes them: what it finds";
    btl_openib_traffic_class: Count = "0", "traffic class of connections (RoCE, iWARP, InfiniBand between subnets); 0 where librdmacm makes them: what it finds";
    btl_openib_ib_timeout: Count = "0", "a device sends again after 4.096 us times two to this power; 0 chooses by peer_timeout";
    btl_openib_ib_retry_count: Count = "6", "how often a device sends again before it gives the peer up; soft-RoCE takes 7 for never to give up";
    btl_openib_min_rnr_timer: Count = "12", "how long a sender waits that found no buffer, as verbs number it; 12 is 0.64 ms";
}
