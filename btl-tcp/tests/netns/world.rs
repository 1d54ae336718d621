//! Two hosts made of network namespaces.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Two namespaces with common networks. Dropping it deletes them.
pub(crate) struct World {
    pub(crate) hosts: [String; 2],
    links: usize,
}

/// Returns the reason why this machine cannot run these tests, if any.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    match World::new(1) {
        Ok(world) => world.lose(0).and_then(|()| world.slow_down("1gbit")).err(),
        Err(reason) => Some(reason),
    }
}

fn run(program: &str, arguments: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`{program} {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

impl World {
    /// Makes two hosts with this many common networks. Interface `n` of host `h` is `cwHn` with address `10.99.n.h+1`.
    pub(crate) fn new(links: usize) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let world = World { hosts: [0, 1].map(|host| format!("cableway-{id}-{host}")), links };
        let [first, second] = &world.hosts;
        for host in &world.hosts {
            run("ip", &format!("netns add {host}"))?;
            run("ip", &format!("-n {host} link set lo up"))?;
        }
        for link in 0..links {
            run("ip", &format!("-n {first} link add cw0{link} type veth peer name cw1{link} netns {second}"))?;
            for (index, host) in world.hosts.iter().enumerate() {
                let device = format!("cw{index}{link}");
                run("ip", &format!("-n {host} address add 10.99.{link}.{}/24 dev {device}", index + 1))?;
                // IPv6 may be off. Tests that need it detect that.
                let _ = run("ip", &format!("-n {host} address add fe80::{link}:{}/64 dev {device} nodad", index + 1));
                run("ip", &format!("-n {host} link set {device} up"))?;
            }
        }
        world.await_carriers()?;
        Ok(world)
    }

    /// The kernel needs a moment until both ends of a veth pair are up.
    fn await_carriers(&self) -> Result<(), String> {
        let start = Instant::now();
        for (index, host) in self.hosts.iter().enumerate() {
            for link in 0..self.links {
                let state = || {
                    let path = format!("/sys/class/net/cw{index}{link}/operstate");
                    Command::new("ip").args(["netns", "exec", host, "cat", &path]).output().map(|output| output.stdout)
                };
                while state().map_err(|error| error.to_string())?.trim_ascii() != b"up" {
                    if start.elapsed() > Duration::from_secs(20) {
                        return Err(format!("interface cw{index}{link} of {host} does not come up"));
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        Ok(())
    }

    /// Drops this percentage of arriving packets at both hosts.
    pub(crate) fn lose(&self, percent: u32) -> Result<(), String> {
        self.filter(&format!("numgen random mod 100 < {percent} drop"))
    }

    /// Drops all packets that arrive over one link.
    pub(crate) fn block(&self, link: usize) -> Result<(), String> {
        self.filter(&format!("ip saddr 10.99.{link}.0/24 drop"))
    }

    fn filter(&self, rule: &str) -> Result<(), String> {
        for host in &self.hosts {
            let nft = |command: &str| run("ip", &format!("netns exec {host} nft {command}"));
            nft("add table inet cableway")?;
            nft("add chain inet cableway arrivals { type filter hook input priority 0 ; }")?;
            nft(&format!("add rule inet cableway arrivals {rule}"))?;
        }
        Ok(())
    }

    /// Limits the rate at which each host sends.
    pub(crate) fn slow_down(&self, rate: &str) -> Result<(), String> {
        for (index, host) in self.hosts.iter().enumerate() {
            for link in 0..self.links {
                run(
                    "tc",
                    &format!("-n {host} qdisc add dev cw{index}{link} root tbf rate {rate} burst 32kbit latency 200ms"),
                )?;
            }
        }
        Ok(())
    }

    /// Disconnects a host from the network.
    pub(crate) fn unplug(&self, host: usize) -> Result<(), String> {
        (0..self.links).try_for_each(|link| run("ip", &format!("-n {} link set cw{host}{link} down", self.hosts[host])))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for host in &self.hosts {
            let _ = run("ip", &format!("netns delete {host}"));
        }
    }
}
