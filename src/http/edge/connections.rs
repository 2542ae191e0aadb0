//! The open connections: what each is doing, since when, and which must go.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::Limits;

/// How long to wait before accepting again when the system has no descriptors left.
const BREATHER: Duration = Duration::from_millis(50);

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// Nothing has come yet.
    New,
    /// Part of a request's head has come.
    Head,
    /// The head of a request is complete, its body is not.
    Body,
    /// The request is being answered; that may take as long as it takes.
    Handling,
    /// The answer is on its way.
    Sending,
    /// Between two requests.
    Idle,
}

impl Phase {
    pub fn of(value: u8) -> Self {
        match value {
            0 => Phase::New,
            1 => Phase::Head,
            2 => Phase::Body,
            3 => Phase::Handling,
            4 => Phase::Sending,
            _ => Phase::Idle,
        }
    }
}

#[derive(Debug)]
pub struct Connection {
    address: IpAddr,
    phase: AtomicU8,
    /// When the phase began, or when it last went on: milliseconds since the server started.
    since: AtomicU64,
    started: Instant,
    /// The client does not take what it was sent.
    pub blocked: AtomicBool,
    pub task: OnceLock<AbortHandle>,
}

impl Connection {
    pub fn phase(&self) -> Phase {
        // The body of an answer is done with before its last bytes have left.
        match Phase::of(self.phase.load(Ordering::Relaxed)) {
            Phase::Idle if self.blocked.load(Ordering::Relaxed) => Phase::Sending,
            phase => phase,
        }
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.goes_on();
    }

    pub fn goes_on(&self) {
        self.since
            .store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub fn age(&self) -> Duration {
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(since)
    }

    /// Whether the connection waits for a client that has asked for nothing.
    pub fn is_waiting(&self) -> bool {
        matches!(
            self.phase(),
            Phase::New | Phase::Head | Phase::Body | Phase::Idle
        )
    }

    pub fn cut(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// All open connections.
#[derive(Debug)]
pub struct Connections {
    pub limits: Limits,
    started: Instant,
    open: Mutex<Open>,
    /// When it was last said that there are too many, or that none can be accepted.
    complained: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
pub struct Open {
    next: u64,
    all: HashMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
    stopping: bool,
}

/// A connection's place among the open ones; given up when it is dropped.
pub struct Place {
    connections: Arc<Connections>,
    number: u64,
    pub connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().remove(self.number);
    }
}

impl Open {
    pub fn remove(&mut self, number: u64) {
        if let Some(connection) = self.all.remove(&number)
            && let Some(count) = self.by_address.get_mut(&connection.address)
        {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&connection.address);
            }
        }
    }

    /// Makes room by closing the connection that has been waiting the longest; `false` when all are
    /// at work.
    pub fn make_room(&mut self, from: Option<IpAddr>) -> bool {
        let waiting = |connection: &Connection| {
            connection.is_waiting() && from.is_none_or(|address| connection.address == address)
        };
        let longest = self
            .all
            .iter()
            .filter(|(_, connection)| waiting(connection))
            .max_by_key(|(_, connection)| connection.age())
            .map(|(number, _)| *number);
        let Some(number) = longest else { return false };
        if let Some(connection) = self.all.get(&number) {
            connection.cut();
        }
        self.remove(number);
        true
    }
}

impl Connections {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            started: Instant::now(),
            open: Mutex::default(),
            complained: Mutex::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Open> {
        self.open
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes a new connection in; `None` when there is no room even for one that will be used.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let mut open = self.lock();
        let from_here = open.by_address.get(&address).copied().unwrap_or(0);
        let has_room = (from_here < self.limits.connections_per_address
            || open.make_room(Some(address)))
            && (open.all.len() < self.limits.connections || open.make_room(None));
        if !has_room {
            drop(open);
            self.complain(format_args!(
                "connections are refused: {address} or all together have too many at work"
            ));
            return None;
        }
        let number = open.next;
        open.next += 1;
        let connection = Arc::new(Connection {
            address,
            phase: AtomicU8::new(Phase::New as u8),
            since: AtomicU64::new(self.started.elapsed().as_millis() as u64),
            started: self.started,
            blocked: AtomicBool::new(false),
            task: OnceLock::new(),
        });
        open.all.insert(number, connection.clone());
        *open.by_address.entry(address).or_insert(0) += 1;
        Some(Place {
            connections: self.clone(),
            number,
            connection,
        })
    }

    /// Out of descriptors, mostly: frees one, waits a moment, and goes on.
    pub async fn cannot_accept(&self, err: &io::Error) {
        self.complain(format_args!(
            "cannot accept connections: {err} (raise the limit of open files, `ulimit -n`, if this goes on)"
        ));
        self.lock().make_room(None);
        tokio::time::sleep(BREATHER).await;
    }

