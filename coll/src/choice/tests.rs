use super::*;
use crate::plan::Me;

fn card(node: u8) -> NodeCard {
    let mut card = NodeCard::default();
    card.node = Some([node; 16]);
    card
}

/// A generator of numbers (xorshift).
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64.rotate_left(seed as u32) ^ seed;
    move |limit| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % limit.max(1)
    }
}

/// Returns a choice with other prices than those of the cards.
fn priced(nodes: Nodes, prices: Prices) -> Choice {
    let cards = (0..nodes.ranks()).map(|rank| card(nodes.of_rank(rank) as u8 + 1)).collect();
    let mut choice = Choice::new(Setup::new(cards, false), &Parameters::default());
    assert_eq!(choice.setup.nodes, nodes);
    choice.host = prices;
    choice
}

/// Asks for an operation that is not done in one shot.
fn asked(operation: Operation, bytes: u64) -> Asked {
    Asked { operation, bytes, may_be_one_shot: false }
}

#[test]
fn no_other_algorithm_is_predicted_to_be_faster() {
    let rules = Rules::new(&Parameters::default());
    let mut chosen = std::collections::HashSet::new();
    for seed in 1..60 {
        let mut below = random(seed);
        let ranks = 2 + below(11);
        let nodes = 1 + below(4);
        let shape = (0..ranks).map(|_| Some([below(nodes) as u8; 16]));
        let nodes = Nodes::of(shape.collect::<Vec<_>>());
        let choice = priced(nodes, crate::costs::tests::random(&mut below));
        for operation in Operation::ALL {
            let class = below(CLASSES as u64) as u32;
            let predicted = choice.predict(&rules, operation, 1 << class);
            let mut reports = 0;
            let algorithm = choice.choose(&rules, asked(operation, 1 << class), |_| reports += 1);
            let time = predicted.iter().find(|one| one.algorithm == algorithm).unwrap().time;
            assert!(time > 0 && predicted.iter().all(|one| one.time >= time), "{operation:?}: {predicted:?}");
            // Asked again for this class, it has nothing to decide.
            let again = (1_u64 << class) + below(1 << class);
            assert_eq!(choice.choose(&rules, asked(operation, again), |_| reports += 1), algorithm);
            assert_eq!(reports, 1);
            chosen.insert((operation as u8, algorithm.name()));
        }
    }
    assert!(chosen.len() > 8, "the prices made a difference: {chosen:?}");
}

#[test]
fn every_rank_of_a_job_chooses_the_same() {
    let cards: Vec<NodeCard> = (0..6).map(|rank| card(rank / 2)).collect();
    let rules = Rules::new(&Parameters::default());
    let choices: Vec<Choice> =
        (0..2).map(|_| Choice::new(Setup::new(cards.clone(), true), &Parameters::default())).collect();
    for operation in Operation::ALL {
        for bytes in [1, 1000, 70_000, 9 << 20, u64::MAX] {
            let [one, other] = [0, 1].map(|rank: usize| choices[rank].choose(&rules, asked(operation, bytes), |_| ()));
            assert_eq!(one, other);
        }
    }
}

#[test]
fn latency_decides_for_little_data_and_the_network_for_much() {
    let rules = Rules::new(&Parameters::default());
    let mut cards: Vec<NodeCard> = (0..16).map(|rank| card(1 + rank / 8)).collect();
    for card in &mut cards {
        card.within = cableway_pml::RouteCost { latency: 500, each: 80 };
        card.between = cableway_pml::RouteCost { latency: 25_000, each: 800 };
    }
    let choice = Choice::new(Setup::new(cards, false), &Parameters::default());
    let much = choice.choose(&rules, asked(Operation::Allreduce, 64 << 20), |_| ());
    assert!(matches!(much, Algorithm::Hierarchical(_)), "{much:?}");
    let much = choice.choose(&rules, asked(Operation::Broadcast, 64 << 20), |_| ());
    assert!(matches!(much, Algorithm::Hierarchical(_)), "{much:?}");
    let one_node = Choice::new(Setup::new(vec![card(1); 8], false), &Parameters::default());
    assert_eq!(one_node.choose(&rules, asked(Operation::Allreduce, 8), |_| ()), Algorithm::Doubling);
    assert_eq!(one_node.choose(&rules, asked(Operation::Allreduce, 64 << 20), |_| ()), Algorithm::Direct);
    assert_eq!(one_node.choose(&rules, asked(Operation::Broadcast, 8), |_| ()), Algorithm::Tree);
    let many = Choice::new(Setup::new(vec![card(1); 200], false), &Parameters::default());
    assert_eq!(many.choose(&rules, asked(Operation::Allgather, 1600), |_| ()), Algorithm::Direct);
}

