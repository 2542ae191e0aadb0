//! The edge: connections, from being accepted to being closed.
//!
//! warp answers requests; it does not keep a client from holding a connection for ever. So the
//! accept loop is ours. Every connection notes what it is doing and since when, in two atomics, and
//! one task looks at all of them now and then and cuts those that have used up their time. A request
//! thus pays for a few stores and no timer. When there are too many connections, the one that has
//! been idle the longest makes room: those who only hold connections lose them, not those who use
//! theirs.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use warp::Filter;
use warp::http::{Request, Uri};
use warp::reply::Response;

/// What clients may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// From the connection to its first byte.
    pub first_byte: Duration,
    /// From a request's first byte to the end of its headers.
    pub headers: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// For a request's whole body.
    pub body: Duration,
    /// For a client to take the next piece of an answer.
    pub stalled: Duration,
    /// Requests at work at once; more are refused.
    pub requests: usize,
    /// For requests in flight, once the server was told to stop.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4_096,
            connections_per_address: 2_048,
            first_byte: Duration::from_secs(15),
            headers: Duration::from_secs(15),
            idle: Duration::from_secs(75),
            body: Duration::from_secs(30),
            stalled: Duration::from_secs(30),
            requests: 512,
            drain: Duration::from_secs(10),
        }
    }
}

/// How often connections are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The longest header section, in bytes.
const HEADERS_MAX: usize = 64 * 1024;

/// How long to wait before accepting again when the system has no descriptors left.
const BREATHER: Duration = Duration::from_millis(50);

/// Serves connections until `stop` resolves; then answers what is in flight, for as long as the
/// limits allow.
pub async fn serve<F>(
    listener: TcpListener,
    filter: F,
    limits: Limits,
    stop: impl Future<Output = ()>,
) where
    F: Filter<Extract = (Response,), Error = std::convert::Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    F::Future: Send,
{
    let connections = Arc::new(Connections::new(limits));
    let reaper = tokio::spawn(reap(connections.clone()));
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                if let Some(place) = connections.enter(peer.ip()) {
                    attend(stream, filter.clone(), place, &graceful);
                }
            }
            Err(err) => connections.cannot_accept(&err).await,
        }
    }
    drop(listener);
    connections.stop_waiting_for_requests();
    let drained = tokio::time::timeout(connections.limits.drain, graceful.shutdown()).await;
    reaper.abort();
    if drained.is_err() {
        let left = connections.cut_all();
        tracing::warn!(
            "{left} connections were not done within {:?} and are cut",
            connections.limits.drain
        );
    }
}

/// Serves one connection in a task of its own.
fn attend<F>(stream: TcpStream, filter: F, place: Place, graceful: &GracefulShutdown)
where
    F: Filter<Extract = (Response,), Error = std::convert::Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    F::Future: Send,
{
    // Answers are written whole; waiting for more to send would only delay them.
    let _ = stream.set_nodelay(true);
    let connection = place.connection.clone();
    let noted = Noted {
        inner: stream,
        connection: connection.clone(),
    };
    let service = Attended {
        inner: TowerToHyperService::new(warp::service(filter)),
        connection: connection.clone(),
    };
    let mut http = hyper::server::conn::http1::Builder::new();
    http.header_read_timeout(None)
        .max_header_size(HEADERS_MAX)
        .half_close(false);
    let serving = graceful
        .watcher()
        .watch(http.serve_connection(TokioIo::new(noted), service));
    let task = tokio::spawn(async move {
        let _until_the_end = place;
        if let Err(err) = serving.await {
            tracing::debug!("a connection ended: {err}");
        }
    });
    let _ = connection.task.set(task.abort_handle());
}

