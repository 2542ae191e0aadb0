//! The REST API over HTTP.
//!
//! warp serves the connections; which route a request takes is decided by one pure function
//! (`route`), so that a name is decoded in exactly one place and every answer to a wrong method or
//! path is ours. `api` has the handlers, `model` the wire JSON, `error` the one match from error to
//! status, `attachment` the headers that keep a browser safe, `origin` the rule for browsers.

mod api;
mod attachment;
mod edge;
mod error;
mod model;
mod origin;
mod route;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warp::Filter;
use warp::http::{HeaderMap, Method};
use warp::path::FullPath;
use warp::reply::Response;

use crate::follow::Follower;
use crate::policy::Naming;
use crate::spool::Spool;
use crate::task::Tasks;
pub use edge::{Limits, serve};
use error::ApiError;

/// All that an answer depends on.
#[derive(Debug)]
pub struct Api {
    /// The mail.
    pub spool: Spool,
    /// How the spool is being followed.
    pub follower: Follower,
    /// When the server started.
    pub started: Instant,
    /// Which mailbox a name or an address means.
    pub naming: Naming,
    /// The public prefix of all links, without a slash at its end.
    pub base_url: Option<String>,
    /// The path of the base URL: routes answer under it as well.
    pub prefix: Vec<String>,
    /// Origins whose pages may change mail.
    pub allow_origin: Vec<String>,
    /// Where work that may block is done.
    pub tasks: Tasks,
    /// How long a request's body may take.
    pub body_timeout: Duration,
    /// Where the server listens, for links when a request does not say.
    pub address: SocketAddr,
}

/// Everything that the server answers over HTTP.
pub fn routes(api: Api) -> impl Filter<Extract = (Response,), Error = Infallible> + Clone {
    let api = Arc::new(api);
    warp::any()
        .map(move || Arc::clone(&api))
        .and(warp::method())
        .and(warp::path::full())
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(
            |api: Arc<Api>, method: Method, path: FullPath, headers: HeaderMap, body| async move {
                if let Some(answer) = origin::preflight(&method, &headers, &api.allow_origin) {
                    return answer;
                }
                let answer = Arc::clone(&api)
                    .handle(&method, path.as_str(), &headers, body)
                    .await;
                let mut answer = answer.unwrap_or_else(ApiError::into_response);
                origin::permit(&headers, &api.allow_origin, answer.headers_mut());
                tracing::debug!("{method} {} {}", path.as_str(), answer.status().as_u16());
                answer
            },
        )
        // The filters above refuse nothing; were one to, there would still be an answer.
        .recover(|_| async { Ok::<_, Infallible>(ApiError::Broken.into_response()) })
        .unify()
}