/// Times of more ranks than are simulated agree with simulations of all.
#[test]
fn times_of_many_ranks_are_extrapolated() {
    let mut below = random(7);
    let prices = crate::costs::tests::random(&mut below);
    for (nodes, algorithm) in [
        (Nodes::even(96, 1), Algorithm::Ring),
        (Nodes::even(96, 12), Algorithm::Ring),
        (Nodes::even(96, 24), Algorithm::Hierarchical(crate::plan::hierarchy::Between::Direct)),
    ] {
        for bytes in [96_u64 * 64, 96 << 12] {
            let question =
                Question { operation: Operation::Allreduce, bytes, nodes: &nodes, segment: 1 << 20, prices: &prices };
            let (extrapolated, simulated) = (question.time(algorithm), question.simulate(algorithm));
            let apart = extrapolated.abs_diff(simulated) * 100 / simulated;
            assert!(apart <= 10, "{algorithm:?} of {bytes} bytes: {extrapolated} instead of {simulated}");
        }
    }
    let question = Question {
        operation: Operation::Allreduce,
        bytes: 4096,
        nodes: &Nodes::even(2048, 1),
        segment: 1 << 20,
        prices: &prices,
    };
    let (extrapolated, simulated) = (question.time(Algorithm::Doubling), question.simulate(Algorithm::Doubling));
    assert!(extrapolated.abs_diff(simulated) * 100 / simulated <= 10, "{extrapolated} instead of {simulated}");
}

#[test]
fn parameters_name_algorithms() {
    let mut parameters = Parameters::default();
    parameters.assign_internal("coll_algorithm=ring").unwrap();
    let one_node = Choice::new(Setup::new(vec![card(1); 4], false), &parameters);
    let choose = |choice: &Choice, parameters: &Parameters, operation| {
        choice.choose(&Rules::new(parameters), asked(operation, 4096), |_| ())
    };
    assert_eq!(choose(&one_node, &parameters, Operation::Allgather), Algorithm::Ring);
    assert_eq!(choose(&one_node, &parameters, Operation::Allreduce), Algorithm::Ring);
    let free = Choice::new(one_node.setup.clone(), &parameters);
    let unnamed = choose(&free, &Parameters::default(), Operation::Broadcast);
    assert_eq!(choose(&one_node, &parameters, Operation::Broadcast), unnamed, "a broadcast has no ring");
    // The parameter for users comes first, also where the algorithm is not among the choices.
    parameters.assign_internal("coll_allreduce=direct").unwrap();
    let many = Choice::new(Setup::new(vec![card(1); 200], false), &parameters);
    assert_eq!(choose(&many, &parameters, Operation::Allreduce), Algorithm::Direct);
    parameters.assign_internal("coll_allreduce=hierarchical").unwrap();
    let two_nodes = Choice::new(Setup::new((0..4).map(|rank| card(rank % 2)).collect(), false), &parameters);
    assert!(matches!(choose(&two_nodes, &parameters, Operation::Allreduce), Algorithm::Hierarchical(_)));
}