/// Cuts connections whose time is up.
async fn reap(connections: Arc<Connections>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        connections.cut_expired();
    }
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
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
    fn of(value: u8) -> Self {
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
struct Connection {
    address: IpAddr,
    phase: AtomicU8,
    /// When the phase began, or when it last went on: milliseconds since the server started.
    since: AtomicU64,
    started: Instant,
    /// The client does not take what it was sent.
    blocked: AtomicBool,
    task: OnceLock<AbortHandle>,
}

impl Connection {
    fn phase(&self) -> Phase {
        // The body of an answer is done with before its last bytes have left.
        match Phase::of(self.phase.load(Ordering::Relaxed)) {
            Phase::Idle if self.blocked.load(Ordering::Relaxed) => Phase::Sending,
            phase => phase,
        }
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.goes_on();
    }

    fn goes_on(&self) {
        self.since
            .store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn age(&self) -> Duration {
        let since = Duration::from_millis(self.since.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(since)
    }

    /// Whether the connection waits for a client that has asked for nothing.
    fn is_waiting(&self) -> bool {
        matches!(
            self.phase(),
            Phase::New | Phase::Head | Phase::Body | Phase::Idle
        )
    }

    fn cut(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// All open connections.
#[derive(Debug)]
struct Connections {
    limits: Limits,
    started: Instant,
    open: Mutex<Open>,
    /// When it was last said that there are too many, or that none can be accepted.
    complained: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: HashMap<u64, Arc<Connection>>,
    by_address: HashMap<IpAddr, usize>,
    stopping: bool,
}

/// A connection's place among the open ones; given up when it is dropped.
struct Place {
    connections: Arc<Connections>,
    number: u64,
    connection: Arc<Connection>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.lock().remove(self.number);
    }
}

impl Open {
    fn remove(&mut self, number: u64) {
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
    fn make_room(&mut self, from: Option<IpAddr>) -> bool {
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
    fn new(limits: Limits) -> Self {
        Self {
            limits,
            started: Instant::now(),
            open: Mutex::default(),
            complained: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes a new connection in; `None` when there is no room even for one that will be used.
    fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
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
    async fn cannot_accept(&self, err: &io::Error) {
        self.complain(format_args!(
            "cannot accept connections: {err} (raise the limit of open files, `ulimit -n`, if this goes on)"
        ));
        self.lock().make_room(None);
        tokio::time::sleep(BREATHER).await;
    }

    /// Says something, but not over and over.
    fn complain(&self, what: std::fmt::Arguments<'_>) {
        let mut last = self
            .complained
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if last.is_none_or(|last| last.elapsed() > Duration::from_secs(60)) {
            tracing::warn!("{what}");
            *last = Some(Instant::now());
        }
    }

    fn cut_expired(&self) {
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
    fn stop_waiting_for_requests(&self) {
        self.lock().stopping = true;
    }

    fn cut_all(&self) -> usize {
        let open = self.lock();
        open.all.values().for_each(|connection| connection.cut());
        open.all.len()
    }
}

/// Whether a connection has been in a phase for too long.
fn is_expired(phase: Phase, age: Duration, limits: &Limits, stopping: bool) -> bool {
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

/// A socket that notes when something moves.
struct Noted {
    inner: TcpStream,
    connection: Arc<Connection>,
}

impl AsyncRead for Noted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if buffer.filled().len() > before
            && matches!(self.connection.phase(), Phase::New | Phase::Idle)
        {
            self.connection.enter(Phase::Head);
        }
        result
    }
}

impl AsyncWrite for Noted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write(cx, bytes);
        self.note(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.inner).poll_write_vectored(cx, slices);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl Noted {
    fn note(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.connection
            .blocked
            .store(written.is_pending(), Ordering::Relaxed);
        if matches!(written, Poll::Ready(Ok(_))) {
            self.connection.goes_on();
        }
        written
    }
}

/// A service that notes when a request is complete and when its answer is made.
struct Attended<S> {
    inner: S,
    connection: Arc<Connection>,
}

impl<S, R, B> Service<Request<R>> for Attended<S>
where
    R: http_body::Body,
    S: Service<Request<Received<R>>, Response = warp::http::Response<B>>,
    S::Future: Send + 'static,
{
    type Response = warp::http::Response<Sent<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn call(&self, mut request: Request<R>) -> Self::Future {
        let complete = request.body().is_end_stream();
        self.connection.enter(if complete {
            Phase::Handling
        } else {
            Phase::Body
        });
        // CONNECT names no path, and warp cannot do without one: no route will be found at this.
        if request.uri().path_and_query().is_none() {
            *request.uri_mut() = Uri::from_static("/");
        }
        let request = request.map(|body| Received {
            body,
            connection: self.connection.clone(),
        });
        let answer = self.inner.call(request);
        let connection = self.connection.clone();
        Box::pin(async move {
            let answer = answer.await?;
            connection.enter(Phase::Sending);
            Ok(answer.map(|body| Sent { body, connection }))
        })
    }
}

/// A request's body that notes when it is complete.
struct Received<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B: http_body::Body + Unpin> http_body::Body for Received<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if self.connection.phase() == Phase::Body
            && (self.body.is_end_stream() || matches!(frame, Poll::Ready(None)))
        {
            self.connection.enter(Phase::Handling);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that notes when it is done with.
struct Sent<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B> Drop for Sent<B> {
    fn drop(&mut self) {
        self.connection.enter(Phase::Idle);
    }
}

impl<B: http_body::Body<Data = Bytes> + Unpin> http_body::Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
