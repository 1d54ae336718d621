//! Entry points for fuzzers: every parser of a peer's bytes. None may panic.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cableway_base::{Parameters, Rank};
use cableway_btl::{Btl as _, Endpoint, Error, FragmentKind, Job, Received, RemoteHandle, Token, Upcalls};
use cableway_common_cuda::Devices;

use crate::SharedMemory;
use crate::card::{Card, SocketName};
use crate::connection::socket::{self, Descriptor, Received as Packets};
use crate::connection::wire::{Hello, Packet};
use crate::handle::Handle;
use crate::node::Node;
use crate::ring::fast_box::SLOT;
use crate::ring::fifo::{self, Kind, Record};
use crate::segment::{FifoMemory, Layout, Memory};
use crate::settings::Settings;

/// The card that a peer publishes.
pub fn card(bytes: &[u8]) {
    if let Ok(card) = Card::parse(bytes) {
        assert_eq!(card.to_bytes(), bytes);
    }
}

/// A packet on the socket between two processes.
pub fn packet(bytes: &[u8]) {
    if let Ok(packet) = Packet::parse(bytes) {
        assert_eq!(packet.to_bytes(), bytes);
        if let Packet::Hello(hello) = packet {
            let _ = hello.geometry.layout();
        }
    }
}

/// A handle to a peer's memory.
pub fn handle(bytes: &[u8]) {
    if let Some(handle) = RemoteHandle::new(bytes) {
        for (offset, len) in [(0, 1), (u64::MAX, usize::MAX), (1 << 40, 0)] {
            let _ = Handle::resolve(&handle, cableway_btl::Access::RemoteRead, offset, len);
        }
    }
}

/// Shared memory with a hostile peer that writes to every place it can. `bytes` are its actions, eleven bytes each.
pub fn segment(bytes: &[u8]) {
    let Some(mut scene) = Scene::new() else { return };
    for deed in bytes.chunks_exact(11) {
        let (Some(&place), Some(&value)) = (deed[1..].first_chunk(), deed[3..].first_chunk()) else { return };
        scene.act(deed[0], u16::from_le_bytes(place), u64::from_le_bytes(value));
    }
}

/// One honest process, connected to a hostile one.
struct Scene {
    victim: Arc<SharedMemory>,
    to_villain: Box<dyn Endpoint>,
    _socket: Descriptor,
    /// The segment of the hostile process, which the honest one reads, and the segment of the honest one, which the
    /// hostile one may write.
    villains: Memory,
    victims: Arc<Memory>,
    layout: Layout,
}

struct Deaf;

impl Upcalls for Deaf {
    fn receive(&self, _peer: Rank, message: Received<'_>) {
        let mut bytes = [0; 64];
        message.bytes().copy_to(&mut bytes);
        let end = message.bytes().skip(message.bytes().len().saturating_sub(1));
        end.copy_to(&mut bytes);
        drop(message.retain());
    }
    fn completed(&self, _: Token, _: Result<(), Error>) {}
    fn peer_failed(&self, _: Rank, _: Error) {}
    fn peer_left(&self, _: Rank) {}
}

impl Scene {
    /// Returns `None` if the system lacks a feature.
    fn new() -> Option<Self> {
        let job = |rank| Job::new("fuzzing".into(), [7; 32], rank, 2, 2);
        let parameters = Parameters::default();
        let victim = SharedMemory::new(&job(0), &parameters, &Devices::none()).ok()?;
        let geometry = Settings::new(&job(1), &parameters).geometry;
        let layout = geometry.layout().ok()?;
        let villains = Memory::create("cableway-sm-villain", layout.len).ok()?;

        let node = Node::of_this_process().ok()?;
        let socket = socket::connect(&Card::parse(&victim.card()).ok()?.socket).ok()?;
        let hello = Hello {
            secret: [7; 32],
            from: 1.into(),
            to: 0.into(),
            index: 0.into(),
            geometry,
            cookie_address: 0.into(),
            cookie: 0.into(),
            node,
        };
        socket::send(socket.as_fd(), &Packet::Hello(hello).to_bytes(), villains.file()).ok()?;
        socket::send(socket.as_fd(), &Packet::Ready { single_copy: false }.to_bytes(), None).ok()?;
        let file = loop {
            victim.progress(&Deaf);
            match socket::receive(&socket).ok()? {
                Packets::Packet(_, mut files) => break files.pop()?,
                Packets::Nothing => {}
                Packets::HungUp => return None,
            }
        };
        let victims = Arc::new(Memory::open(file, layout.len).ok()?);
        let card = Card { node, socket: SocketName::Abstract(b"cableway-sm-nobody".to_vec()) };
        let to_villain = victim.connect(1, &card.to_bytes()).ok()?.pop()?;
        Some(Scene { victim, to_villain, _socket: socket, villains, victims, layout })
    }

