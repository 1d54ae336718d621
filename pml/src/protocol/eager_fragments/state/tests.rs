use super::*;

const ONE: Id = Id(1);
const TWO: Id = Id(2);
const ALLOWED: u64 = 1 << 20;

/// Passes `len` bytes of ones for `offset`.
fn came(followers: &mut Followers, sender: Id, (offset, len): (u64, u64)) -> Result<Came, Malformed> {
    followers.came(sender, (offset, len), |bytes| bytes.resize(bytes.len() + len as usize, 1))
}

#[test]
fn data_is_collected_until_a_receive_matches_and_goes_there_afterwards() {
    let mut followers = Followers::default();
    followers.announced((ONE, 100), ALLOWED).unwrap();
    followers.announced((TWO, 10), ALLOWED).unwrap();
    assert_eq!(came(&mut followers, ONE, (0, 40)), Ok(Came { to: None, credit: None }));
    let collected = followers.redirect(ONE, Destination::Receive(Id(7)));
    assert_eq!((collected.bytes, collected.credit), (vec![1; 40], None));
    assert_eq!(came(&mut followers, ONE, (40, 50)), Ok(Came { to: Some(Id(7)), credit: None }));
    assert_eq!(came(&mut followers, TWO, (0, 10)), Ok(Came { to: None, credit: None }));
    assert_eq!(came(&mut followers, ONE, (90, 10)), Ok(Came { to: Some(Id(7)), credit: Some(cost(100)) }));
    let collected = followers.redirect(TWO, Destination::Receive(Id(8)));
    assert_eq!((collected.bytes, collected.credit), (vec![1; 10], Some(cost(10))));
    assert_eq!((followers.messages.len(), followers.cost), (0, 0));
}

#[test]
fn data_that_nobody_receives_is_counted_and_returns_its_credit() {
    let mut followers = Followers::default();
    followers.announced((ONE, 100), ALLOWED).unwrap();
    came(&mut followers, ONE, (0, 60)).unwrap();
    assert_eq!(followers.redirect(ONE, Destination::Nobody).credit, None);
    assert_eq!(came(&mut followers, ONE, (60, 40)), Ok(Came { to: None, credit: Some(cost(100)) }));
    assert_eq!((followers.messages.len(), followers.cost), (0, 0));
}

#[test]
fn a_peer_that_breaks_the_rules_is_told_from_one_that_does_not() {
    let mut followers = Followers::default();
    assert!(matches!(came(&mut followers, ONE, (0, 1)), Err(Malformed::NoTransfer { .. })), "it was not announced");
    followers.announced((ONE, 100), ALLOWED).unwrap();
    assert!(matches!(followers.announced((ONE, 100), ALLOWED), Err(Malformed::OutOfTurn { .. })), "twice");
    for (offset, len) in [(1, 10), (0, 101), (u64::MAX, 2), (0, u64::MAX)] {
        let refused = followers.came(ONE, (offset, len), |_| panic!("nothing is collected"));
        assert!(matches!(refused, Err(Malformed::Range { .. })), "{offset}, {len}");
    }
    came(&mut followers, ONE, (0, 50)).unwrap();
    assert!(matches!(came(&mut followers, ONE, (0, 50)), Err(Malformed::Range { .. })), "the same bytes again");
    assert!(matches!(came(&mut followers, ONE, (50, 51)), Err(Malformed::Range { .. })), "too many");
    let left = ALLOWED - followers.cost;
    let refused = followers.announced((TWO, left), ALLOWED);
    assert!(matches!(refused, Err(Malformed::OverCredit { allowed: ALLOWED, .. })), "{refused:?}");
    assert!(matches!(followers.announced((TWO, u64::MAX), ALLOWED), Err(Malformed::OverCredit { .. })));
    followers.announced((TWO, left - cost(0)), ALLOWED).unwrap();
}

#[test]
fn permits_are_for_a_size_and_run_out() {
    let mut permits = Permits::default();
    let (len, larger) = (20_000, 100_000);
    assert!(!permits.covers(len));
    permits.answered(len, 9);
    for _ in 0..9 {
        assert!(permits.covers(len) && permits.covers(16 << 10) && !permits.covers(larger));
        permits.take(len);
    }
    assert!(!permits.covers(len));
    permits.answered(larger, 9);
    permits.answered(larger, 0);
    assert!(!permits.covers(larger), "the receiver has changed its mind");
    for len in [0, u64::MAX] {
        permits.answered(len, 9);
    }
    assert!(!permits.covers(u64::MAX), "no size of eager fragments");
}
