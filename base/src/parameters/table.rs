//! The table: one row for each parameter, with name, kind, default in a user's notation, one line of help, and when to
//! change it and what that costs. The internal settings follow, which only tests change.

use super::kind::{
    Allreduce, CostSource, Count, DefaultStreamOrder, DeviceProtocols, Families, Flag, GpuDirect, Kind, Performer,
    SingleCopy, Size, Text, Time,
};
use super::{ParameterError, Row, Source};

macro_rules! parameters {
    (
        parameters { $( $name:ident : $kind:ty = $default:literal, $help:literal, $more:literal; )+ }
        internal { $( $internal:ident : $internal_kind:ty = $internal_default:literal, $internal_help:literal; )+ }
    ) => {
        /// Every run-time parameter. Fields are read freely; [`Parameters::set`] records where a value came from.
        #[derive(Clone, Debug)]
        pub struct Parameters {
            $( #[doc = $help] pub $name: <$kind as Kind>::Value, )+
            $( #[doc = $internal_help] pub $internal: <$internal_kind as Kind>::Value, )+
            sources: [Source; Parameters::ROWS.len()],
            changed: [bool; Parameters::INTERNAL.len()],
            /// Whether [`set`](Self::set) knows internal settings, too.
            pub(super) for_tests: bool,
        }

        impl Default for Parameters {
            fn default() -> Self {
                Parameters {
                    $( $name: default_of::<$kind>(stringify!($name), $default), )+
                    $( $internal: default_of::<$internal_kind>(stringify!($internal), $internal_default), )+
                    sources: [Source::Default; Parameters::ROWS.len()],
                    changed: [false; Parameters::INTERNAL.len()],
                    for_tests: false,
                }
            }
        }

        impl Parameters {
            /// The rows, in the order of the table.
            pub const ROWS: &'static [Row] = &[
                $( Row { name: stringify!($name), kind: <$kind>::NAME, default: $default, help: $help, more: $more }, )+
            ];

            /// The names of internal settings.
            pub const INTERNAL: &'static [&'static str] = &[$( stringify!($internal), )+];

            /// Each row's value and where it came from, in the order of [`ROWS`](Self::ROWS).
            pub fn values(&self) -> Vec<(String, Source)> {
                [$( <$kind>::show(&self.$name), )+].into_iter().zip(self.sources).collect()
            }

            pub(super) fn sources(&self) -> &[Source] {
                &self.sources
            }

            pub(super) fn changed(&self) -> &[bool] {
                &self.changed
            }

            /// Sets one parameter. A weaker source never overrides a stronger one.
            ///
            /// # Errors
            /// An unknown name, or a value that does not parse.
            pub fn set(&mut self, name: &str, value: &str, source: Source) -> Result<(), ParameterError> {
                let mut index = 0;
                $(
                    if name == stringify!($name) {
                        let parsed = parsed::<$kind>(stringify!($name), value)?;
                        if source >= self.sources[index] {
                            self.$name = parsed;
                            self.sources[index] = source;
                        }
                        return Ok(());
                    }
                    index += 1;
                )+
                let _ = index;
                if self.for_tests && Self::INTERNAL.contains(&name) {
                    return self.set_internal(name, value);
                }
                Err(Self::unknown(name))
            }

            /// Sets a parameter or an internal setting. Only tests use it.
            ///
            /// # Errors
            /// As [`set`](Self::set).
            pub fn set_internal(&mut self, name: &str, value: &str) -> Result<(), ParameterError> {
                let mut index = 0;
                $(
                    if name == stringify!($internal) {
                        self.$internal = parsed::<$internal_kind>(stringify!($internal), value)?;
                        self.changed[index] = true;
                        return Ok(());
                    }
                    index += 1;
                )+
                let _ = index;
                self.set(name, value, Source::Program)
            }
        }
    };
}

fn default_of<K: Kind>(name: &str, text: &str) -> K::Value {
    K::parse(text).unwrap_or_else(|reason| panic!("default of {name}: {reason}"))
}

fn parsed<K: Kind>(name: &'static str, value: &str) -> Result<K::Value, ParameterError> {
    K::parse(value).map_err(|reason| ParameterError::BadValue { name, value: value.to_owned(), reason })
}

