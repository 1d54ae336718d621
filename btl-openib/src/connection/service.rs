//! The service thread makes connections and handles the device's asynchronous events. It sleeps while idle.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cableway_btl::{Error, Identity};
use cableway_common_cuda::Devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::command_queue::CommandQueue;
use super::connector::Connector;
use super::datagrams::Datagrams;
use super::listener::Listener;
use super::{datagram_connector, events, rdmacm};
use crate::card::Address;
use crate::port::Port;
use crate::settings::{ConnectionManager, Settings};
use crate::shared::Shared;
use crate::{NAME, invalid, networks};
use cableway_btl::process::Process;

/// The service thread. It ends when this is dropped.
pub(crate) struct Service {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Service {
    /// Opens the connection method and derives this process's address. The inner error says why the port cannot be
    /// used.
    ///
    /// # Errors
    /// The device or the system refuses, or a parameter cannot be honoured.
    pub(crate) fn start(
        port: Port,
        identity: Identity,
        settings: Settings,
        devices: &Devices,
    ) -> Result<Result<(Arc<Shared>, Self), String>, Error> {
        let failed = |what: &'static str| move |error| Error::system(NAME, what, error);
        let command_queue = CommandQueue::new().map_err(failed("cannot make an event descriptor"))?;
        let method = match Method::open(&port, &settings)? {
            Ok(method) => method,
            Err(reason) => return Ok(Err(reason)),
        };
        let ((datagrams, datagram_key), listener) = match &method {
            Method::Datagrams(datagrams) => (datagrams.address(), None),
            Method::Listener(listener) => ((0, 0), Some(listener.address())),
        };
        let address = Address {
            mtu: port.facts.mtu,
            kind: port.gid.kind,
            lid: port.facts.lid,
            reads: port.reads,
            queues: settings.queues.len() as u8,
            gid: port.gid.bytes,
            datagrams,
            datagram_key,
            max_message: u32::try_from(settings.max_send_size).unwrap_or(u32::MAX),
            process: Process::own(),
            listener,
            pkey: port.partition.key,
            network: listener
                .filter(|_| port.context.is_iwarp())
                .map_or_else(|| port.network.bits(), |listener| networks::bits_of(listener.ip())),
        };
        let shared = Shared::new(port, command_queue, address, identity, settings, devices);
        let connector: Box<dyn Connector> = match method {
            Method::Datagrams(datagrams) => Box::new(datagram_connector::DatagramConnector::new(&shared, datagrams)),
            Method::Listener(listener) => Box::new(rdmacm::RdmacmConnector::new(&shared, listener)),
        };
        let server = Server { connector, shared: Arc::clone(&shared) };
        let thread = cableway_base::without_signals(|| {
            std::thread::Builder::new().name("openib".to_owned()).spawn(move || server.serve())
        })
        .map_err(failed("cannot start a thread"))?;
        Ok(Ok((Arc::clone(&shared), Service { shared, thread: Some(thread) })))
    }
}

/// How peers connect to this process.
enum Method {
    Datagrams(Datagrams),
    Listener(Listener),
}

impl Method {
    fn open(port: &Port, settings: &Settings) -> Result<Result<Self, String>, Error> {
        let iwarp = port.context.is_iwarp();
        let refused = |reason: String| invalid("btl_openib_connection_manager", reason);
        match settings.connection_manager {
            ConnectionManager::Datagrams if iwarp => {
                Err(refused(format!("{} speaks iWARP, which has no datagrams", port.context.name)))
            }
            ConnectionManager::Rdmacm => Ok(Ok(Method::Listener(Listener::open(port, settings).map_err(refused)?))),
            ConnectionManager::Auto if iwarp => Ok(Listener::open(port, settings).map(Method::Listener)),
            ConnectionManager::Auto | ConnectionManager::Datagrams => Ok(Ok(Method::Datagrams(Datagrams::open(port)?))),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.shared.command_queue.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("{NAME}: the thread that makes connections had panicked");
        }
    }
}

struct Server {
    connector: Box<dyn Connector>,
    shared: Arc<Shared>,
}

impl Server {
    fn serve(mut self) {
        if let Err(error) = self.listen() {
            log::error!("{NAME}: the service thread stopped making connections: {error}");
            let reason = error.to_string();
            self.shared.notices.post(|notices| notices.device = Some(reason));
        }
    }

    fn listen(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let device = shared.port.context.event_descriptor()?;
        loop {
            self.connector.arm()?;
            self.connector.read()?;
            if shared.command_queue.stopped() {
                return Ok(());
            }
            // What was just read may have changed the timeouts.
            let now = Instant::now();
            let wakes = [self.connector.tick(now), self.connector.common_mut().send_heartbeats(now)];
            let wake = wakes.into_iter().flatten().min();
            let (ended, removed) = self.sleep(wake, device)?;
            shared.command_queue.clear_wakeup();
            self.connector.drain();
            // Handle what a peer sent before it ended.
            if ended.contains(&true) {
                self.connector.read()?;
                self.connector.hear_all();
                self.report_ended(&ended);
            }
            while let Some(event) = shared.port.context.next_event() {
                if events::hear(&shared, &event) {
                    self.connector.mend()?;
                }
            }
            // The events are drained; polling a removed device would spin forever.
            if removed {
                return Err(io::Error::other("the device was removed"));
            }
            for link in shared.command_queue.take_links() {
                self.connector.want(link);
            }
            if shared.command_queue.take_close() {
                self.connector.close();
            }
            self.connector.work()?;
        }
    }

    /// Sleeps until there is work, or until `wake`. Returns which watched peers have ended, and whether the device was
    /// removed.
    fn sleep(&self, wake: Option<Instant>, device: BorrowedFd<'_>) -> io::Result<(Vec<bool>, bool)> {
        let wait = match self.connector.is_idle() {
            true => wake.map(|wake| timespec(wake.saturating_duration_since(Instant::now()))),
            false => Some(Timespec::default()),
        };
        let fixed = [self.shared.command_queue.wakeup(), self.connector.descriptor(), device];
        let sources = fixed.into_iter().chain(self.connector.common().watched());
        let mut sources: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
        match poll(&mut sources, wait.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        let removed = sources[1..fixed.len()].iter().any(|source| source.revents().intersects(gone));
        Ok((sources[fixed.len()..].iter().map(|source| !source.revents().is_empty()).collect(), removed))
    }

    /// Reports the watched peers whose place holds true as ended.
    fn report_ended(&mut self, ended: &[bool]) {
        for link in self.connector.common_mut().take_ended(ended) {
            if !self.connector.peer_ended(&link) {
                self.shared.notices.post(|notices| notices.ended.push(link));
            }
        }
    }
}

fn timespec(duration: Duration) -> Timespec {
    // Round up: waking early would cost a useless round.
    let duration = duration + Duration::from_millis(1);
    Timespec { tv_sec: duration.as_secs() as _, tv_nsec: duration.subsec_nanos().into() }
}
