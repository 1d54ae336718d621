use proptest::prelude::*;

use super::*;

type Request = (u64, u64, u64, RemoteHandle);

fn put(sender: u64, receiver: u64, len: u64, handle: &RemoteHandle) -> WholePut<'_> {
    WholePut { sender: Id(sender), receiver: Id(receiver), len, handle }
}

/// Generates handles that differ little, as those of one allocation do, and others.
fn handles() -> impl Strategy<Value = Vec<RemoteHandle>> {
    let bytes = prop_oneof![Just(RemoteHandle::MAX), 0..=RemoteHandle::MAX];
    (bytes, prop::collection::vec(prop::collection::vec((0..RemoteHandle::MAX, any::<u8>()), 0..4), 1..20)).prop_map(
        |(len, changes)| {
            let mut bytes = vec![7; len];
            let mut handles = Vec::new();
            for change in changes {
                for (at, byte) in change {
                    if let Some(place) = bytes.get_mut(at) {
                        *place = byte;
                    }
                }
                handles.push(RemoteHandle::new(&bytes).unwrap());
            }
            handles
        },
    )
}

fn read(bytes: &[u8]) -> Result<Vec<Request>, Malformed> {
    let Several::Puts(mut puts) = parse_batch(bytes)? else { panic!("another kind") };
    let mut found = Vec::new();
    while let Some(put) = puts.next_put() {
        let WholePut { sender, receiver, len, handle } = put?;
        found.push((sender.0, receiver.0, len, *handle));
    }
    Ok(found)
}

proptest! {
    #[test]
    fn requests_are_read_as_they_were_written(handles in handles(), ids in any::<(u64, u64, u64)>(),
                                              via in any::<(u32, u8)>()) {
        let via = (BtlTag(via.0), via.1);
        let mut puts = Puts::EMPTY;
        let (mut written, mut found) = (Vec::new(), Vec::new());
        for handle in handles {
            let entry = (ids.0, ids.1.wrapping_add(written.len() as u64), ids.2, handle);
            let add = |puts: &mut Puts| puts.add(&put(entry.0, entry.1, entry.2, &handle), via);
            if !add(&mut puts) {
                found.extend(read(puts.take().unwrap()).unwrap());
                prop_assert!(add(&mut puts), "any request fits an empty message");
            }
            written.push(entry);
        }
        let message = puts.take().unwrap();
        let Several::Puts(reader) = parse_batch(message).unwrap() else { panic!("another kind") };
        prop_assert_eq!(reader.via(), via);
        found.extend(read(message).unwrap());
        prop_assert_eq!(puts.take(), None);
        prop_assert_eq!(found, written);
    }

    #[test]
    fn a_cut_message_is_refused(handles in handles(), cut in any::<prop::sample::Index>()) {
        let mut puts = Puts::EMPTY;
        for handle in &handles {
            let _ = puts.add(&put(1, 2, 3, handle), (BtlTag(4), 5));
        }
        let bytes = puts.take().unwrap();
        prop_assert!(read(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(kind in 11u8..15, mut bytes in prop::collection::vec(any::<u8>(), 1..MIN_MESSAGE)) {
        bytes[0] = kind;
        if let Ok(Several::Puts(mut puts)) = parse_batch(&bytes) {
            let mut count = 0;
            while let Some(Ok(_)) = puts.next_put() {
                count += 1;
            }
            prop_assert!(count <= bytes.len() / size_of::<PutEntry>());
        }
    }
}

#[test]
fn lists_hold_what_fits() {
    let (mut stored, mut fins) = (List::PUT_FIN, List::FIN);
    let (mut count, mut ended) = (0, 0);
    while stored.add_put_fin(Id(count), 100 + count) {
        count += 1;
    }
    while fins.add_fin(Id(ended)) {
        ended += 1;
    }
    assert_eq!((count, ended), (31, 63));
    let Ok(Several::PutFins(found)) = parse_batch(stored.take().unwrap()) else { panic!("another kind") };
    assert!(found.iter().eq((0..count).map(|id| (Id(id), 100 + id))));
    let Ok(Several::Fins(found)) = parse_batch(fins.take().unwrap()) else { panic!("another kind") };
    assert!(found.iter().eq((0..ended).map(Id)));
}

#[test]
fn what_no_engine_sends_is_refused() {
    let mut stored = List::PUT_FIN;
    assert!(stored.add_put_fin(Id(1), 2));
    let good = stored.take().unwrap().to_vec();
    let longer = [&good[..], &[0]].concat();
    assert!(matches!(parse_batch(&longer), Err(Malformed::Payload { payload: 17, expected: 16, .. })));
    assert!(matches!(parse_batch(&good[..23]), Err(Malformed::Payload { payload: 15, expected: 16, .. })));
    assert!(matches!(parse_batch(&good[..7]), Err(Malformed::Short { .. })));
    let mut flagged = good.clone();
    flagged[1] = 1;
    assert!(matches!(parse_batch(&flagged), Err(Malformed::Flags { .. })));
    assert!(matches!(parse_batch(&[]), Err(Malformed::Short { .. })));
    let mut more = good.clone();
    more[offset_of!(ListHeader, zero)] = 1;
    assert!(matches!(parse_batch(&more), Err(Malformed::Reserved { .. })));

    let handle = RemoteHandle::new(&[1; 12]).unwrap();
    let mut puts = Puts::EMPTY;
    assert!(puts.add(&put(1, 2, 3, &handle), (BtlTag(4), 5)));
    assert!(puts.add(&put(1, 2, 3, &RemoteHandle::new(&[2; 12]).unwrap()), (BtlTag(4), 5)));
    assert!(!puts.add(&put(1, 2, 3, &handle), (BtlTag(9), 5)), "another link");
    assert!(!puts.add(&put(1, 2, 3, &RemoteHandle::new(&[1; 13]).unwrap()), (BtlTag(4), 5)), "another length");
    let good = puts.take().unwrap().to_vec();
    assert_eq!(read(&good).unwrap().len(), 2);
    assert!(read(&[&good[..], &[0]].concat()).is_err(), "more bytes than entries");
    // The last word of a handle of 12 bytes has four bytes.
    let mut beyond = good.clone();
    let last = beyond.len() - 1;
    beyond[last] = 1;
    assert_eq!(read(&beyond), Err(Malformed::Handle(12)));
    for at in [offset_of!(PutsHeader, zero), 16 + 12 + offset_of!(PutEntry, zero) + 3] {
        let mut more = good.clone();
        more[at] = 1;
        assert_eq!(read(&more), Err(Malformed::Reserved { kind: kind::PUTS }));
    }
    let differs = 16 + 12 + size_of::<PutEntry>() + offset_of!(PutEntry, differs);
    let mut nowhere = good;
    nowhere[differs] = 4;
    assert!(read(&nowhere).is_err(), "a word beyond the handle");
}
