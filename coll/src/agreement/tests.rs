use super::*;
use crate::random::Random;

const LIMIT: u64 = 1000;

/// Members whose messages arrive late, in order between each two.
struct Members {
    members: Vec<Agreement>,
    /// Members that have freed the communicator.
    left: Vec<bool>,
    under_way: Vec<Vec<VecDeque<Notice>>>,
    performed: Vec<Vec<Performer>>,
}

impl Members {
    fn new(size: usize) -> Members {
        Members {
            members: (0..size).map(|rank| Agreement::new(rank as u32, size as u32, LIMIT)).collect(),
            left: vec![false; size],
            under_way: vec![vec![VecDeque::new(); size]; size],
            performed: vec![Vec::new(); size],
        }
    }

    fn collect(&mut self) {
        for (from, member) in self.members.iter_mut().enumerate() {
            while let Some((to, message)) = member.next_notice() {
                self.under_way[from][to as usize].push_back(message);
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize) {
        let Some(message) = self.under_way[from][to].pop_front() else { return };
        let notice = Notice::decode(message.encode()).unwrap();
        match notice {
            _ if !self.left[to] => self.members[to].receive(notice),
            // Its sender is told.
            Notice::Propose { .. } => self.members[from].lose(),
            _ => {}
        }
    }
}

#[test]
fn all_members_change_at_the_same_call() {
    for seed in 1..300_u32 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.rotate_left(seed % 64) ^ u64::from(seed) << 7);
        let size = 1 + random.below(5);
        let calls = 60;
        // Early, or so late that members leave during the agreement.
        let first = if seed % 2 == 0 { 3 } else { 50 + random.below(8) };
        let mut all = Members::new(size);
        let wants = random.below(size);
        while all.performed.iter().any(|performed| performed.len() < calls) {
            let member = random.below(size);
            match random.below(3) {
                0 if all.performed[member].len() == calls => all.left[member] = true,
                0 => {
                    if member == wants && all.performed[member].len() > first {
                        all.members[member].want(1 + member as u64 % 3);
                    }
                    match all.members[member].begin(LIMIT) {
                        Performer::Undecided => {}
                        // The call may be wrong, and is corrected.
                        _ if random.below(8) == 0 => all.members[member].retract(),
                        performer => all.performed[member].push(performer),
                    }
                }
                _ => {
                    let from = random.below(size);
                    all.deliver(from, member);
                }
            }
            all.collect();
        }
        for performed in &all.performed {
            assert_eq!(performed, &all.performed[0], "seed {seed}");
        }
    }
}

#[test]
fn members_that_keep_step_change_soon() {
    let mut all = Members::new(3);
    all.members[2].want(7);
    for _ in 0..6 {
        for rank in 0..3 {
            let performer = all.members[rank].begin(LIMIT);
            assert_ne!(performer, Performer::Undecided);
            all.performed[rank].push(performer);
            all.collect();
        }
        for _ in 0..4 {
            for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 0)] {
                all.deliver(from, to);
            }
            all.collect();
        }
    }
    let below = all.performed[0].iter().filter(|performer| **performer == Performer::Host).count();
    assert_eq!(below, 2, "{:?}", all.performed[0]);
}

#[test]
fn without_device_memory_nothing_is_sent() {
    let mut member = Agreement::new(1, 4, LIMIT);
    for _ in 0..100 {
        assert_eq!(member.begin(LIMIT), Performer::Host);
    }
    assert_eq!(member.next_notice(), None);
}

#[test]
fn small_calls_of_members_that_share_a_device_do_not_change() {
    for (devices, expected) in [([5, 6, 5], Performer::Host), ([5, 6, 7], Performer::Collectives)] {
        let mut all = Members::new(3);
        for (member, device) in all.members.iter_mut().zip(devices) {
            member.want(device);
        }
        for _ in 0..6 {
            all.collect();
            for (from, to) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
                all.deliver(from, to);
            }
        }
        for member in &mut all.members {
            member.begin(LIMIT);
            assert_eq!(member.begin(LIMIT), Performer::Collectives);
            assert_eq!(member.begin(LIMIT - 1), expected, "{devices:?}");
            assert_eq!(member.performer(u64::MAX), Performer::Collectives);
        }
    }
}

