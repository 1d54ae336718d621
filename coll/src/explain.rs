//! Explains which algorithms are chosen, without a job.

use std::time::Duration;

use cableway_base::Parameters;
use cableway_pml::NodeCard;

use crate::choice::{Asked, Choice, Operation, Predicted, Rules, Setup};
use crate::plan::Nodes;

/// The operations that several algorithms perform.
pub const EXPLAINED: [&str; 5] = ["allreduce", "reduce", "broadcast", "allgather", "reduce_scatter"];

/// A collective operation to explain.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// One of [`EXPLAINED`].
    pub operation: &'q str,
    /// The number of ranks.
    pub ranks: u32,
    /// The number of nodes, which the ranks fill evenly.
    pub nodes: u32,
    /// The bytes of data. Of an allgather or a reduce-scatter, those of all blocks together.
    pub bytes: u64,
    /// The data is in device memory.
    pub on_devices: bool,
}

/// An algorithm and its predicted time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    /// Its name.
    pub algorithm: &'static str,
    /// The predicted time, from the call of all ranks until all have ended.
    pub time: Duration,
    /// Whether it is the one that would be performed.
    pub chosen: bool,
}

/// Predicts the times of all algorithms of an operation, if all nodes are as `card` says. Returns `None` if the operation
/// has only one algorithm, there are fewer than two ranks, or more nodes than ranks, or none.
pub fn explain(parameters: &Parameters, card: NodeCard, question: Question<'_>) -> Option<Vec<Prediction>> {
    let Question { ranks, nodes, bytes, on_devices, .. } = question;
    let operation = Operation::ALL.into_iter().find(|operation| operation.name() == question.operation)?;
    if ranks < 2 || nodes == 0 || nodes > ranks {
        return None;
    }
    let shape = Nodes::even(ranks, nodes);
    let on = |rank: u32| {
        let mut card = card;
        card.node = Some(u128::from(shape.of_rank(rank) + 1).to_be_bytes());
        card
    };
    let setup = Setup::new((0..ranks).map(on).collect(), on_devices);
    let (choice, rules) = (Choice::new(setup, parameters), Rules::new(parameters));
    let predicted = choice.predict(&rules, operation, bytes);
    // Choices are made for powers of two.
    let chosen = choice.choose(&rules, Asked { operation, bytes, may_be_one_shot: true }, |_| ());
    let row = |&Predicted { algorithm, time }: &Predicted| Prediction {
        algorithm: algorithm.name(),
        time: Duration::from_nanos(time / 1000),
        chosen: algorithm == chosen,
    };
    Some(predicted.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(operation: &str, ranks: u32, nodes: u32) -> Option<Vec<Prediction>> {
        ask_on(false, operation, ranks, nodes)
    }

    fn ask_on(on_devices: bool, operation: &str, ranks: u32, nodes: u32) -> Option<Vec<Prediction>> {
        let question = Question { operation, ranks, nodes, bytes: 1 << 20, on_devices };
        explain(&Parameters::default(), NodeCard::default(), question)
    }

    #[test]
    fn one_algorithm_is_chosen_and_none_is_faster() {
        for operation in EXPLAINED {
            for (ranks, nodes) in [(2, 1), (8, 2), (7, 3), (5, 5)] {
                for on_devices in [false, true] {
                    let rows = ask_on(on_devices, operation, ranks, nodes).unwrap();
                    let chosen: Vec<&Prediction> = rows.iter().filter(|row| row.chosen).collect();
                    assert_eq!(chosen.len(), 1);
                    assert!(rows.iter().all(|row| row.time >= chosen[0].time));
                    // Shares of a reduce-scatter go directly to their ranks, unless these access each other's memory.
                    assert!(rows.len() > 1 || operation == "reduce_scatter");
                    let peer_access = rows.iter().any(|row| row.algorithm == "peer_access");
                    assert_eq!(peer_access, on_devices && nodes == 1 && operation != "broadcast");
                }
            }
        }
    }

    #[test]
    fn impossible_questions_have_no_answer() {
        assert!(ask("alltoall", 4, 1).is_none());
        assert!(ask("allreduce", 1, 1).is_none() && ask("allreduce", 4, 5).is_none() && ask("reduce", 4, 0).is_none());
    }
}
