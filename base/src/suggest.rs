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

fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_a_typo_and_refuses_a_stranger() {
        let names = ["btl_sm_eager_limit", "btl_tcp_eager_limit", "peer_timeout"];
        assert_eq!(nearest("btl_sm_eagr_limit", names), Some("btl_sm_eager_limit"));
        assert_eq!(nearest("peer-timeout", names), Some("peer_timeout"));
        assert_eq!(nearest("colour", names), None);
    }
}
