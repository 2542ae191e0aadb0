//! The edge: connections, from being accepted to being closed.
//!
//! warp answers requests; it does not keep a client from holding a connection for ever. So the
//! accept loop is ours. Every connection notes what it is doing and since when, in two atomics, and
//! one task looks at all of them now and then and cuts those that have used up their time. A request
//! thus pays for a few stores and no timer. When there are too many connections, the one that has
//! been idle the longest makes room: those who only hold connections lose them, not those who use
//! theirs.

mod attended;
mod connections;

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use warp::Filter;
use warp::reply::Response;

use attended::{Attended, Noted};
use connections::{Connections, Place};

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

/// Serves connections until `stop` resolves; then answers what is in flight, for as long as the
/// limits allow.
pub async fn serve<F>(
    listener: TcpListener,
    filter: F,
    limits: Limits,
    stop: impl Future<Output = ()>,
) where
    F: Filter<Extract = (Response,), Error = Infallible> + Clone + Send + Sync + 'static,
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
    F: Filter<Extract = (Response,), Error = Infallible> + Clone + Send + Sync + 'static,
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
