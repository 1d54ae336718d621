//! Every interleaving of small rings, and every order in which their words may become visible.

use std::sync::atomic::Ordering::Relaxed;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::fast_box::{Arrival, PAYLOAD, Reader, Slots, Writer};
use super::fifo::{self, Cells, Consumer, Kind, Record};
use super::offer;

/// A fast box of four slots whose payload loom watches: a write that races with a read fails the test.
#[derive(Clone)]
struct TestBox(Arc<(AtomicU64, [(AtomicU64, UnsafeCell<[u8; PAYLOAD]>); 4])>);

impl TestBox {
    fn new() -> Self {
        let slot = |_| (AtomicU64::new(0), UnsafeCell::new([0; PAYLOAD]));
        TestBox(Arc::new((AtomicU64::new(0), std::array::from_fn(slot))))
    }
}

impl Slots for TestBox {
    type Word = AtomicU64;
    fn count(&self) -> u64 {
        4
    }
    fn stamp(&self, slot: usize) -> &AtomicU64 {
        &self.0.1[slot].0
    }
    fn consumed(&self) -> &AtomicU64 {
        &self.0.0
    }
    unsafe fn write(&self, slot: usize, at: usize, bytes: &[u8]) {
        // SAFETY: loom checks that nobody else is at it.
        self.0.1[slot].1.with_mut(|payload| unsafe { (&mut *payload)[at..at + bytes.len()].copy_from_slice(bytes) });
    }
    unsafe fn read(&self, slot: usize, out: &mut [u8]) {
        // SAFETY: as above.
        self.0.1[slot].1.with(|payload| unsafe { out.copy_from_slice(&(&*payload)[..out.len()]) });
    }
}

fn pass(messages: &'static [&'static [u8]]) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let memory = TestBox::new();
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
            let Arrival::Inline { slot, len } = (loop {
                match reader.next().unwrap() {
                    Some(arrival) => break arrival,
                    None => thread::yield_now(),
                }
            }) else {
                panic!("no fragment was sent");
            };
            let mut bytes = vec![0; len];
            reader.gather(slot, &mut bytes);
            assert_eq!(bytes, *message);
            reader.release();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_fast_box_passes_single_slots_round_the_ring() {
    pass(&[b"a", b"bc", b"def", b"ghij", b"klmno"]);
}

#[test]
fn a_fast_box_passes_messages_of_several_slots_round_the_ring() {
    pass(&[b"a", &[1; 2 * PAYLOAD + 1], &[2; PAYLOAD + 1]]);
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
            assert!(seen >= u64::from(record.value), "what was written before the push is visible after the pop");
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
        offer::offer(&*word, 1);
        let peer = word.clone();
        let claimer = thread::spawn(move || [1, 1, 2].map(|generation| offer::claim(&*peer, generation)));
        let first = offer::withdraw(&*word, 1).unwrap();
        offer::offer(&*word, 2);
        let second = offer::withdraw(&*word, 2).unwrap();
        let claims = claimer.join().unwrap();
        assert_eq!(claims[..2].iter().filter(|&&claimed| claimed).count(), usize::from(!first));
        assert_eq!(claims[2], !second);
    });
}
