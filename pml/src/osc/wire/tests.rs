use super::*;

fn asks() -> Vec<(Ask, Vec<Block>)> {
    let wishes = [
        Wish::Put,
        Wish::Get,
        Wish::CompareSwap,
        Wish::Accumulate { combine: Combine::Replace, fetch: false },
        Wish::Accumulate { combine: Combine::Keep, fetch: true },
        Wish::Accumulate { combine: Combine::Reduce { operation: 3, element: u32::MAX }, fetch: true },
    ];
    let block = |offset| Block { offset, len: 4 };
    let reaches = [
        (Reach::Run { offset: -8, len: 5 }, vec![]),
        (Reach::Elements { blocks: 2, count: 7, extent: -24 }, vec![block(0), block(-12)]),
        (Reach::Elements { blocks: 500, count: 7, extent: 0 }, vec![]),
    ];
    let ask = |wish, reach| Ask { number: 0x0102_0304_0506_0708, displacement: -3, wish, reach };
    wishes.into_iter().flat_map(|wish| reaches.clone().map(|(reach, blocks)| (ask(wish, reach), blocks))).collect()
}

#[test]
fn headers_survive_the_wire() {
    for (ask, blocks) in asks() {
        assert_eq!(Ask::parse(&ask.to_bytes(&blocks)).unwrap(), (ask, blocks));
    }
    for result in [Ok(()), Err(Refusal::OutOfRange), Err(Refusal::Other(77))] {
        let answer = Answer { number: 9, result };
        assert_eq!(Answer::parse(&answer.to_bytes()).unwrap(), answer);
    }
    for notice in Notice::ALL {
        assert_eq!(Notice::parse(&notice.to_bytes()).unwrap(), notice);
    }
}

#[test]
fn malformed_bytes_are_errors() {
    for (ask, blocks) in asks() {
        let good = ask.to_bytes(&blocks);
        for len in 0..ASK_LEN {
            assert!(Ask::parse(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(Ask::parse(&[&good[..], &[0; 3]].concat()).is_err(), "a part of a block");
        for (at, value) in [(16, 0), (16, 6), (17, 4), (18, 1), (19, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Ask::parse(&bad).is_err(), "byte {at} is {value} in {ask:?}");
        }
    }
    let run = Ask { number: 1, displacement: 0, wish: Wish::Put, reach: Reach::Run { offset: 0, len: 1 } };
    let mut with_extent = run.to_bytes(&[]);
    with_extent[48] = 1;
    assert!(Ask::parse(&with_extent).is_err());
    let mut too_many = run.to_bytes(&[]);
    too_many[28..32].copy_from_slice(&(MOST_BLOCKS as u32 + 1).to_le_bytes());
    assert!(Ask::parse(&too_many).is_err());
    assert!(Answer::parse(&[0; ANSWER_LEN - 1]).is_err() && Answer::parse(&[1; ANSWER_LEN]).is_err());
    for bad in [0_u32, 8, u32::MAX] {
        assert!(Notice::parse(&bad.to_le_bytes()).is_err());
    }
}

/// Every byte of every header, changed in every bit, parses to an error or to what it says.
#[test]
fn changed_bytes_are_read_as_they_are() {
    for (ask, blocks) in asks() {
        let good = ask.to_bytes(&blocks);
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut changed = good.clone();
                changed[at] ^= 1 << bit;
                recode(&changed);
            }
        }
    }
}
