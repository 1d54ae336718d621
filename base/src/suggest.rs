//! Suggests the known name that is nearest to a mistyped one.

/// Returns the candidate with the smallest edit distance to `name`. Returns `None` if that distance exceeds a third of
/// the candidate's length.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, candidate)| distance * 3 <= candidate.len().max(3))
        .map(|(_, candidate)| candidate)
}

/// Counts the insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Distances between prefixes: `last` holds the row of the present prefix of `a`, `before` the row before that.
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
    fn corrects_a_typo_and_rejects_an_unrelated_name() {
        let names = ["btl_sm_eager_limit", "btl_tcp_eager_limit", "peer_timeout"];
        assert_eq!(nearest("btl_sm_eagr_limit", names), Some("btl_sm_eager_limit"));
        assert_eq!(nearest("peer-timeout", names), Some("peer_timeout"));
        assert_eq!(nearest("tpc", ["self", "sm", "tcp"]), Some("tcp"));
        assert_eq!(nearest("colour", names), None);
    }
}
