use std::cell::RefCell;
use std::sync::Arc;

use cableway_base::Parameters;
use cableway_btl::{
    Access, Btl, Endpoint, Error, Flags, FragmentKind, Job, Rank, Received, Region, Remote, Sent, Token, Transfer,
    Upcalls,
};
use cableway_common_cuda::{Devices, Location, Order};

use crate::SelfLoop;

#[derive(Default)]
struct Seen {
    messages: RefCell<Vec<Vec<u8>>>,
}

impl Upcalls for Seen {
    fn receive(&self, _peer: Rank, message: Received<'_>) {
        let mut bytes = vec![0; message.bytes().len()];
        message.bytes().copy_to(&mut bytes);
        self.messages.borrow_mut().push(bytes);
    }
    fn completed(&self, _token: Token, _result: Result<(), Error>) {}
    fn peer_failed(&self, peer: Rank, error: Error) {
        panic!("{peer}: {error}");
    }
    fn peer_left(&self, peer: Rank) {
        panic!("{peer} left");
    }
}

fn pair() -> (Arc<SelfLoop>, Box<dyn Endpoint>) {
    let job = Job::new("t".into(), [0; 32], 3, 4, 4);
    let btl = SelfLoop::new(&job, &Parameters::default(), &Devices::none());
    assert!(btl.connect(2, &[]).unwrap().is_empty(), "the transport must not reach another rank");
    let endpoint = btl.connect(3, &btl.card()).unwrap().pop().unwrap();
    (btl, endpoint)
}

fn region(bytes: &mut [u8]) -> Region {
    Region { address: bytes.as_mut_ptr(), len: bytes.len(), location: Location::HOST, order: Order::None }
}

#[test]
fn messages_arrive_in_order_and_only_in_progress() {
    let (btl, mut endpoint) = pair();
    let seen = Seen::default();
    assert_eq!(endpoint.send_inline(b"he", b"llo").unwrap(), Sent::Done);
    let mut fragment = endpoint.alloc(100, FragmentKind::Host).unwrap().unwrap();
    fragment.write(0, b"world");
    endpoint.send(fragment, 5).unwrap();
    drop(endpoint.alloc(10, FragmentKind::Device).unwrap());
    assert!(seen.messages.borrow().is_empty());
    assert_eq!(btl.progress(&seen), 2);
    assert_eq!(*seen.messages.borrow(), [b"hello".to_vec(), b"world".to_vec()]);
    assert_eq!(btl.progress(&seen), 0);
}

#[test]
fn a_full_queue_answers_busy() {
    let (btl, mut endpoint) = pair();
    let mut taken = 0;
    while endpoint.send_inline(b"x", b"").unwrap() == Sent::Done {
        taken += 1;
        assert!(taken < 1_000_000, "the queue never fills");
    }
    assert!(endpoint.alloc(1, FragmentKind::Host).unwrap().is_none());
    let seen = Seen::default();
    assert_eq!(btl.progress(&seen), taken);
    assert_eq!(endpoint.send_inline(b"x", b"").unwrap(), Sent::Done);
}

#[test]
fn get_copies_within_bounds_and_refuses_beyond() {
    let (_btl, mut endpoint) = pair();
    assert!(endpoint.capabilities().flags.contains(Flags::GET));
    let mut source: Vec<u8> = (0..100).collect();
    let mut target = [0; 10];
    // SAFETY: both buffers outlive the registration and the copies, which are synchronous for host memory.
    unsafe {
        let registration = endpoint.register(region(&mut source), Access::RemoteRead).unwrap().unwrap();
        let handle = *registration.handle();
        assert_eq!(
            endpoint.get(&region(&mut target).into(), &Remote::at(&handle, 90), Token(1)).unwrap(),
            Transfer::Done
        );
        assert_eq!(target[..], source[90..]);
        assert!(endpoint.get(&region(&mut target).into(), &Remote::at(&handle, 91), Token(1)).is_err());
        assert!(endpoint.get(&region(&mut target).into(), &Remote::at(&handle, u64::MAX), Token(1)).is_err());
        drop(registration);
        assert!(
            endpoint.get(&region(&mut target).into(), &Remote::at(&handle, 0), Token(1)).is_err(),
            "a get from a dropped registration must fail"
        );
    }
}