    /// Says something, but not over and over.
    pub fn complain(&self, what: std::fmt::Arguments<'_>) {
        let mut last = self
            .complained
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.is_none_or(|last| last.elapsed() > Duration::from_secs(60)) {
            tracing::warn!("{what}");
            *last = Some(Instant::now());
        }
    }

    pub fn cut_expired(&self) {
        let open = self.lock();
        for connection in open.all.values() {
            if is_expired(
                connection.phase(),
                connection.age(),
                &self.limits,
                open.stopping,
            ) {
                connection.cut();
            }
        }
    }

    /// From now on, whoever has not sent a whole request has a moment to do so, and no more.
    pub fn stop_waiting_for_requests(&self) {
        self.lock().stopping = true;
    }

    pub fn cut_all(&self) -> usize {
        let open = self.lock();
        open.all.values().for_each(|connection| connection.cut());
        open.all.len()
    }
}

/// Whether a connection has been in a phase for too long.
pub fn is_expired(phase: Phase, age: Duration, limits: &Limits, stopping: bool) -> bool {
    const LAST_CALL: Duration = Duration::from_secs(1);
    let limit = match phase {
        Phase::New => limits.first_byte,
        Phase::Head => limits.headers,
        Phase::Idle => limits.idle,
        Phase::Sending => return age >= limits.stalled,
        // The handler waits for a body, and knows for how long.
        Phase::Body | Phase::Handling => return false,
    };
    age >= if stopping {
        limit.min(LAST_CALL)
    } else {
        limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(
        connections: &Arc<Connections>,
        address: [u8; 4],
        phase: Phase,
        age: u64,
    ) -> Option<Place> {
        let place = connections.enter(address.into())?;
        place.connection.enter(phase);
        let now = place.connection.since.load(Ordering::Relaxed);
        place
            .connection
            .since
            .store(now.saturating_sub(age), Ordering::Relaxed);
        Some(place)
    }

    fn connections(all: usize, per_address: usize) -> Arc<Connections> {
        let limits = Limits {
            connections: all,
            connections_per_address: per_address,
            ..Limits::default()
        };
        let mut connections = Connections::new(limits);
        // As if the server had been running for a while, so that there are ages to speak of.
        connections.started -= Duration::from_secs(1_000);
        Arc::new(connections)
    }

    fn open(connections: &Connections) -> Vec<u64> {
        let mut numbers: Vec<_> = connections.lock().all.keys().copied().collect();
        numbers.sort();
        numbers
    }

    #[test]
    fn whoever_has_been_idle_the_longest_makes_room() {
        let connections = connections(4, 3);
        let one = [192, 0, 2, 1];
        let places = [
            place(&connections, one, Phase::Idle, 1_000),
            place(&connections, one, Phase::New, 9_000),
            place(&connections, one, Phase::Handling, 99_000),
        ];
        // One too many from this address: the one that has waited longest goes.
        let fourth = place(&connections, one, Phase::Handling, 0);
        assert_eq!(open(&connections), [0, 2, 3]);
        let fifth = place(&connections, [192, 0, 2, 2], Phase::Handling, 0);
        assert_eq!(open(&connections), [0, 2, 3, 4]);
        // One too many in all.
        let sixth = place(&connections, [192, 0, 2, 2], Phase::Handling, 0);
        assert_eq!(open(&connections), [2, 3, 4, 5]);
        // All at work: no room.
        assert!(place(&connections, [192, 0, 2, 3], Phase::New, 0).is_none());
        drop((places, fourth, fifth, sixth));
        assert!(open(&connections).is_empty());
        assert!(connections.lock().by_address.is_empty());
    }

    #[test]
    fn each_phase_has_its_time() {
        let limits = Limits::default();
        let secs = Duration::from_secs;
        let expired = |phase, age| is_expired(phase, age, &limits, false);
        assert!(!expired(Phase::New, secs(14)) && expired(Phase::New, secs(15)));
        assert!(!expired(Phase::Head, secs(14)) && expired(Phase::Head, secs(15)));
        assert!(!expired(Phase::Idle, secs(74)) && expired(Phase::Idle, secs(75)));
        assert!(!expired(Phase::Sending, secs(29)) && expired(Phase::Sending, secs(30)));
        assert!(!expired(Phase::Handling, secs(9_999)));
        // Whoever is told to stop does not wait for requests that may never come.
        assert!(is_expired(Phase::Idle, secs(1), &limits, true));
        assert!(!is_expired(Phase::Handling, secs(60), &limits, true));
    }
}
