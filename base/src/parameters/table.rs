//! The table itself: one row for each parameter, with name, kind, default as a user would write it, one line of help, and
//! when to change it and what that costs. Below it the settings that are no user's: tests alone change them.

use super::kind::{
    CostSource, Count, DefaultStreamOrder, DeviceProtocols, Families, Flag, GpuDirect, Kind, SingleCopy, Size, Text,
    Time,
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

            /// Sets a parameter or an internal setting, for tests that reach what no user should need.
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
        "transports to use, by name, separated by commas: self, sm, tcp, and openib in a build with that feature",
        "Empty means all that reach the peer, the best first. Name transports to rule others out: `tcp` to test a network, `sm` to be sure that nothing leaves the node.";
    device_protocols: DeviceProtocols = "auto",
        "protocols for device memory: auto (the cheapest that works) or copy (staging through host memory only)",
        "Use copy to find out whether a fault lies in a faster protocol. It costs most of the bandwidth between devices.";
    default_stream_order: DefaultStreamOrder = "legacy",
        "what a message waits for before it touches a device buffer: legacy (work in the context's default stream) or none",
        "Use none if the program synchronises its streams before each message. It saves 1 to 3 us a message. With none, a message may read data that a copy or kernel has not written yet.";
    device_register_host: Flag = "yes",
        "register internal buffers with the device's driver when the first device buffer appears",
        "Use no where the driver may lock no memory. Staged messages then run at the speed of pageable memory.";
    staging_limit: Size = "0",
        "host memory for copies of device buffers in calls that Open MPI serves from host memory; 0 means half of the machine's",
        "Lower it where several jobs share a node. A call that needs more fails.";
    intercept: Flag = "yes",
        "let the component for Open MPI redirect calls that no component serves, such as MPI_Pack and MPI_File_read, to its own functions",
        "Use no if another tool must be the last to change where calls go. Such calls then crash on device memory, unless libcableway_mpi.so is preloaded.";
    device_kernels: Flag = "yes",
        "let kernels make copies where they are faster than copy engines: many at once, and data in blocks",
        "Use no if a profile must show the program's kernels only, or if the program fills the device for long. Data in short blocks becomes slow.";
    device_copier: Flag = "no",
        "keep a kernel on the device that makes small copies in half the time of a copy engine",
        "Use yes for programs that are bound by small messages between devices. cudaDeviceSynchronize and cudaFree then wait for the kernel, up to device_copier_lease.";
    device_copier_lease: Time = "2ms",
        "longest stay of the kernel for small copies; it stays away as long afterwards",
        "Longer leases serve more messages. cudaDeviceSynchronize and cudaFree may wait that long.";
    device_scratch_size: Size = "32M",
        "device memory taken in each context that receives irregular blocks from irregular blocks",
        "Kernels pack into it and unpack from it. With 0 such messages are staged, which is several times slower.";
    device_list_memory: Size = "64M",
        "most device memory in each context for lists of irregular blocks that are sent again and again",
        "Lists that find no room stay in host memory, where kernels read them more slowly.";
    device_ipc: Flag = "yes",
        "let processes of one node map each other's device memory",
        "Use no where a container or a policy forbids it, to be spared the warning. Messages between devices are then staged.";
    device_ipc_mappings: Count = "256",
        "most allocations of other processes that stay mapped; the least recently used are closed",
        "Raise it if a program sends from more buffers than that in turn. Opening a mapping costs 2 ms.";
    device_ipc_bytes: Size = "64G",
        "most bytes of other processes' device memory that stay mapped",
        "As device_ipc_mappings. Memory that its owner freed returns to the device only when peers have closed it.";
    device_costs: CostSource = "cached",
        "where the costs of device copies come from: cached (files), measure (files, and what they lack is measured in the background) or default (built-in estimates)",
        "Run `cableway info --measure` once on each node to fill the files. With measure, a background thread may delay the program's own driver calls for some milliseconds.";
    device_costs_folder: Text = "",
        "folder for measured device costs; empty means cableway/device-costs in XDG_CACHE_HOME or ~/.cache",
        "Set it where home directories are read-only or shared between unlike clusters. Delete the files to have everything measured anew.";
    device_invitations: Flag = "no",
        "tell senders the address of a posted device receive before the message is announced",
        "No gain was measured so far (docs/decisions/004-invitations.md).";
    device_mapped_read_limit: Size = "0",
        "largest copy from a device that the CPU makes by loads, where it can map device memory; 0: none",
        "Needs driver 13.3 or gdrcopy; never tried on hardware, so a self-test runs at first use. 256 is a value to begin with.";
    device_mapped_write_limit: Size = "0",
        "largest copy to a device that the CPU makes by stores, where it can map device memory; 0: none",
        "As device_mapped_read_limit. 4K is a value to begin with.";

    pml_unexpected_limit: Size = "4M",
        "bytes of messages without a posted receive that a peer may have here; beyond it their data stays with the sender",
        "Raise it for programs that post receives late. Each peer may use that much host memory.";
    pml_spin: Count = "2000",
        "polls without an event before a waiting call yields the processor; 0 yields at once",
        "Lower it where ranks share processors with other programs. Ranks that outnumber the cores always yield.";
    pml_sleep_after: Count = "0",
        "polls without an event before a waiting call sleeps until a transport has something; 0 never sleeps",
        "Works where all transports in use can wake the process: self, tcp, openib. A message that arrives during sleep takes some microseconds more.";
    peer_timeout: Time = "10s",
        "time after which a peer that does not answer over the network counts as dead",
        "Raise it on networks that lose packets for long. Requests to a dead peer fail that much later.";
    progress_thread: Flag = "no",
        "run a thread that moves messages while the program computes",
        "It overlaps large transfers with computation. It occupies a core while messages are under way, and makes small messages slower.";

    btl_sm_eager_limit: Size = "16K",
        "largest message that is sent without a rendezvous over shared memory",
        "A larger limit spares a handshake and costs one more copy and more memory for unexpected messages.";
    btl_sm_max_send_size: Size = "64K",
        "data in the largest fragment that passes through the shared segment",
        "Larger fragments cost memory for each process and rarely gain speed.";
    btl_sm_single_copy: SingleCopy = "auto",
        "how large messages are copied straight from one process's memory to another's: auto, cma or none",
        "Use none where ranks must not read each other's memory. Large messages then cost two copies.";
    btl_sm_set_ptracer: Flag = "no",
        "let any process of this user attach to this one (PR_SET_PTRACER_ANY), so that single copy works under Yama",
        "Yama exists to forbid that: use yes only where all of the user's processes are trusted.";
    btl_sm_socket_folder: Text = "",
        "folder for the sockets by which processes of a node meet; empty means abstract sockets",
        "Set it to a shared folder where ranks of one node run in different network namespaces. Otherwise they use tcp.";

    btl_tcp_eager_limit: Size = "64K",
        "largest message that is sent without a rendezvous over tcp, its header included",
        "A larger limit spares a round trip and costs memory for unexpected messages.";
    btl_tcp_if_include: Text = "",
        "interfaces, or addresses as CIDR, to use, separated by commas; empty means all but the excluded ones",
        "Set it on hosts with several networks, and wherever the network is not trusted.";
    btl_tcp_if_exclude: Text = "",
        "interfaces, or addresses as CIDR, not to use, separated by commas; not together with btl_tcp_if_include",
        "Exclude bridges of containers and virtual machines, which have the same address on every host.";
    btl_tcp_links: Count = "1",
        "connections for each pair of interfaces",
        "Two or more help where one connection does not fill the network. Each costs descriptors and buffers for every peer.";
    btl_tcp_port_min: Count = "0",
        "first port to listen on; 0 lets the system choose",
        "Set it, with btl_tcp_port_range, to what a firewall lets through.";
    btl_tcp_port_range: Count = "1000",
        "number of ports from btl_tcp_port_min on that may be tried",
        "At least as many as ranks on a node.";
    btl_tcp_sndbuf: Size = "0",
        "socket send buffer; 0 leaves it to the system",
        "The system adapts its buffers. Set it only where a long fat network needs more than the system's maximum.";
    btl_tcp_rcvbuf: Size = "0",
        "socket receive buffer; 0 leaves it to the system",
        "As btl_tcp_sndbuf.";
    btl_tcp_family: Families = "both",
        "address families of connections: both, ipv4 or ipv6",
        "Restrict it where one of the two is misconfigured.";

    btl_openib_eager_limit: Size = "12K",
        "largest message that is sent without a rendezvous over verbs, its header included",
        "A larger limit needs receive buffers of that size.";
    btl_openib_receive_queues: Text = "S,64K,256,64,32",
        "receive queues, in growing sizes, separated by colons: S,SIZE,NUMBER,LOW,WINDOW (shared) or P,SIZE,NUMBER,LOW,WINDOW (for each peer)",
        "A message goes to the first queue whose buffers hold it. Below LOW free shared buffers, messages are not kept in them. WINDOW is how many messages of one peer may wait; LOW and WINDOW may be left out. librdmacm uses the last queue alone. The list must be the same in all processes.";
    btl_openib_min_rdma_size: Size = "64K",
        "smallest message that the NIC moves from buffer to buffer by RDMA",
        "Below it messages are copied through receive buffers. Registration makes RDMA slow for small messages.";
    btl_openib_get: Flag = "yes",
        "let the receiver's NIC read large messages; otherwise the sender's NIC writes them",
        "Use no on NICs that read slowly. Each message then registers memory anew.";
    btl_openib_registration_cache: Size = "1G",
        "bytes of the program's memory that stay registered after a transfer, and as many of device memory",
        "At most half of what may be locked. 0 registers for each transfer.";
    btl_openib_want_fork_support: Flag = "yes",
        "keep registered memory from forked children on kernels before 5.12",
        "A child that touches such a page before it executes another program ends. Memory of hugetlbfs needs RDMAV_HUGEPAGES_SAFE=1 in the environment.";
    btl_openib_gpudirect: GpuDirect = "auto",
        "how the NIC accesses device memory (GPUDirect RDMA): auto, dmabuf, peer_memory or off",
        "Use off if device data arrives late or wrong on a platform without PCI Express ordering between GPU and NIC. Everything is then staged.";
    btl_openib_gpudirect_limit: Size = "128K",
        "largest message from or to device memory that the NIC moves itself",
        "Many machines let the NIC read device memory slowly. Raise it where GPU and NIC hang on one PCI Express switch.";
    btl_openib_if_include: Text = "",
        "devices to use, as DEVICE or DEVICE:PORT, separated by commas; empty means all but the excluded ones",
        "Set it where the nearest and fastest ports are not the wanted ones.";
    btl_openib_if_exclude: Text = "",
        "devices not to use, as DEVICE or DEVICE:PORT, separated by commas; not together with btl_openib_if_include",
        "As btl_openib_if_include.";
    btl_openib_max_btls: Count = "4",
        "most ports to use, each on a network of its own; 16 at most",
        "The best port that both processes are on carries messages; the others stand by.";
    btl_openib_gid_index: Text = "auto",
        "index of the port's address in its GID table; auto prefers RoCE v2, then IPv4, then addresses that are not link-local",
        "Set it where a fabric wants a certain RoCE version or VLAN.";
    btl_openib_connection_manager: Text = "auto",
        "how connections are made: auto, datagrams, or rdmacm (librdmacm)",
        "auto takes datagrams, and rdmacm where the device has none (iWARP). rdmacm needs an IP address on the port and finds its way through routers.";
    btl_openib_ib_pkey_val: Text = "",
        "partition to use, by its key (P_Key), such as 0x8001; empty means the one at btl_openib_pkey_index",
        "The highest bit, that of full members, does not matter.";
    btl_openib_pkey_index: Count = "0",
        "partition to use, by the place of its key in the port's table",
        "Prefer btl_openib_ib_pkey_val: places differ between hosts.";
    btl_openib_allow_different_subnets: Flag = "no",
        "also reach peers to which no route is known",
        "Over InfiniBand it needs rdmacm, which asks for the way through routers. Connections that no route serves fail after a while.";
    btl_openib_service_level: Count = "0",
        "service level of connections (InfiniBand), or their priority (RoCE); 0 leaves it to rdmacm where that connects",
        "Set it to what the fabric's administrator assigns.";
    btl_openib_traffic_class: Count = "0",
        "traffic class of connections (RoCE, iWARP, InfiniBand between subnets); 0 leaves it to rdmacm where that connects",
        "Set it to what the fabric's administrator assigns.";
    btl_openib_ib_timeout: Count = "0",
        "a device sends again after 4.096 us times two to this power; 0 chooses by peer_timeout",
        "A shorter time notices dead peers earlier and takes busy ones for dead.";
    btl_openib_ib_retry_count: Count = "6",
        "number of times that a device sends again before it gives the peer up",
        "soft-RoCE takes 7 for never giving up.";
}
internal {
    device_chunk_size: Size = "2M", "size of the largest pieces in which a large device message is staged";
    device_chunks: Count = "8", "pieces of a staged device message in flight for each direction";
    device_batch_size: Size = "512K", "bytes of pieces that are staged together";
    device_landing_patience: Time = "20us", "time for the words of a small copy to land before the driver is asked; 0s: ask at once";
    device_kernel_patience: Time = "200us", "time after which a kernel that has not started is revoked";
    device_kernel_limit: Size = "256K", "largest average size of copies that one kernel makes together, where no costs were measured";
    device_copier_idle: Time = "200us", "time without a copy after which the resident copier ends";
    device_pack_latency: Time = "4us", "time that a kernel takes longer to pack than a copy engine to copy one run";
    device_ipc_pool_size: Size = "16K", "smallest message of an exportable pool's memory that is mapped";
    device_ipc_open_size: Size = "96M", "smallest message that maps its allocation at first sight";
    device_staged_latency: Time = "19us", "estimate: a small staged message between devices";
    device_staged_rate: Size = "45G", "estimate: bytes a second of large staged messages";
    device_direct_latency: Time = "10us", "estimate: a small message that the receiver copies, its handshake included";
    device_direct_rate: Size = "350G", "estimate: bytes a second of one copy between devices";
    device_push_latency: Time = "10us", "estimate: a small message that the sender copies, its handshake included";
    device_push_limit: Size = "1M", "largest message that the sender copies where both ways cost the same";
    device_turn_latency: Time = "150us", "estimate: a copy on a device on which several processes take turns";
    pml_early_messages: Count = "1000000", "messages that one peer may have here for communicators that do not exist yet";
    pml_pipeline_depth: Count = "8", "fragments of a rendezvous message in flight";
    pml_offer_window: Size = "256K", "bytes of a rendezvous message that its sender is offered at a time";
    pml_offer_patience: Count = "100", "polls after which an unclaimed offer is withdrawn";
    btl_self_eager_limit: Size = "1K", "largest message to oneself that is copied at once";
    btl_sm_streaming_limit: Size = "8K", "smallest message that is stored into a fragment past the caches";
    btl_sm_fast_box_size: Size = "16K", "size of a fast box";
    btl_sm_fast_boxes: Count = "32", "peers that may have a fast box";
    btl_sm_fast_box_threshold: Count = "16", "messages to a peer before it gets a fast box";
    btl_sm_inline_limit: Size = "256", "largest message, header included, that is copied into a fast box";
    btl_sm_fragments: Count = "64", "fragments for eager messages in a segment at first";
    btl_sm_single_copy_limit: Size = "16K", "smallest message that is moved by single copy";
    btl_tcp_max_send_size: Size = "128K", "largest fragment over tcp";
    btl_tcp_nodelay: Flag = "yes", "send small segments at once (TCP_NODELAY)";
    btl_tcp_retained_limit: Size = "64M", "received bytes that may wait in the transport's buffers for devices to copy them";
    btl_openib_cq_size: Count = "8192", "completions that may wait";
    btl_openib_send_depth: Count = "15", "work requests under way on one connection";
    btl_openib_max_inline: Size = "48", "largest message that is written into the work request itself";
    btl_openib_min_rnr_timer: Count = "12", "how long a sender waits that found no receive buffer, as verbs number it; 12 is 0.64 ms";
    btl_openib_gpudirect_sysfs: Text = "/sys", "where the kernel shows its modules";
}
}