#[test]
fn ranks_of_one_node_with_devices_of_their_own_access_each_others_memory() {
    let has = |setup: Setup, parameters: &Parameters| {
        let (choice, rules) = (Choice::new(setup, parameters), Rules::new(parameters));
        let offered = Operation::ALL
            .map(|one| choice.predict(&rules, one, 1 << 20).iter().any(|one| one.algorithm == Algorithm::PeerAccess));
        assert!(!offered[Operation::Broadcast as usize]);
        let reduces = offered[Operation::Allreduce as usize];
        let others = [Operation::Reduce, Operation::Allgather, Operation::ReduceScatter];
        assert!(others.iter().all(|one| offered[*one as usize] == reduces));
        assert_eq!(choice.alltoall_by_peer_access(&rules), reduces);
        reduces
    };
    let parameters = Parameters::default();
    let on_devices = |ranks: usize| Setup::new(vec![card(1); ranks], true);
    assert!(has(on_devices(2), &parameters) && has(on_devices(16), &parameters));
    assert!(!has(on_devices(17), &parameters), "a kernel has 16 sources");
    assert!(!has(on_devices(2).on_one_device(true), &parameters));
    assert!(!has(Setup::new(vec![card(1); 2], false), &parameters), "the data is in host memory");
    assert!(!has(Setup::new(vec![card(1), card(2)], true), &parameters), "two nodes");
    let mut copies = Parameters::default();
    copies.device_protocols = DeviceProtocols::Copy;
    assert!(!has(on_devices(2), &copies));
}

#[test]
fn little_data_on_devices_is_reduced_there() {
    let rules = Rules::new(&Parameters::default());
    let choice = Choice::new(Setup::new(vec![card(1); 2], true), &Parameters::default());
    for bytes in [8, 1 << 10, 1 << 16, 1 << 20] {
        let chosen = choice.choose(&rules, asked(Operation::Allreduce, bytes), |_| ());
        assert_eq!(chosen, Algorithm::PeerAccess, "{bytes} bytes");
    }
}

#[test]
fn little_data_is_exchanged_through_slots_where_members_have_them() {
    let rules = Rules::new(&Parameters::default());
    let choice = Choice::new(Setup::new(vec![card(1); 2], true), &Parameters::default());
    let in_one_shot = |choice: &Choice, operation, bytes| {
        let asked = Asked { may_be_one_shot: true, ..asked(operation, bytes) };
        choice.choose(&rules, asked, |_| ()) == Algorithm::OneShot
    };
    for operation in [Operation::Allreduce, Operation::Allgather, Operation::ReduceScatter] {
        assert!(in_one_shot(&choice, operation, 8) && in_one_shot(&choice, operation, 2048));
        assert!(!in_one_shot(&choice, operation, 1 << 20));
    }
    assert!(!in_one_shot(&choice, Operation::Broadcast, 8), "ranks would wait for each other");
    for setup in [
        Setup::new(vec![card(1); 17], true),
        Setup::new(vec![card(1); 2], true).on_one_device(true),
        Setup::new(vec![card(1); 2], false),
        Setup::new(vec![card(1), card(2)], true),
    ] {
        assert!(!in_one_shot(&Choice::new(setup, &Parameters::default()), Operation::Allreduce, 8));
    }
}

/// A large piece of scratch memory is taken and given back in every call, which takes longer than the reduction.
#[test]
fn ranks_of_a_reduce_take_scratch_memory_for_their_own_results_alone() {
    let scratch = |algorithm, rank, size| scratch_of_reduce(algorithm, 90, 0, Me { rank, size });
    assert_eq!(scratch(Algorithm::PeerAccess, 1, 2), 0);
    assert_eq!(scratch(Algorithm::PeerAccess, 2, 3), 30);
    assert_eq!(scratch(Algorithm::Tree, 1, 2), 90);
}

#[test]
fn a_choice_is_reported_once() {
    let rules = Rules::new(&Parameters::default());
    let choice = Choice::new(Setup::new(vec![card(1); 3], true), &Parameters::default());
    for (operation, different) in [(Operation::Allreduce, 2), (Operation::Reduce, 1), (Operation::Broadcast, 1)] {
        let mut reported = std::collections::HashSet::new();
        // Slots come after the first calls, and nonblocking calls do not use them.
        for may_be_one_shot in [false, true, false, true] {
            let asked = Asked { may_be_one_shot, ..asked(operation, 8) };
            choice.choose(&rules, asked, |line| assert!(reported.insert(line.to_owned()), "twice: {line}"));
        }
        assert_eq!(reported.len(), different, "{operation:?}");
    }
}
