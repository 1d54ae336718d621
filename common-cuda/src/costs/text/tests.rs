use super::*;

fn key() -> Key {
    Key {
        driver: "13.0 580.159.04".to_owned(),
        uuid: [0x4a; 16],
        device: "0000:1B:00.0 NVIDIA H200".to_owned(),
        peers: vec![([1; 16], "nvlink 0".to_owned()), ([2; 16], "pcie 1".to_owned())],
    }
}

fn cost(latency: u64, rate: f64) -> Known<CopyCost> {
    Known::Is(CopyCost { latency: Duration::from_nanos(latency), bytes_per_second: rate })
}

fn content() -> Content {
    let costs = DeviceCosts {
        to_host: cost(7400, 55.3e9),
        from_host: cost(5700, 55.2e9),
        within: Known::Nothing,
        call: Known::Is(Duration::from_nanos(1500)),
        rows_per_second: Known::Is(777e6),
        several: Known::Refused,
        kernel: cost(9100, 300e9),
        peers: vec![
            PeerCosts { device: [1; 16], push: cost(6700, 378e9), pull: Known::Nothing },
            PeerCosts { device: [2; 16], push: Known::Refused, pull: cost(8000, 20.5e9) },
        ],
    };
    Content { measured: measured(UNIX_EPOCH + Duration::from_secs(1_795_360_833), Duration::from_micros(6240)), costs }
}

#[test]
fn written_costs_are_read_back() {
    let text = write(&key(), &content());
    let kept = Content { costs: content().costs.figures(), ..content() };
    assert_eq!(read(&text, &key()).unwrap(), kept);
    assert!(!text.contains("refused"), "{text}");
    let refused = text.replace("end\n", "several refused\nend\n");
    assert_eq!(read(&refused, &key()).unwrap(), kept, "as files had it once");
    for line in ["device 4a4a", "measured 2026-11-22T15:20:33Z in 6.2 ms\n", "to_host 7.400 us 55.300 GB/s\n"] {
        assert!(text.contains(line), "{line} in {text}");
    }
}

#[test]
fn costs_of_another_device_are_outdated() {
    let text = write(&key(), &content());
    for other in [
        Key { driver: "13.1 590.1".to_owned(), ..key() },
        Key { uuid: [3; 16], ..key() },
        Key { device: "0000:2B:00.0 NVIDIA H200".to_owned(), ..key() },
    ] {
        assert!(matches!(read(&text, &other), Err(UnusableFile::Outdated(_))), "{other:?}");
    }
    assert!(matches!(read(&text.replace("format 1", "format 2"), &key()), Err(UnusableFile::Outdated(_))));
}

/// A peer with another link, or an invisible one, invalidates only its own figures.
#[test]
fn only_unchanged_peers_keep_their_costs() {
    let text = write(&key(), &content());
    let other = Key { peers: vec![([1; 16], "pcie 0".to_owned()), key().peers[1].clone()], ..key() };
    let read = read(&text, &other).unwrap().costs;
    assert_eq!(read.peers, content().costs.figures().peers[1..]);
    assert_eq!(read.to_host, content().costs.to_host);
}

#[test]
fn malformed_files_are_refused() {
    let text = write(&key(), &content());
    let spoilt = [
        String::new(),
        "\0\0\0".to_owned(),
        text.replace("end\n", ""),
        format!("{text}to_host 1.000 us 1.000 GB/s\n"),
        text.replace("7.400 us", "-7.400 us"),
        text.replace("7.400 us", "7.400 ms"),
        text.replace("7.400 us", "9999999999 us"),
        text.replace("55.300 GB/s", "0.000 GB/s"),
        text.replace("55.300 GB/s", "inf GB/s"),
        text.replace("55.300 GB/s", "NaN GB/s"),
        text.replace("55.300 GB/s", "1e30 GB/s"),
        text.replace("to_host ", "to_moon "),
        text.replace("measured ", ""),
        text.replace(&digits(&[2; 16]), &digits(&[1; 16])).replace("pcie 1", "nvlink 0"),
    ];
    for text in spoilt {
        assert!(matches!(read(&text, &key()), Err(UnusableFile::Malformed(_))), "{text}");
    }
    // A truncated file is ignored as a whole.
    for len in 0..text.len() - 1 {
        assert!(read(&text[..len], &key()).is_err(), "the first {len} bytes");
    }
}

#[test]
fn dates_match_the_calendar() {
    for (days, expected) in [
        (0, (1970, 1, 1)),
        (58, (1970, 2, 28)),
        (59, (1970, 3, 1)),
        (364, (1970, 12, 31)),
        (365, (1971, 1, 1)),
        (11_016, (2000, 2, 29)),
        (20_779, (2026, 11, 22)),
    ] {
        assert_eq!(date(days), expected, "{days}");
    }
}