#[test]
fn nobody_waits_for_a_member_that_has_left() {
    let mut all = Members::new(3);
    // Rank 1 has made its three calls, and has freed the communicator.
    all.left[1] = true;
    all.members[0].want(1);
    for rank in [0, 2] {
        assert_eq!(all.members[rank].begin(LIMIT), Performer::Host);
    }
    all.collect();
    all.deliver(0, 2);
    all.collect();
    assert_eq!([0, 2].map(|rank| all.members[rank].begin(LIMIT)), [Performer::Undecided; 2]);
    all.deliver(0, 1);
    all.collect();
    // An answer to the proposal that was given up, and another wish.
    all.deliver(2, 0);
    all.members[0].receive(Notice::Want);
    all.collect();
    all.deliver(0, 2);
    for rank in [0, 2] {
        assert_eq!([0; 2].map(|_| all.members[rank].begin(LIMIT)), [Performer::Host; 2]);
        assert_eq!(all.members[rank].next_notice(), None);
    }
}

#[test]
fn a_leader_that_leaves_decides_before() {
    let mut all = Members::new(3);
    all.members[0].want(1);
    all.members[0].begin(LIMIT);
    all.collect();
    all.deliver(0, 2);
    all.members[0].lose();
    all.collect();
    // Answers may come before it has left, and a member is no leader.
    all.deliver(2, 0);
    all.members[2].lose();
    all.collect();
    all.deliver(0, 2);
    assert_eq!([0; 3].map(|_| all.members[2].begin(LIMIT)), [Performer::Host; 3]);
    assert_eq!([0, 2].map(|rank| all.members[rank].next_notice()), [None; 2]);
}

#[test]
fn notices_for_others_are_ignored() {
    let mut leader = Agreement::new(0, 3, LIMIT);
    leader.receive(Notice::Propose { switch: 1, slots: None });
    leader.receive(Notice::Decide(Decision { agreed: true, shared: false, slots: false }));
    let mut member = Agreement::new(1, 3, LIMIT);
    member.receive(Notice::Want);
    member.receive(Notice::Lost);
    for mut one in [leader, member] {
        assert_eq!(one.next_notice(), None);
        assert_eq!([0; 3].map(|_| one.begin(LIMIT)), [Performer::Host; 3]);
    }
}

#[test]
fn slots_are_used_only_if_all_members_have_mapped_them() {
    let name = SlotsName { process: 77, descriptor: 5, cookie: u64::MAX };
    for (mapped, expected) in [([true; 3], true), ([true, false, true], false), ([false; 3], false)] {
        let mut all = Members::new(3);
        for (member, mapped) in all.members.iter_mut().zip(mapped) {
            member.note_slots(mapped.then_some(name));
        }
        all.members[1].want(7);
        for _ in 0..6 {
            all.collect();
            for (from, to) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
                all.deliver(from, to);
            }
        }
        for member in &mut all.members {
            assert_eq!([0; 2].map(|_| member.begin(LIMIT))[1], Performer::Collectives);
            assert_eq!(member.uses_slots(), expected, "{mapped:?}");
        }
    }
}

#[test]
fn members_that_use_this_crate_from_the_first_call_on_agree_on_slots_alone() {
    let name = SlotsName { process: 1, descriptor: 0, cookie: 0 };
    for (devices, expected) in [([5, 6, 7], true), ([5, 6, 5], false)] {
        let mut all = Members::new(3);
        for (rank, member) in all.members.iter_mut().enumerate() {
            *member = Agreement::reached(rank as u32, 3);
            member.note_slots(Some(name));
            member.want(devices[rank]);
            assert_eq!((member.begin(1), member.uses_slots()), (Performer::Collectives, false));
        }
        for _ in 0..6 {
            all.collect();
            for (from, to) in [(1, 0), (2, 0), (0, 1), (0, 2)] {
                all.deliver(from, to);
            }
        }
        for member in &mut all.members {
            assert_eq!([0; 2].map(|_| member.begin(1)), [Performer::Collectives; 2]);
            assert_eq!(member.uses_slots(), expected, "{devices:?}");
        }
    }
}
