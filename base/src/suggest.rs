//! The nearest known name to one that a user mistyped.

/// The candidate with the smallest edit distance to `name`, unless even that is too far to be what was meant
/// (more than a third of its length).
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours that lead from `a` to `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Distances between prefixes: those of `a` by one character less than in `last` are in `before`.
    let (mut before, mut last): (Vec<usize>, Vec<usize>) = (Vec::new(), (0..=b.len()).collect());
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let substituted = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut distance = substituted.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                distance = distance.min(before[j - 2] + 1);
            }
            row.push(distance);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_a_typo_and_refuses_a_stranger() {
        let names = ["btl_sm_eager_limit", "btl_tcp_eager_limit", "peer_timeout"];
        assert_eq!(nearest("btl_sm_eagr_limit", names), Some("btl_sm_eager_limit"));
        assert_eq!(nearest("peer-timeout", names), Some("peer_timeout"));
        assert_eq!(nearest("tpc", ["self", "sm", "tcp"]), Some("tcp"));
        assert_eq!(nearest("colour", names), None);
    }
}
