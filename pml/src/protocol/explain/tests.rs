use cableway_base::Parameters;
use cableway_common_cuda::MemoryClass;

use super::*;
use crate::protocol::choice::{self, data, probe_start};
use crate::protocol::put::{can_pack, is_addressable};

/// Returns how the engine starts a message, which is what `explain` prints.
fn start(message: &Message) -> Start {
    let start = choice::start(message);
    assert_eq!(start, probe_start(message).cheapest(message.len).how);
    start
}

const HOST: Side = Side { class: MemoryClass::Host, form: Form::Run };
const PIECES: Side = Side { class: MemoryClass::Host, form: Form::Regular };
const PINNED: Side = Side { class: MemoryClass::Pinned, form: Form::Run };
const DEVICE: Side = Side { class: MemoryClass::Device, form: Form::Run };
const MANAGED: Side = Side { class: MemoryClass::Managed, form: Form::Run };
const STRIDED: Side = Side { form: Form::Regular, ..DEVICE };
const IRREGULAR: Side = Side { form: Form::Irregular, ..DEVICE };

fn link(flags: Flags) -> Capabilities {
    let mut capabilities = Capabilities::send_only(4096, 32768);
    capabilities.flags |= flags;
    capabilities.inline_limit = 256;
    capabilities.min_rdma_size = 8192;
    capabilities.device_min_rdma_size = 8192;
    capabilities
}

