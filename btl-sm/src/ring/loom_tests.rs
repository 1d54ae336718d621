//! Tests small rings in every interleaving, and in every order in which stores may become visible.

use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::fast_box::{Arrival, PAYLOAD, Reader, SHORT, SLOT, STAMP, Slots, Writer};
use super::fifo::{self, Cells, Consumer, Kind, Record};
use super::offer;

/// A fast box of a few slots with a payload that loom watches: a write that races with a read fails the test. Old
/// payload stays where the receiver looks for stamps.
#[derive(Clone)]
struct TestBox(Arc<(AtomicU64, Vec<(AtomicU64, UnsafeCell<[u8; SHORT]>)>)>);

impl TestBox {
    fn new(slots: usize) -> Self {
        let slot = |_| (AtomicU64::new(0), UnsafeCell::new([0; SHORT]));
        TestBox(Arc::new((AtomicU64::new(0), (0..slots).map(slot).collect())))
    }

    /// Returns the bytes from `at` on, divided by slots: the slot, the offset in it, and the range of `len`.
    fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let (slot, within) = ((at + done) / SLOT, (at + done) % SLOT);
            let end = if within < STAMP { STAMP } else { SLOT };
            let now = (end - within).min(len - done);
            let range = done..done + now;
            done += now;
            (now != 0).then_some((slot, within, range))
        })
    }
}

impl Slots for TestBox {
    type Word = AtomicU64;
    fn count(&self) -> u64 {
        self.0.1.len() as u64
    }
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        &self.0.1[slot].0
    }
    fn consumed(&self) -> &AtomicU64 {
        &self.0.0
    }
    unsafe fn write(&self, at: usize, bytes: &[u8]) {
        for (slot, within, range) in Self::parts(at, bytes.len()) {
            let (word, payload) = &self.0.1[slot];
            let bytes = &bytes[range];
            if within < STAMP {
                let mut whole = word.load(Relaxed).to_le_bytes();
                whole[within..within + bytes.len()].copy_from_slice(bytes);
                word.store(u64::from_le_bytes(whole), Relaxed);
            } else {
                let at = within - STAMP;
                // SAFETY: loom checks that no other thread accesses it.
                payload.with_mut(|payload| unsafe { (&mut *payload)[at..at + bytes.len()].copy_from_slice(bytes) });
            }
        }
    }
    unsafe fn read(&self, at: usize, out: &mut [u8]) {
        for (slot, within, range) in Self::parts(at, out.len()) {
            let (word, payload) = &self.0.1[slot];
            let out = &mut out[range];
            if within < STAMP {
                out.copy_from_slice(&word.load(Relaxed).to_le_bytes()[within..within + out.len()]);
            } else {
                let at = within - STAMP;
                // SAFETY: as above.
                payload.with(|payload| unsafe { out.copy_from_slice(&(&*payload)[at..at + out.len()]) });
            }
        }
    }
}

fn pass(slots: usize, messages: &'static [&'static [u8]]) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let memory = TestBox::new(slots);
        let mut writer = Writer::new(memory.clone());
        let sender = thread::spawn(move || {
            for message in messages {
                while !writer.push_inline(&message[..1], &message[1..], 0).unwrap() {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::new(memory);
        for message in messages {
            let Arrival::Inline { at, len } = (loop {
                match reader.next().unwrap() {
                    Some(arrival) => break arrival,
                    None => thread::yield_now(),
                }
            }) else {
                panic!("no fragment was sent");
            };
            let mut bytes = vec![0; len];
            reader.gather(at, &mut bytes);
            assert_eq!(bytes, *message);
            reader.release();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_fast_box_passes_single_slots_round_the_ring() {
    pass(4, &[b"a", b"bc", b"def", b"ghij", b"klmno"]);
}

#[test]
fn a_fast_box_passes_messages_of_whole_lines_round_the_ring() {
    pass(8, &[&[1; PAYLOAD], &[2; PAYLOAD + 1], &[3; SHORT + 1], &[4; PAYLOAD]]);
}

#[test]
fn a_fast_box_passes_slots_and_lines_in_turn() {
    pass(4, &[b"a", &[1; PAYLOAD], b"b", b"c", b"d"]);
}

/// A FIFO of two cells.
#[derive(Clone)]
struct TestFifo(Arc<(AtomicU64, AtomicU64, [AtomicU64; 2])>);

impl TestFifo {
    fn new() -> Self {
        TestFifo(Arc::new((AtomicU64::new(0), AtomicU64::new(0), [AtomicU64::new(0), AtomicU64::new(0)])))
    }
}

impl Cells for TestFifo {
    type Word = AtomicU64;
    fn count(&self) -> u64 {
        2
    }
    fn cell(&self, index: usize) -> &AtomicU64 {
        &self.0.2[index]
    }
    fn tail(&self) -> &AtomicU64 {
        &self.0.0
    }
    fn head(&self) -> &AtomicU64 {
        &self.0.1
    }
}

#[test]
fn a_fifo_loses_nothing_and_keeps_each_producers_order() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let fifo = TestFifo::new();
        let data = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let producers: Vec<_> = [2, 1]
            .into_iter()
            .enumerate()
            .map(|(producer, records)| {
                let (fifo, data) = (fifo.clone(), data.clone());
                thread::spawn(move || {
                    for value in 1..=records {
                        data[producer].store(value, Relaxed);
                        let record = Record { producer: producer as u16, kind: Kind::Fragment, value: value as u32 };
                        while fifo::push(&fifo, record).is_none() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut consumer = Consumer::new(fifo.clone());
        let mut last = [0; 2];
        for _ in 0..3 {
            let record = loop {
                match consumer.pop().unwrap() {
                    Some(record) => break record,
                    None => thread::yield_now(),
                }
            };
            let producer = usize::from(record.producer);
            last[producer] += 1;
            assert_eq!(record.value, last[producer], "a record was lost, doubled or overtaken");
            let seen = data[producer].load(Relaxed);
            assert!(seen >= u64::from(record.value), "writes before the push must be visible after the pop");
            consumer.publish();
        }
        assert_eq!(last, [2, 1]);
        assert_eq!(fifo::head(&fifo), 3);
        assert_eq!(consumer.pop().unwrap(), None);
        producers.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn an_offer_is_either_claimed_or_withdrawn() {
    loom::model(|| {
        let word = Arc::new(AtomicU64::new(0));
        let peer = word.clone();
        let claimer = thread::spawn(move || [1, 1, 2].map(|generation| offer::claim(&*peer, generation)));
        offer::make(&*word, 1);
        let first = offer::withdraw(&*word, 1).unwrap();
        offer::make(&*word, 2);
        let second = offer::withdraw(&*word, 2).unwrap();
        let claims = claimer.join().unwrap();
        assert_eq!(claims[..2].iter().filter(|&&claimed| claimed).count(), usize::from(!first));
        assert_eq!(claims[2], !second);
    });
}
