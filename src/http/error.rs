//! One match from error to status; the answer is a problem document (RFC 9457).

use warp::http::{HeaderValue, StatusCode, header};
use warp::reply::Response;

use super::model;
use crate::error::Error;
use crate::task::Undone;

/// Why a request was not answered with what it asked for.
#[derive(Debug)]
pub enum ApiError {
    Spool(Error),
    /// A segment of the path that is not percent-encoded UTF-8.
    BadEscape(String),
    NoRoute,
    NoAttachment(String),
    LatestIsNoId,
    /// The route exists, for these methods.
    Method(&'static str),
    BadBody(String),
    BodyTooLarge(usize),
    BodyTooSlow,
    ForeignOrigin,
    Overloaded,
    NotWritable,
    Broken,
}

impl From<Undone> for ApiError {
    fn from(undone: Undone) -> Self {
        match undone {
            Undone::Overloaded => ApiError::Overloaded,
            Undone::Broken => ApiError::Broken,
        }
    }
}

impl From<Error> for ApiError {
    fn from(err: Error) -> Self {
        ApiError::Spool(err)
    }
}

impl ApiError {
    /// The status, and a text that tells the client what to do. It never shows a path of the server.
    fn status(&self) -> (StatusCode, String) {
        match self {
            ApiError::Spool(err @ Error::Name(_)) => (
                StatusCode::BAD_REQUEST,
                format!("{err}. Percent-encode special characters once."),
            ),
            ApiError::Spool(err @ (Error::NoMessage { .. } | Error::Empty { .. })) => (
                StatusCode::NOT_FOUND,
                format!("{}. List the mailbox to see what it holds.", capitalised(&err.to_string())),
            ),
            ApiError::Spool(err) if err.is_unavailable() => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The spool cannot be read or written at the moment. Try again; the server's log has the reason.".into(),
            ),
            ApiError::Spool(_) | ApiError::Broken => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The server failed to do this. Its log has the reason.".into(),
            ),
            ApiError::BadEscape(segment) => (
                StatusCode::BAD_REQUEST,
                format!("{segment:?} is not percent-encoded UTF-8. Encode each part of the path once."),
            ),
            ApiError::NoRoute => (
                StatusCode::NOT_FOUND,
                "There is nothing at this path. Mail is at /api/v1/mailbox/{name} and /api/v1/mailbox/{name}/{id}.".into(),
            ),
            ApiError::NoAttachment(number) => (
                StatusCode::NOT_FOUND,
                format!("The message has no attachment {number:?}. They are counted from 0; the message's JSON lists them."),
            ),
            ApiError::LatestIsNoId => (
                StatusCode::NOT_FOUND,
                "`latest` is not an id: name the message to delete by its own id.".into(),
            ),
            ApiError::Method(allowed) => (
                StatusCode::METHOD_NOT_ALLOWED,
                format!("This path answers {allowed}."),
            ),
            ApiError::BadBody(why) => (
                StatusCode::BAD_REQUEST,
                format!("The body must be JSON like {{\"seen\": true}}: {why}."),
            ),
            ApiError::BodyTooLarge(max) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("The body may have {max} bytes at most."),
            ),
            ApiError::BodyTooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                "The body took too long to arrive.".into(),
            ),
            ApiError::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The server has more to do than it can. Try again in a moment.".into(),
            ),
            ApiError::NotWritable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The spool cannot be written: check its permissions and its file system.".into(),
            ),
            ApiError::ForeignOrigin => (
                StatusCode::FORBIDDEN,
                "A page of another origin may not change mail here. The server's --allow-origin can permit it.".into(),
            ),
        }
    }

    pub fn into_response(self) -> Response {
        let (status, detail) = self.status();
        if status.is_server_error() {
            match &self {
                ApiError::Spool(err) => tracing::warn!("{}", err.with_reason()),
                ApiError::Overloaded | ApiError::NotWritable => tracing::debug!("{self:?}"),
                other => tracing::error!("{other:?}"),
            }
        }
        let title = status.canonical_reason().unwrap_or("Error");
        let mut response = Response::new(model::problem(status.as_u16(), title, &detail).into());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let ApiError::Method(allowed) = self {
            headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_uppercase().chain(chars).collect())
        .unwrap_or_default()
}