parameters! {
parameters {
    btl: Text = "",
        "transports to use, separated by commas: self, sm, tcp, and openib in a build with that feature",
        "If empty, all that reach the peer are used, the best first. Name some to exclude the others: `tcp` to test a network, `sm` to be sure that nothing leaves the node.";
    device_protocols: DeviceProtocols = "auto",
        "protocols for device memory: auto (the cheapest that works) or copy (staging through host memory only)",
        "Use copy to find out whether a faster protocol causes a fault. It costs most of the bandwidth between devices.";
    default_stream_order: DefaultStreamOrder = "auto",
        "what a message waits for before it touches a device buffer: legacy (work in the context's default stream) or none",
        "Use none if the program synchronises its streams before each message. It saves 1 to 3 us a message. With none, a message may read data that a copy or kernel has not written yet.";
    device_register_host: Flag = "yes",
        "register internal buffers with the device's driver when the first device buffer appears",
        "Use no where the memory lock limit is too low. Staged messages then run at the speed of pageable memory.";
    staging_limit: Size = "0",
        "host memory for copies of device buffers in calls that Open MPI runs on host memory; 0 means half of the machine's memory",
        "Lower it where several jobs share a node. Calls that need more fail. Half of it, at most 512 MiB, is kept for the next calls.";
    intercept: Flag = "yes",
        "let the Open MPI component redirect calls without a component interface, such as MPI_Pack, to its own functions",
        "Use no if it conflicts with another tool that redirects MPI calls. Such calls then crash on device memory, unless libcableway_mpi.so is preloaded.";
    device_kernels: Flag = "yes",
        "let kernels reduce device memory, and copy where they are faster than copy engines: many copies at once, and data in blocks",
        "Use no if a profile must show only the program's kernels, or if the program occupies the whole device for long. Data in short blocks then becomes slow, and the host reduces.";
    device_copier: Flag = "no",
        "keep a kernel resident on the device that makes small copies in half the time of a copy engine",
        "Use yes for programs that are limited by the latency of small messages between devices. cudaDeviceSynchronize and cudaFree then wait for the kernel, up to device_copier_lease.";
    device_copier_lease: Time = "2ms",
        "longest run of the resident kernel for small copies (device_copier); it then pauses for as long",
        "Longer leases serve more messages. cudaDeviceSynchronize and cudaFree may wait that long.";
    device_scratch_size: Size = "32M",
        "scratch memory in each device context that receives irregular blocks from irregular blocks",
        "Kernels pack into it and unpack from it. With 0, such messages are staged, which is several times slower.";
    device_list_memory: Size = "64M",
        "most device memory in each context for lists of irregular blocks that are sent repeatedly",
        "Further lists stay in host memory, where kernels read them more slowly.";
    device_ipc: Flag = "yes",
        "let processes of one node map each other's device memory",
        "Use no where a container or a policy forbids it, to avoid the warning. Messages between devices are then staged.";
    device_ipc_mappings: Count = "256",
        "most device allocations of other processes that stay mapped; the least recently used are closed",
        "Raise it if a program sends from more buffers in turn. Opening a mapping costs 2 ms.";
    device_ipc_bytes: Size = "64G",
        "most bytes of other processes' device memory that stay mapped",
        "See device_ipc_mappings. Freed memory returns to the device only when peers have closed their mappings.";
    costs: CostSource = "cached",
        "source of measured costs: cached (files), measure (files; missing costs of devices are measured in the background) or default (built-in estimates)",
        "Run `cableway info --measure` once on each node to fill the files. With measure, a background thread may delay the program's driver calls by some milliseconds. With default, no file is read or written.";
    costs_folder: Text = "",
        "folder for measured costs; empty means cableway/costs in XDG_CACHE_HOME or ~/.cache",
        "Set it where home directories are read-only, or shared between clusters with different hardware. Delete the files to measure everything again.";
    device_mapped_read_limit: Size = "0",
        "largest copy from a device that the CPU makes by loads from mapped device memory; 0 disables it",
        "Needs driver 13.3 or gdrcopy; never tested on hardware, so a self-test runs at first use. Start with 256.";
    device_mapped_write_limit: Size = "0",
        "largest copy to a device that the CPU makes by stores to mapped device memory; 0 disables it",
        "Needs driver 13.3 or gdrcopy; see device_mapped_read_limit. Start with 4K.";

    pml_unexpected_limit: Size = "4M",
        "most bytes of unexpected messages from one peer; the data of further messages stays with the sender",
        "Raise it for programs that post receives late. Each peer may use that much host memory.";
    pml_spin: Count = "2000",
        "polls without an event before a waiting call yields the processor; 0 yields at once",
        "Lower it where ranks share processors with other programs. Ranks that outnumber the cores always yield.";
    pml_sleep_after: Count = "0",
        "polls without an event before a waiting call sleeps until a transport has an event; 0 never sleeps",
        "Saves processor time and power where ranks wait for long. It has an effect only if all transports in use can wake the process: self, tcp and openib, but not sm. A message that arrives during sleep takes some microseconds more.";
    peer_timeout: Time = "10s",
        "time after which a peer that does not answer over the network counts as dead",
        "Raise it on networks that lose packets for long. Requests to a dead peer fail that much later.";
    progress_thread: Flag = "no",
        "run a thread that moves messages while the program computes",
        "It overlaps large transfers with computation. It occupies a core while messages are in flight, and makes small messages slower.";

    coll_performer: Performer = "auto",
        "who performs an MPI program's collectives: auto, mpi (Open MPI's own modules, on host copies of device memory) or cableway",
        "Set the same value on all ranks. auto changes a communicator to cableway once a rank has passed device memory. Use mpi to find out whether that causes a fault, and cableway to have it from the first call on.";
    coll_allreduce: Allreduce = "auto",
        "algorithm of reductions to all ranks: auto, recursive_doubling, direct, one_shot, peer_access, ring, rabenseifner or hierarchical",
        "Set the same value on all ranks. auto takes the one whose cost is predicted to be the least (cableway explain --collective). A wrong one costs time.";

    btl_sm_eager_limit: Size = "16K",
        "largest message that is sent eagerly over shared memory",
        "A larger limit saves a handshake. Such messages cost one more copy, and more memory if they are unexpected.";
    btl_sm_max_send_size: Size = "64K",
        "largest fragment through the shared segment, without headers",
        "Larger fragments cost memory for each process and rarely gain speed.";
    btl_sm_single_copy: SingleCopy = "auto",
        "how large messages are copied directly from one process's memory to another's: auto, cma or none",
        "Use none where ranks must not read each other's memory. Large messages then cost two copies.";
    btl_sm_set_ptracer: Flag = "no",
        "let any process of this user attach to this one (PR_SET_PTRACER_ANY), so that single copy works under Yama",
        "Yama exists to forbid this. Use yes only if all of the user's processes are trusted.";
    btl_sm_socket_folder: Text = "",
        "folder for the sockets over which processes of a node connect; empty means abstract sockets",
        "Set it to a shared folder where ranks of one node run in different network namespaces. Otherwise they use tcp.";

    btl_tcp_eager_limit: Size = "64K",
        "largest message that is sent eagerly over tcp",
        "A larger limit saves a round trip, and costs memory for unexpected messages.";
    btl_tcp_if_include: Text = "",
        "interfaces to use, by name or CIDR address, separated by commas; empty means all except the excluded ones",
        "Set it on hosts with several networks, and wherever the network is not trusted.";
    btl_tcp_if_exclude: Text = "",
        "interfaces not to use, by name or CIDR address, separated by commas; not together with btl_tcp_if_include",
        "Exclude bridges of containers and virtual machines, which have the same address on every host.";
    btl_tcp_links: Count = "1",
        "connections for each pair of interfaces",
        "Two or more help where one connection does not fill the network. Each costs descriptors and buffers for every peer.";
    btl_tcp_port_min: Count = "0",
        "first port to listen on; 0 lets the system choose",
        "Set it and btl_tcp_port_range to the ports that a firewall allows.";
    btl_tcp_port_range: Count = "1000",
        "number of ports to try, starting at btl_tcp_port_min",
        "Use at least the number of ranks on a node, and of their workers. A rank that finds no free port in the range does not start.";
    btl_tcp_sndbuf: Size = "0",
        "size of the socket send buffer; 0 lets the system choose",
        "The system adapts its buffers up to a maximum. Set this only for networks of high bandwidth and latency that need more.";
    btl_tcp_rcvbuf: Size = "0",
        "size of the socket receive buffer; 0 lets the system choose",
        "See btl_tcp_sndbuf.";
    btl_tcp_family: Families = "both",
        "address families of connections: both, ipv4 or ipv6",
        "Restrict it where one family is misconfigured.";

    btl_openib_eager_limit: Size = "12K",
        "largest message that is sent eagerly over verbs, including its header",
        "A larger limit saves a handshake. It needs receive buffers of that size in btl_openib_receive_queues.";
    btl_openib_receive_queues: Text = "S,64K,256,64,32",
        "receive queues by growing size, separated by colons: S,SIZE,NUMBER,LOW,WINDOW (shared) or P,SIZE,NUMBER,LOW,WINDOW (per peer)",
        "A message uses the first queue with large enough buffers. With fewer than LOW free shared buffers, messages are copied out at once. WINDOW is the number of messages from one peer that may wait. LOW and WINDOW are optional. librdmacm uses only the last queue. The list must be the same in all processes.";
    btl_openib_min_rdma_size: Size = "64K",
        "smallest message that the NIC moves between user buffers by RDMA",
        "Smaller messages are copied through receive buffers, because registration makes RDMA slow for them.";
    btl_openib_get: Flag = "yes",
        "let the receiver's NIC read large messages (RDMA read); otherwise the sender's NIC writes them",
        "Use no on NICs whose RDMA reads are slow. Each message then registers the receiver's memory again.";
    btl_openib_registration_cache: Size = "1G",
        "most bytes of host memory that stay registered after a transfer, and the same for device memory",
        "Use at most half of the memory lock limit. With 0, each transfer registers its memory.";
    btl_openib_want_fork_support: Flag = "yes",
        "keep registered memory from forked children on kernels before 5.12",
        "A child that accesses such a page before it executes another program is killed. Memory of hugetlbfs needs RDMAV_HUGEPAGES_SAFE=1 in the environment.";
    btl_openib_gpudirect: GpuDirect = "auto",
        "how the NIC accesses device memory (GPUDirect RDMA): auto, dmabuf, peer_memory or off",
        "Use off if device data arrives late or wrong on a platform without PCI Express ordering between GPU and NIC. Everything is then staged.";
    btl_openib_gpudirect_limit: Size = "128K",
        "largest message from or to device memory that the NIC moves itself",
        "On many machines the NIC reads device memory slowly. Raise the limit where GPU and NIC are connected to one PCI Express switch.";
    btl_openib_if_include: Text = "",
        "devices to use, as DEVICE or DEVICE:PORT, separated by commas; empty means all except the excluded ones",
        "Set it where the nearest and fastest ports are not the right ones.";
    btl_openib_if_exclude: Text = "",
        "devices not to use, as DEVICE or DEVICE:PORT, separated by commas; not together with btl_openib_if_include",
        "See btl_openib_if_include.";
    btl_openib_max_btls: Count = "4",
        "number of ports to use, each on a different network; at most 16",
        "The best port that reaches the peer carries messages. The others are used after a failure.";
    btl_openib_gid_index: Text = "auto",
        "index of the port's address in its GID table; auto prefers RoCE v2, then IPv4, then addresses that are not link-local",
        "Set it where a fabric requires a certain RoCE version or VLAN.";
    btl_openib_connection_manager: Text = "auto",
        "how connections are made: auto, datagrams, or rdmacm (librdmacm)",
        "auto uses datagrams, and rdmacm where the device has none (iWARP). rdmacm needs an IP address on the port, and works across routers.";
    btl_openib_ib_pkey_val: Text = "",
        "partition to use, by its key (P_Key), such as 0x8001; empty means the entry at btl_openib_pkey_index",
        "Set it on fabrics with several partitions, to the job's own. The highest bit (full membership) is ignored.";
    btl_openib_pkey_index: Count = "0",
        "partition to use, by the index of its key in the port's P_Key table",
        "Prefer btl_openib_ib_pkey_val, because indexes differ between hosts.";
    btl_openib_allow_different_subnets: Flag = "no",
        "connect to peers on other subnets even if no route is known",
        "Over InfiniBand it needs rdmacm, which resolves the path across routers. Connections without a route fail after a timeout.";
    btl_openib_service_level: Count = "0",
        "service level (InfiniBand) or priority (RoCE) of connections; with 0, rdmacm chooses where it is used",
        "Set it to the value that the fabric's administrator assigns.";
    btl_openib_traffic_class: Count = "0",
        "traffic class of connections (RoCE, iWARP, InfiniBand between subnets); with 0, rdmacm chooses where it is used",
        "Set it to the value that the fabric's administrator assigns.";
    btl_openib_ib_timeout: Count = "0",
        "local ACK timeout: a NIC resends after 4.096 us times two to this power; 0 derives it from peer_timeout",
        "A shorter time detects dead peers earlier, but also takes busy peers for dead.";
    btl_openib_ib_retry_count: Count = "6",
        "number of times that a NIC resends before the connection fails",
        "Raise it on networks with long outages: a dead peer is then detected later. Use at most 6 with soft-RoCE, which never gives up with 7.";
}
internal {
    device_chunk_size: Size = "2M", "size of the largest pieces of a large device message that is staged";
    device_chunks: Count = "8", "pieces of a staged device message in flight for each direction";
    device_batch_size: Size = "512K", "bytes of pieces that are staged together";
    device_landing_patience: Time = "20us", "time to wait for the last words of a small copy before querying the driver; 0s queries at once";
    device_kernel_patience: Time = "200us", "time after which a kernel that has not started is revoked";
    device_kernel_limit: Size = "256K", "largest average size of copies that one kernel makes together, if no costs were measured";
    device_copier_idle: Time = "200us", "time without a copy after which the resident copier ends";
    device_pack_latency: Time = "4us", "extra time of a packing kernel over a copy of one run by a copy engine";
    device_ipc_pool_size: Size = "16K", "smallest message of an exportable pool's memory that is mapped";
    device_ipc_open_size: Size = "96M", "smallest message that maps its allocation at first use";
    device_staged_latency: Time = "19us", "estimate: a small staged message between devices";
    device_staged_rate: Size = "45G", "estimate: bytes a second of large staged messages";
    device_direct_latency: Time = "10us", "estimate: a small message that the receiver copies, its handshake included";
    device_direct_rate: Size = "350G", "estimate: bytes a second of one copy between devices";
    device_push_latency: Time = "10us", "estimate: a small message that the sender copies, its handshake included";
    device_push_limit: Size = "1M", "largest message that the sender copies if copies by the sender and the receiver cost the same";
    device_turn_latency: Time = "150us", "estimate: time until a device that several processes share has changed contexts; copies that take half of it show that they take turns";
    pml_early_messages: Count = "1000000", "most messages from one peer for communicators that do not exist here yet";
    pml_pipeline_depth: Count = "8", "fragments of a rendezvous message in flight";
    pml_host_trials: Count = "3", "messages of each size that try each way to move host data; 0 trusts the estimates";
    pml_host_pause: Count = "4", "part of a host message's time after which the next one is not of its window; 0: none is";
    pml_host_way: Text = "", "way of large host messages, for tests: streamed, get, cached or halves; empty chooses by times";
    pml_offer_window: Size = "256K", "bytes of a rendezvous message that the receiver offers to the sender at a time";
    pml_nodes: Text = "", "node of each rank, for tests: numbers with commas; empty asks the system";
    pml_offer_patience: Count = "100", "polls after which an unclaimed offer is withdrawn";
    coll_algorithm: Text = "", "algorithm of all collective operations that have it, for tests; empty chooses by cost";
    coll_segment: Size = "4M", "largest segment of a collective operation's data";
    coll_shared_limit: Size = "1M", "smallest collective operation of an MPI program that Cableway performs if ranks share a device";
    coll_device_limit: Size = "32K", "smallest data that a device reduces; the host reduces smaller data";
    btl_self_eager_limit: Size = "1K", "largest message of a process to itself that is copied at once";
    btl_sm_streaming_limit: Size = "8K", "smallest message that is written into a fragment by non-temporal stores";
    btl_sm_fast_box_size: Size = "16K", "size of a fast box";
    btl_sm_fast_boxes: Count = "32", "peers that may have a fast box";
    btl_sm_fast_box_threshold: Count = "16", "messages to a peer before it gets a fast box";
    btl_sm_inline_limit: Size = "256", "largest message, including its header, that is copied into a fast box";
    btl_sm_fragments: Count = "64", "initial number of eager fragments in a segment";
    btl_sm_single_copy_limit: Size = "16K", "smallest message that is moved by single copy";
    btl_tcp_max_send_size: Size = "128K", "largest fragment over tcp";
    btl_tcp_nodelay: Flag = "yes", "send small segments at once (TCP_NODELAY)";
    btl_tcp_retained_limit: Size = "64M", "most received bytes that wait in the transport's buffers for copies to devices";
    btl_openib_cq_size: Count = "8192", "length of a completion queue";
    btl_openib_send_depth: Count = "15", "work requests in flight on one connection";
    btl_openib_max_inline: Size = "48", "largest message that is sent inline in the work request";
    btl_openib_min_rnr_timer: Count = "12", "RNR timer in the encoding of verbs: the sender's wait if the receiver has no buffer; 12 is 0.64 ms";
    btl_openib_gpudirect_sysfs: Text = "/sys", "folder in which the kernel lists its modules";
}
}