fn protocols(link: &Capabilities, copy: bool, from: Side, to: Side) -> Vec<(u64, u64, &'static str)> {
    let mut parameters = Parameters::default();
    if copy {
        parameters.set_internal("device_protocols", "copy").unwrap();
    }
    let rows = explain(link, &parameters, from, to, 0..=1 << 20);
    assert_eq!(*rows[0].sizes.start(), 0);
    assert!(rows.windows(2).all(|pair| pair[0].sizes.end() + 1 == *pair[1].sizes.start()));
    let mut merged: Vec<(u64, u64, &'static str)> = Vec::new();
    for row in &rows {
        assert!(!row.reason.is_empty());
        match merged.last_mut() {
            Some(last) if last.2 == row.protocol => last.1 = *row.sizes.end(),
            _ => merged.push((*row.sizes.start(), *row.sizes.end(), row.protocol)),
        }
    }
    merged
}

#[test]
fn host_memory() {
    let inline = (0, 240, "eager, inline");
    let eager = (241, 4080, "eager");
    let all = (4081, 1 << 20);
    assert_eq!(
        protocols(&link(Flags::empty()), false, HOST, HOST),
        [inline, eager, (all.0, all.1, "rendezvous, fragments")]
    );
    let fragments = (4081, 8191, "rendezvous, fragments");
    let get = [inline, eager, fragments, (8192, 1 << 20, "rendezvous, get")];
    assert_eq!(protocols(&link(Flags::GET), false, HOST, HOST), get);
    assert_eq!(protocols(&link(Flags::GET | Flags::PUT), false, PINNED, HOST), get, "GET goes before PUT");
    let put = [inline, eager, fragments, (8192, 1 << 20, "rendezvous, put")];
    assert_eq!(protocols(&link(Flags::PUT), false, HOST, HOST), put);
    let in_place = [inline, (241, 4080, "eager, in place"), (all.0, all.1, "rendezvous, fragments")];
    assert_eq!(protocols(&link(Flags::SEND_IN_PLACE), false, HOST, HOST), in_place);
}

#[test]
fn data_in_pieces_goes_in_fragments() {
    let fragments = (4081, 1 << 20, "rendezvous, fragments");
    let both = link(Flags::GET | Flags::PUT);
    assert_eq!(protocols(&both, false, PIECES, HOST), [(0, 4080, "eager"), fragments]);
    assert_eq!(protocols(&both, false, HOST, PIECES).last(), Some(&fragments));
}

#[test]
fn device_memory_is_copied_unless_the_link_reaches_it() {
    let copied = [(0, 0, "eager, inline"), (1, 4080, "eager, copied by the device"), (4081, 1 << 20, CHUNKS)];
    const CHUNKS: &str = "rendezvous, copied in chunks";
    let host_only = link(Flags::GET | Flags::PUT);
    for device in [DEVICE, MANAGED] {
        assert_eq!(protocols(&host_only, false, device, device), copied);
        assert_eq!(protocols(&host_only, false, device, HOST), copied);
    }
    assert_eq!(protocols(&host_only, false, HOST, DEVICE).last(), Some(&(4081, 1 << 20, CHUNKS)));
    let reaching = link(Flags::GET | Flags::DEVICE_GET);
    assert_eq!(protocols(&reaching, false, DEVICE, DEVICE).last(), Some(&(8192, 1 << 20, "rendezvous, get")));
    let storing = link(Flags::PUT | Flags::DEVICE_PUT);
    assert_eq!(protocols(&storing, false, DEVICE, DEVICE).last(), Some(&(8192, 1 << 20, "rendezvous, put")));
}

#[test]
fn one_copy_between_devices_from_where_it_pays() {
    let mut between = link(Flags::GET | Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE);
    between.device_min_rdma_size = 100;
    let eager = [(0, 0, "eager, inline"), (1, 99, "eager, copied by the device")];
    assert_eq!(protocols(&between, false, DEVICE, DEVICE), [eager[0], eager[1], (100, 1 << 20, "rendezvous, put")]);
    between.device_min_rdma_size = 1;
    assert_eq!(protocols(&between, false, DEVICE, DEVICE), [eager[0], (1, 1 << 20, "rendezvous, put")]);
    // Here the sender would know that the other side is host memory.
    let chunks = (4081, 1 << 20, "rendezvous, copied in chunks");
    let copied = (1, 4080, "eager, copied by the device");
    assert_eq!(protocols(&between, false, DEVICE, HOST), [eager[0], copied, chunks]);
    assert_eq!(protocols(&between, false, HOST, DEVICE).last(), Some(&chunks));

    let small = outgoing(&between, 100, DEVICE);
    assert_eq!(start(&small), Start::Expose);
    assert_eq!(start(&Message { synchronous: true, ..small }), Start::Expose);
    assert_eq!(start(&Message { to_device: false, ..small }), Start::EagerDevice);
    assert_eq!(start(&Message { registrable: false, ..small }), Start::EagerDevice, "of a pool, say");
    let large = outgoing(&between, 1 << 20, DEVICE);
    let push_limit = 1 << 20;
    for stored in [Message { push_limit, ..small }, Message { push_limit, to_device: false, ..large }] {
        assert_eq!(start(&stored), Start::Store);
        assert!(is_addressable(&stored));
        assert!(!is_addressable(&Message { copy_only: true, ..stored }));
    }
    assert_eq!(start(&Message { push_limit, to_device: false, ..small }), Start::EagerDevice, "to a host, it seems");
    let dear = Costs { put: btl::Cost { fixed: Duration::from_micros(1), ..Costs::NOT_ASKED.put }, ..Costs::NOT_ASKED };
    assert_eq!(start(&Message { push_limit, costs: dear, ..small }), Start::Expose, "to store costs more");
    assert_eq!(start(&Message { to_device: false, ..large }), Start::Expose);
    assert_eq!(start(&Message { registrable: false, ..large }), Start::Announce);
    assert!(is_addressable(&large), "the receiver's buffer may be reachable all the same");
}

#[test]
fn page_locked_memory_is_one_copy_from_device_memory() {
    let page_locked = Side { class: MemoryClass::Pinned, form: Form::Run };
    let mut between = link(Flags::GET | Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE);
    between.device_min_rdma_size = 1;
    let mut able = between;
    able.flags |= Flags::DEVICE_PAGE_LOCKED;
    let last = |link: &Capabilities, copy, from, to| protocols(link, copy, from, to).last().map(|row| row.2);
    // The process with the host memory copies.
    assert_eq!(last(&able, false, page_locked, DEVICE), Some("rendezvous, put"));
    assert_eq!(last(&able, false, DEVICE, page_locked), Some("rendezvous, get"));
    let rows = protocols(&able, false, DEVICE, page_locked);
    assert_eq!(rows[rows.len() - 2].2, "eager, copied by the device", "what is small travels with its header");
    let managed = Side { class: MemoryClass::Managed, form: Form::Run };
    let blocks = Side { form: Form::Regular, ..page_locked };
    let unable =
        [(&between, false, page_locked, DEVICE), (&able, true, page_locked, DEVICE), (&able, false, HOST, DEVICE)];
    let others =
        [(&able, false, page_locked, managed), (&able, false, blocks, DEVICE), (&able, false, page_locked, STRIDED)];
    for (link, copy, from, to) in unable.into_iter().chain(others) {
        for (from, to) in [(from, to), (to, from)] {
            assert_eq!(last(link, copy, from, to), Some("rendezvous, copied in chunks"), "{from:?} to {to:?}");
        }
    }
    assert_eq!(protocols(&able, false, page_locked, HOST), protocols(&able, false, HOST, HOST));
}

#[test]
fn the_network_reaches_device_memory_up_to_its_limit() {
    let mut direct = link(Flags::GET | Flags::PUT | Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_DIRECT);
    (direct.device_min_rdma_size, direct.device_max_rdma_size) = (1, 100_000);
    // PUT and GET cost the same here, so the sender stores.
    let (inline, put) = ((0, 0, "eager, inline"), (1, 100_000, "rendezvous, put"));
    let beyond = (100_001, 1 << 20, "rendezvous, copied in chunks");
    assert_eq!(protocols(&direct, false, DEVICE, DEVICE), [inline, put, beyond]);
    assert_eq!(protocols(&direct, false, DEVICE, HOST), [inline, put, beyond], "the sender's memory is the device's");
    let rows = protocols(&direct, false, HOST, DEVICE);
    assert_eq!(rows[rows.len() - 2..], [(8192, 100_000, "rendezvous, get"), beyond]);
    assert_eq!(protocols(&direct, false, HOST, HOST).last(), Some(&(8192, 1 << 20, "rendezvous, get")));
    direct.device_max_rdma_size = usize::MAX;
    assert_eq!(protocols(&direct, false, DEVICE, DEVICE), [inline, (1, 1 << 20, "rendezvous, put")]);
    direct.device_max_rdma_size = 0;
    let eager = (1, 4080, "eager, copied by the device");
    assert_eq!(
        protocols(&direct, false, DEVICE, DEVICE),
        [inline, eager, (4081, 1 << 20, "rendezvous, copied in chunks")],
        "at no size"
    );
}

#[test]
fn blocks_go_as_one_run_where_kernels_copy_them() {
    let between = link(Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE);
    let mut able = between;
    able.flags |= Flags::DEVICE_STRIDED;
    for (from, to) in [(STRIDED, DEVICE), (DEVICE, STRIDED), (STRIDED, STRIDED)] {
        // From the first byte on.
        assert_eq!(protocols(&able, false, from, to)[1..], protocols(&able, false, DEVICE, DEVICE)[1..]);
        assert!(
            protocols(&between, false, from, to).iter().all(|row| !row.2.ends_with("get") && !row.2.ends_with("put"))
        );
        assert_eq!(protocols(&able, true, from, to), protocols(&between, true, from, to));
    }
    // Managed memory may be anywhere, and kernels do not copy host memory.
    let managed = Side { class: MemoryClass::Managed, ..STRIDED };
    for (from, to) in [(managed, DEVICE), (PIECES, DEVICE), (DEVICE, managed)] {
        assert_eq!(protocols(&able, false, from, to), protocols(&between, false, from, to));
    }
}

#[test]
fn irregular_blocks_are_moved_by_the_kernel_of_who_has_them() {
    let between = link(Flags::DEVICE_GET | Flags::DEVICE_PUT | Flags::DEVICE_TO_DEVICE);
    let mut able = between;
    able.flags |= Flags::DEVICE_STRIDED | Flags::DEVICE_PACKED;
    able.device_min_rdma_size = 1;
    let (inline, eager) = ((0, 0, "eager"), (1, 4080, "eager, copied by the device"));
    let stored = (4081, 1 << 20, "rendezvous, put");
    assert_eq!(protocols(&able, false, IRREGULAR, DEVICE), [inline, eager, stored]);
    // Data that the sender would store in one run goes through the host. Larger data is fetched.
    let mut parameters = Parameters::default();
    parameters.set_internal("device_push_limit", "64K").unwrap();
    let rows = explain(&able, &parameters, DEVICE, IRREGULAR, 1..=1 << 20);
    let last = rows.last().unwrap();
    assert_eq!((*last.sizes.start(), last.protocol), (65_537, "rendezvous, get"), "{rows:?}");
    assert!(last.reason.contains("kernel"), "{last:?}");
    assert_eq!(rows[rows.len() - 2].protocol, "rendezvous, put in pieces", "{rows:?}");
    for (from, to) in [(IRREGULAR, IRREGULAR), (IRREGULAR, STRIDED), (STRIDED, IRREGULAR)] {
        let rows = protocols(&able, false, from, to);
        assert_eq!(rows.last().unwrap().2, "rendezvous, put in pieces", "{from:?} to {to:?}");
        parameters.set_internal("device_scratch_size", "0").unwrap();
        let rows = explain(&able, &parameters, from, to, 1..=1 << 20);
        assert_eq!(rows.last().unwrap().protocol, "rendezvous, copied in chunks", "{from:?} to {to:?}");
    }
    assert_eq!(protocols(&able, false, IRREGULAR, HOST).last().unwrap().2, "rendezvous, copied in chunks");
    let unable = [(&between, false), (&able, true)];
    for ((link, copy), (from, to)) in
        unable.into_iter().flat_map(|one| [(one, (IRREGULAR, DEVICE)), (one, (DEVICE, IRREGULAR))])
    {
        let rows = protocols(link, copy, from, to);
        assert_eq!(rows.last().unwrap().2, "rendezvous, copied in chunks", "{from:?} to {to:?}");
    }
    let out = Message { from: IRREGULAR.shape(able.flags), ..outgoing(&able, 1 << 20, IRREGULAR) };
    assert!(can_pack(&out) && is_addressable(&out));
    assert_eq!(start(&Message { push_limit: u64::MAX, ..out }), Start::Announce);
    assert!(!can_pack(&Message { len: 0, ..out }) && !can_pack(&Message { copy_only: true, ..out }));
    let small = Message { len: 4080, ..out };
    assert_eq!(start(&small), Start::EagerDevice);
    assert_eq!(start(&Message { credit: false, ..small }), Start::Announce);
}

#[test]
fn the_cheaper_side_copies() {
    let us = |us| btl::Cost { fixed: Duration::from_micros(us), ..Costs::NOT_ASKED.get };
    let costs = |get, put| Costs { get: us(get), put: us(put), ..Costs::NOT_ASKED };
    let any = Flags::DEVICE_GET | Flags::DEVICE_PUT;
    let both = Announcement {
        len: 1 << 20,
        exposed: true,
        in_blocks: false,
        addressable: true,
        packs: false,
        scratch: true,
        to: DEVICE.shape(Flags::empty()),
        copy_only: false,
        attentive: true,
        any,
        too_large: false,
        waits_for_turn: false,
        timed: false,
        mixed: false,
        page_locked: false,
        costs: costs(10, 10),
    };
    assert_eq!(data(&both), Data::Get);
    assert_eq!(data(&Announcement { costs: costs(150, 10), ..both }), Data::Put);
    assert_eq!(data(&Announcement { costs: costs(150, 10), addressable: false, ..both }), Data::Get);
    assert_eq!(data(&Announcement { costs: costs(10, 150), exposed: false, ..both }), Data::Put);
    assert_eq!(data(&Announcement { copy_only: true, ..both }), Data::Fragments);
    assert_eq!(data(&Announcement { too_large: true, ..both }), Data::Fragments);
    assert_eq!(data(&Announcement { waits_for_turn: true, ..both }), Data::Fragments);
    let host = Announcement { too_large: true, to: HOST.shape(Flags::empty()), any: Flags::GET, ..both };
    assert_eq!(data(&host), Data::Get);
    assert_eq!(data(&Announcement { any: Flags::GET | Flags::OFFER, ..host }), Data::Offered);
    assert_eq!(data(&Announcement { any: Flags::GET | Flags::OFFER, attentive: false, ..host }), Data::Get);
    assert_eq!(data(&Announcement { to: PIECES.shape(Flags::empty()), ..both }), Data::Fragments);
}

#[test]
fn the_table_says_why_the_other_protocols_were_not_chosen() {
    let rows = explain(&link(Flags::GET), &Parameters::default(), HOST, HOST, 1 << 20..=1 << 20);
    let others = &rows[0].others;
    assert!(others.contains(&"sender: eager: exceeds the eager limit".to_owned()), "{others:?}");
    assert!(others.contains(&"receiver: offered: no link supports offers".to_owned()), "{others:?}");
    let fragments = "receiver: fragments: costs more: one copy on each side, headers before it: 1";
    assert!(others.contains(&fragments.to_owned()), "{others:?}");
    let table = Explained::table(&rows, &["sm"], &[]);
    assert!(others.iter().all(|other| table.contains(other)), "{table}");
}

#[test]
fn copy_only_is_absolute_for_devices_and_nothing_to_hosts() {
    let able = link(Flags::GET | Flags::PUT | Flags::DEVICE_GET | Flags::DEVICE_PUT);
    for (from, to) in [(DEVICE, DEVICE), (DEVICE, HOST), (HOST, DEVICE), (MANAGED, HOST), (PINNED, MANAGED)] {
        let rows = protocols(&able, true, from, to);
        assert!(rows.iter().all(|row| !row.2.contains("get") && !row.2.contains("put")), "{from:?} {to:?}: {rows:?}");
    }
    assert_eq!(protocols(&able, true, HOST, HOST), protocols(&able, false, HOST, HOST));
}

fn outgoing(main: &Capabilities, len: u64, from: Side) -> Message {
    Message {
        len,
        from: from.shape(Flags::empty()),
        synchronous: false,
        credit: true,
        copy_only: false,
        eager_limit: main.eager_limit as u64,
        inline_limit: main.inline_limit as u64,
        in_place: false,
        links: Abilities::NONE.with(main),
        registrable: true,
        push_limit: 0,
        to_device: true,
        costs: Costs::NOT_ASKED,
    }
}

#[test]
fn without_credit_nothing_brings_its_data_along() {
    let link = link(Flags::GET);
    for len in [0, 8, 4000] {
        for from in [HOST, PIECES, DEVICE] {
            let out = Message { credit: false, ..outgoing(&link, len, from) };
            assert_eq!(start(&out), Start::Announce);
            let out = Message { synchronous: true, ..out };
            assert_eq!(start(&out), Start::Announce);
        }
    }
}

#[test]
fn a_device_announces_without_data() {
    let link = link(Flags::GET);
    let synchronous = Message { synchronous: true, ..outgoing(&link, 100, DEVICE) };
    assert_eq!(start(&synchronous), Start::Announce);
    let synchronous = Message { synchronous: true, ..outgoing(&link, 100, HOST) };
    assert_eq!(start(&synchronous), Start::AnnounceWithData);
}

#[test]
fn lengths_near_the_end_of_the_range_do_not_wrap() {
    let link = link(Flags::GET);
    assert_eq!(start(&outgoing(&link, u64::MAX, HOST)), Start::Expose);
}

#[test]
fn what_is_expected_grows_with_the_message_and_its_handshake() {
    let able = link(Flags::GET);
    let rows = explain(&able, &Parameters::default(), HOST, HOST, 1..=1 << 20);
    let seconds = |bytes: u64| bytes as f64 / able.bandwidth;
    for row in &rows {
        // Its own latency, and the latencies of the announcement and of the answer.
        let messages = match row.protocol {
            "eager" | "eager, inline" => 1,
            "rendezvous, get" => 2,
            _ => 3,
        };
        let expected = [*row.sizes.start(), *row.sizes.end()]
            .map(|size| messages * able.latency + Duration::from_secs_f64(seconds(size)));
        assert_eq!(row.expected, expected, "{row:?}");
    }
    let table = Explained::table(&rows, &["sm"], &[]);
    assert!(
        !table.contains("Observed") && table.lines().filter(|line| !line.starts_with("# ")).count() == rows.len(),
        "{table}"
    );
    let observed = vec![[Duration::from_micros(3), Duration::from_millis(4)]; rows.len()];
    let table = Explained::table(&rows, &["sm"], &observed);
    assert_eq!(table.matches("0.00..4.00 ms").count(), rows.len(), "{table}");
}