    fn act(&mut self, deed: u8, place: u16, value: u64) {
        let offset = usize::from(place) * 8;
        match deed % 7 {
            0 => self.villains.word(offset).store(value, Relaxed),
            1 => self.victims.word(offset).store(value, Relaxed),
            2 => {
                let kind = if value & 1 == 0 { Kind::Fragment } else { Kind::FastBox };
                let record = Record { producer: place & 1, kind, value: (value >> 1) as u32 };
                fifo::push(&FifoMemory::new(self.victims.clone(), self.layout.fifo_cells), record);
            }
            3 => {
                // A slot that is valid except for its value.
                let slot = usize::from(place) % self.layout.box_slots;
                let stamp = self.layout.fast_box(usize::from(place >> 12) % self.layout.boxes) + 128 + slot * SLOT;
                self.villains.word(stamp).store(value & !0xffff_fffe | 1, Relaxed);
            }
            4 => {
                // The lengths and generations of fragments, which a random place would seldom hit.
                let class = if place & 1 == 0 { &self.layout.eager } else { &self.layout.large };
                let id = u32::from(place >> 1) % class.count;
                self.villains.word(class.header(id)).store(value, Relaxed);
                self.victims.word(class.header(id) + 8).store(value, Relaxed);
            }
            5 => {
                let _ = self.to_villain.send_inline(&value.to_le_bytes(), &[]);
                if let Ok(Some(fragment)) = self.to_villain.alloc(usize::from(place) % 32768, FragmentKind::Host)
                    && value & 1 == 0
                {
                    let _ = self.to_villain.send(fragment, usize::from(place) % 256);
                }
            }
            _ => {}
        }
        for _ in 0..=place % 4 {
            self.victim.progress(&Deaf);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn no_shared_memory_contents_break_a_process(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            segment(&bytes);
        }

        #[test]
        fn no_packet_card_or_handle_breaks_a_process(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            packet(&bytes);
            card(&bytes);
            handle(&bytes);
        }
    }

    #[derive(Default)]
    struct Failed(Cell<bool>);
    impl Upcalls for Failed {
        fn receive(&self, _: Rank, _: Received<'_>) {}
        fn completed(&self, _: Token, _: Result<(), Error>) {}
        fn peer_failed(&self, peer: Rank, error: Error) {
            assert!(peer == 1 && matches!(error, Error::Malformed { .. }), "{error}");
            assert!(!self.0.replace(true), "reported once");
        }
        fn peer_left(&self, _: Rank) {}
    }

    /// Returns whether the honest process disconnects the peer for this action.
    fn is_cut_off(deed: impl FnOnce(&mut Scene)) -> bool {
        let mut scene = Scene::new().unwrap();
        deed(&mut scene);
        let failed = Failed::default();
        for _ in 0..1000 {
            scene.victim.progress(&failed);
        }
        assert_eq!(scene.to_villain.alloc(1, FragmentKind::Host).is_err(), failed.0.get());
        failed.0.get()
    }

    fn push(scene: &Scene, kind: Kind, value: u32) {
        let cells = FifoMemory::new(scene.victims.clone(), scene.layout.fifo_cells);
        fifo::push(&cells, Record { producer: 0, kind, value }).unwrap();
    }

    #[test]
    fn a_peer_that_breaks_the_protocol_is_disconnected() {
        assert!(!is_cut_off(|scene| push(scene, Kind::FastBox, 0)));
        assert!(!is_cut_off(|scene| push(scene, Kind::Fragment, 0)), "an empty message");
        assert!(is_cut_off(|scene| push(scene, Kind::FastBox, 1000)), "a box that does not exist");
        assert!(is_cut_off(|scene| (0..2).for_each(|number| push(scene, Kind::FastBox, number))), "two boxes");
        assert!(is_cut_off(|scene| push(scene, Kind::Fragment, 0xf_ffff)), "a fragment that does not exist");
        assert!(is_cut_off(|scene| push(scene, Kind::Fragment, 3 << 20)), "a device fragment without a segment");
        assert!(
            is_cut_off(|scene| {
                let long = u64::from(u32::MAX) << 32;
                scene.villains.word(scene.layout.eager.header(0)).store(long, Relaxed);
                push(scene, Kind::Fragment, 0);
            }),
            "a message longer than its fragment"
        );
        let stamps = [
            (1 | 1 << 56 | 0xff_ffff << 32, "a message longer than the ring"),
            (7 | 1 << 56, "a wrong lap"),
            (1 | 9 << 56, "an unknown kind"),
            (1 | 3 << 56, "a continuation without a message"),
        ];
        for (stamp, what) in stamps {
            let deed = |scene: &mut Scene| {
                scene.villains.word(scene.layout.fast_box(0) + 128).store(stamp, Relaxed);
                push(scene, Kind::FastBox, 0);
            };
            assert!(is_cut_off(deed), "{what}");
        }
    }

    #[test]
    fn invalid_credits_disconnect_as_well() {
        assert!(is_cut_off(|scene| {
            scene.victims.word(scene.layout.fast_box(0)).store(u64::MAX, Relaxed);
            // Often enough to get a fast box and to fill it.
            let sent = (0..1000).take_while(|_| scene.to_villain.send_inline(&[0; 8], &[]).is_ok()).count();
            assert!(sent < 1000);
        }));
    }
}
