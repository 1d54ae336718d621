//! Tests between hosts: processes in network namespaces that are connected by veth pairs. The pairs lose packets, are
//! slow, or go down. This needs root. It skips, with the reason, everything that the machine refuses. It changes only
//! namespaces made here, and addresses in them.

mod process;
mod role;
mod world;

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use process::Process;
use world::World;

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(role::VARIABLE) {
        return role::play(&role);
    }
    let arguments = Arguments::from_args();
    let missing = world::missing();
    if let Some(reason) = &missing {
        eprintln!("skipped: {reason}");
    }
    let trial =
        |name: &str, test: fn() -> Result<(), Failed>| Trial::test(name, test).with_ignored_flag(missing.is_some());
    let trials = vec![
        trial("two_hosts_exchange_everything", two_hosts),
        trial("two_hosts_connect_over_link_local_ipv6", link_local),
        trial("two_interfaces_make_two_links", two_interfaces),
        trial("an_interface_can_be_chosen", chosen_interface),
        trial("lost_packets_lose_no_messages", loss),
        trial("a_slow_network_loses_no_messages", low_rate),
        trial("a_peer_killed_in_mid_message_is_detected", killed),
        trial("a_vanished_host_is_detected_while_sending", || vanished("send")),
        trial("a_vanished_host_is_detected_while_idle", || vanished("wait")),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs the whole exchange between both hosts of `world` and expects `links` links.
fn exchange(world: &World, links: usize, megabytes: usize, settings: &[&str]) -> Result<(), Failed> {
    let role = format!("exchange {links} {megabytes}");
    let mut pair = Process::pair(world, [&role, &role], settings)?;
    for process in &mut pair {
        process.expect("ok", Duration::from_secs(120))?;
    }
    Ok(())
}

fn two_hosts() -> Result<(), Failed> {
    exchange(&World::new(1)?, 1, 64, &[])
}

fn link_local() -> Result<(), Failed> {
    exchange(&World::new(1)?, 1, 8, &["btl_tcp_if_include=fe80::/10"])
}

fn two_interfaces() -> Result<(), Failed> {
    let world = World::new(2)?;
    exchange(&world, 2, 64, &[])?;
    exchange(&world, 6, 16, &["btl_tcp_links=3"])
}

fn chosen_interface() -> Result<(), Failed> {
    let world = World::new(2)?;
    exchange(&world, 1, 8, &["btl_tcp_if_exclude=cw00,cw10"])?;
    exchange(&world, 1, 8, &["btl_tcp_if_include=10.99.1.0/24"])?;
    // An unreachable address is abandoned for a reachable one.
    world.block(0)?;
    exchange(&world, 2, 8, &["peer_timeout=4s"])
}

fn loss() -> Result<(), Failed> {
    let world = World::new(1)?;
    world.lose(3)?;
    exchange(&world, 1, 2, &[])
}

fn low_rate() -> Result<(), Failed> {
    let world = World::new(1)?;
    world.slow_down("50mbit")?;
    exchange(&world, 1, 4, &["peer_timeout=3s"])
}

fn killed() -> Result<(), Failed> {
    let world = World::new(1)?;
    let [mut survivor, mut victim] = Process::pair(&world, ["send", "wait"], &[])?;
    victim.expect("connected", Duration::from_secs(30))?;
    victim.kill();
    let noticed = survivor.expect_failure(Duration::from_secs(30))?;
    if noticed > Duration::from_secs(2) {
        return Err(format!("noticed only after {noticed:?}").into());
    }
    Ok(())
}

/// The peer's end of the veth goes down. Only silence shows it.
fn vanished(survivor: &str) -> Result<(), Failed> {
    let world = World::new(1)?;
    let [mut survivor, mut victim] = Process::pair(&world, [survivor, "wait"], &["peer_timeout=4s"])?;
    victim.expect("connected", Duration::from_secs(30))?;
    survivor.expect("connected", Duration::from_secs(30))?;
    world.unplug(1)?;
    let noticed = survivor.expect_failure(Duration::from_secs(30))?;
    // The kernel counts in seconds, and this machine may be busy. The limit is well below the kernel's own minutes.
    if noticed > Duration::from_secs(8) {
        return Err(format!("noticed only after {noticed:?}").into());
    }
    Ok(())
}
