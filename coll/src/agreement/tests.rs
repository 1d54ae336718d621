use super::*;
use crate::random::Random;

const LIMIT: u64 = 1000;

/// Members whose messages arrive late, in order between each two.
struct Members {
    members: Vec<Agreement>,
    under_way: Vec<Vec<VecDeque<Notice>>>,
    performed: Vec<Vec<Performer>>,
}

impl Members {
    fn new(size: usize) -> Members {
        Members {
            members: (0..size).map(|rank| Agreement::new(rank as u32, size as u32, LIMIT)).collect(),
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
        if let Some(message) = self.under_way[from][to].pop_front() {
            self.members[to].receive(Notice::decode(message.encode()).unwrap());
        }
    }
}

#[test]
fn all_members_change_at_the_same_call() {
    for seed in 1..300_u32 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.rotate_left(seed % 64) ^ u64::from(seed) << 7);
        let size = 1 + random.below(5);
        let calls = 60;
        let mut all = Members::new(size);
        let wants = random.below(size);
        while all.performed.iter().any(|performed| performed.len() < calls) {
            let member = random.below(size);
            match random.below(3) {
                0 if all.performed[member].len() < calls => {
                    if member == wants && all.performed[member].len() > 3 {
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
