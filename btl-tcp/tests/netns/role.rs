//! The roles of a process of the job.

use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use cableway_btl::{Access, Endpoint, Remote, RemoteHandle, Sent};

#[path = "../common/mod.rs"]
mod common;

use common::{Node, node, pattern, region, try_send};

/// The role. If it is set, this program is a process of the job and no test.
pub(crate) const VARIABLE: &str = "CABLEWAY_TEST_ROLE";
/// Parameters, separated by semicolons.
pub(crate) const SETTINGS: &str = "CABLEWAY_TEST_SETTINGS";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) fn play(role: &str) -> ExitCode {
    match run(role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("error {error}"));
            ExitCode::FAILURE
        }
    }
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

fn run(role: &str) -> Result<()> {
    let mut words = role.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let rank: u32 = word().parse()?;
    let settings = std::env::var(SETTINGS).unwrap_or_default();
    let settings: Vec<&str> = settings.split(';').filter(|setting| !setting.is_empty()).collect();
    let node = node(rank, 2, &settings);
    say(&format!("card {}", hex(&node.btl.card())));
    let mut card = String::new();
    std::io::stdin().lock().read_line(&mut card)?;
    let mut links = node.btl.connect(1 - rank, &unhex(card.trim())?)?;
    match word() {
        "exchange" => {
            let expected: usize = word().parse()?;
            if links.len() != expected {
                return Err(format!("{} links instead of {expected}", links.len()).into());
            }
            exchange(&node, &mut links, word().parse::<usize>()? << 20)?;
            say("ok");
            while !node.btl.finalize() {
                node.progress();
            }
            Ok(())
        }
        "send" => endure(&node, &mut *links[0], true),
        _ => endure(&node, &mut *links[0], false),
    }
}

/// Progresses until `done` returns true or the peer fails.
fn until(node: &Node, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !done()? {
        if node.progress() == 0 {
            std::thread::yield_now();
        }
        if let Some((_, error)) = node.seen.failed.lock().first() {
            return Err(error.to_string().into());
        }
        if start.elapsed() > Duration::from_secs(110) {
            return Err("it takes too long".into());
        }
    }
    Ok(())
}

fn send(node: &Node, link: &mut dyn Endpoint, header: &[u8], payload: &[u8]) -> Result<()> {
    until(node, || Ok(try_send(link, header, payload)?))
}

/// Sends messages of many sizes over every link, then a put of `bytes` divided among the links, in both directions at
/// once.
fn exchange(node: &Node, links: &mut [Box<dyn Endpoint>], bytes: usize) -> Result<()> {
    let (mine, theirs) = (u64::from(node.rank), u64::from(1 - node.rank));
    let sizes = [1, 100, 5_000, 60_000];
    let mut target = vec![0; bytes];
    let share = bytes / links.len();
    // SAFETY: the target outlives the registration and is only read after the peer's puts.
    let registration =
        unsafe { links[0].register(region(&mut target), Access::RemoteWrite) }?.ok_or("no registration")?;
    send(node, &mut *links[0], registration.handle().as_bytes(), b"")?;
    for link in links.iter_mut() {
        for size in sizes {
            send(node, &mut **link, &[], &pattern(size, mine))?;
        }
    }
    let expected = 1 + links.len() * sizes.len();
    until(node, || Ok(node.received() >= expected))?;
    let handle = {
        let messages = node.seen.messages.lock();
        for size in sizes {
            let found = messages.iter().filter(|(_, message)| *message == pattern(size, theirs)).count();
            if found != links.len() {
                return Err(format!("{found} right messages of {size} bytes").into());
            }
        }
        let handle = messages.iter().find(|(_, message)| message.len() == 16).ok_or("no handle")?;
        RemoteHandle::new(&handle.1).ok_or("a long handle")?
    };
    let mut source = pattern(bytes, mine);
    let mut awaited = Vec::new();
    for (index, link) in links.iter_mut().enumerate() {
        let part = region(&mut source[index * share..(index + 1) * share]);
        let token = cableway_btl::Token(index as u64);
        until(node, || {
            // SAFETY: the source outlives the put and is not written.
            match unsafe { link.put(&part.into(), &Remote::at(&handle, (index * share) as u64), token) }? {
                cableway_btl::Transfer::Busy => return Ok(false),
                cableway_btl::Transfer::Started => awaited.push(token.0),
                cableway_btl::Transfer::Done => {}
            }
            Ok(true)
        })?;
    }
    until(node, || Ok(awaited.iter().all(|&token| node.completed(token))))?;
    let last = links.len() - 1;
    send(node, &mut *links[last], b"stored", b"")?;
    until(node, || Ok(node.received() == expected + 1))?;
    drop(registration);
    if target[..links.len() * share] != pattern(bytes, theirs)[..links.len() * share] {
        return Err("the put's data is wrong".into());
    }
    Ok(())
}

/// Sends, or only waits, until the peer fails.
fn endure(node: &Node, link: &mut dyn Endpoint, sending: bool) -> Result<()> {
    let message = vec![1; 60_000];
    while link.send_inline(b"hello", b"")? == Sent::Busy {
        node.progress();
    }
    while node.received() == 0 {
        node.progress();
    }
    say("connected");
    loop {
        if sending && try_send(link, &[], &message).is_err() {
            // Only the reported failure counts.
        }
        if node.progress() == 0 {
            std::thread::yield_now();
        }
        node.seen.messages.lock().clear();
        if let Some((_, error)) = node.seen.failed.lock().first() {
            say(&format!("failed {error}"));
            return Ok(());
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    (0..text.len() / 2).map(|at| Ok(u8::from_str_radix(text.get(2 * at..2 * at + 2).ok_or("no card")?, 16)?)).collect()
}
