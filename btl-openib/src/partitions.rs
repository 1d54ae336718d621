//! Chooses the InfiniBand partition of a port. A port has a table of partition keys (P_Keys) and drops packets of other
//! partitions. Full members of a partition reach all members; limited members reach full members only.

/// Set in the keys of full members. The other bits are the partition.
const FULL: u16 = 1 << 15;

/// An entry of a port's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    pub(crate) index: u16,
    /// 0 if unknown, or if the network has no partitions.
    pub(crate) key: u16,
}

/// Finds the entry of partition `wanted`, whose highest bit is ignored. Prefers entries of full members, and of equal
/// ones the first.
pub(crate) fn choose(table: &[u16], wanted: u16) -> Option<Partition> {
    let places = table.iter().zip(0..).filter(|(key, _)| (**key ^ wanted) & !FULL == 0);
    places.min_by_key(|(key, index)| (**key & FULL == 0, *index)).map(|(key, index)| Partition { index, key: *key })
}

/// Returns whether two ports can reach each other, as far as their keys show.
pub(crate) fn meet(own: u16, peer: u16) -> bool {
    own == 0 || peer == 0 || ((own ^ peer) & !FULL == 0 && (own | peer) & FULL != 0)
}

/// Formats a table for users.
pub(crate) fn describe(table: &[u16]) -> String {
    let keys = table.iter().filter(|key| **key & !FULL != 0);
    let entry = |key: &u16| format!("0x{key:04x}{}", if key & FULL == 0 { " (a limited member)" } else { "" });
    match keys.map(entry).collect::<Vec<_>>() {
        entries if entries.is_empty() => "nothing".to_owned(),
        entries => entries.join(", "),
    }
}

/// Parses a key. `None` means any partition, which Open MPI writes as 0.
///
/// # Errors
/// The text is not a key.
pub(crate) fn parse(text: &str) -> Result<Option<u16>, String> {
    let text = text.trim();
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let key = match hexadecimal {
        _ if text.is_empty() => Ok(0),
        Some(digits) => u16::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match key {
        Ok(FULL) => Err(format!("'{text}' names the partition 0, which no network has")),
        Ok(key) => Ok(Some(key).filter(|key| *key != 0)),
        Err(_) => Err(format!("'{text}' is no key of 16 bits, such as 0x8001")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_partition_is_found_by_its_key() {
        let table = [0xffff, 0x0001, 0, 0x8001, 0x8001, 0x0005];
        let chosen = |wanted| choose(&table, wanted).map(|partition| (partition.index, partition.key));
        assert_eq!((chosen(0x8001), chosen(0x0001)), (Some((3, 0x8001)), Some((3, 0x8001))));
        assert_eq!((chosen(0x7fff), chosen(0x8005)), (Some((0, 0xffff)), Some((5, 0x0005))));
        assert_eq!(chosen(0x8002), None);
        assert_eq!(describe(&table[..4]), "0xffff, 0x0001 (a limited member), 0x8001");
        assert_eq!(describe(&[0, 0]), "nothing");
    }

    #[test]
    fn keys_are_read_as_they_are_written() {
        assert_eq!((parse(""), parse(" 0 "), parse("0x0")), (Ok(None), Ok(None), Ok(None)));
        assert_eq!(
            (parse("0x8001"), parse("0XFFFF"), parse("32769")),
            (Ok(Some(0x8001)), Ok(Some(0xffff)), Ok(Some(0x8001)))
        );
        for wrong in ["0x8000", "65536", "-1", "0x", "key", "8001h"] {
            assert!(parse(wrong).unwrap_err().contains(wrong));
        }
    }

    proptest! {
        #[test]
        fn both_ends_agree_on_reachability(a in any::<u16>(), b in any::<u16>()) {
            prop_assert_eq!(meet(a, b), meet(b, a));
            prop_assert!(meet(a | FULL, a) && meet(a, 0));
            prop_assert_eq!(meet(a & !FULL, a & !FULL), a & !FULL == 0);
            prop_assert!((a ^ b) & !FULL == 0 || a == 0 || b == 0 || !meet(a, b));
        }
    }
}
