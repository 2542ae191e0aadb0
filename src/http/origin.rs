//! Where a request comes from, and where it thinks that it has come to.

use warp::http::uri::Authority;
use warp::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use warp::reply::Response;

use super::error::ApiError;

/// Refuses a change that a page of another origin asks for. Plain clients send neither header and
/// are served.
pub fn check(headers: &HeaderMap, allowed: &[String]) -> Result<(), ApiError> {
    if headers.get_all(header::ORIGIN).iter().count() > 1 {
        return Err(ApiError::ForeignOrigin);
    }
    let text = |name| {
        headers
            .get(name)
            .map(|value: &HeaderValue| value.to_str().unwrap_or("?"))
    };
    match (
        text(header::ORIGIN),
        text(header::HeaderName::from_static("sec-fetch-site")),
    ) {
        (None, None | Some("same-origin" | "none")) => Ok(()),
        (Some(origin), _) => {
            let own = host(headers).is_some_and(|host| is_origin_of(origin, host));
            if own || permitted(headers, allowed).is_some() {
                Ok(())
            } else {
                Err(ApiError::ForeignOrigin)
            }
        }
        (None, Some(_)) => Err(ApiError::ForeignOrigin),
    }
}

/// Lets a page of a permitted origin read an answer.
pub fn permit(request: &HeaderMap, allowed: &[String], answer: &mut HeaderMap) {
    if let Some(origin) = permitted(request, allowed) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        answer.insert(header::VARY, HeaderValue::from_static("Origin"));
    }
}

/// Answers a browser that asks, for a page of a permitted origin, what it may do.
pub fn preflight(method: &Method, request: &HeaderMap, allowed: &[String]) -> Option<Response> {
    if method != Method::OPTIONS || !request.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
        return None;
    }
    permitted(request, allowed)?;
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    permit(request, allowed, headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, PATCH, DELETE"),
    );
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        HeaderValue::from_static("Content-Type"),
    );
    Some(response)
}

fn permitted<'a>(request: &'a HeaderMap, allowed: &[String]) -> Option<&'a HeaderValue> {
    let origin = request.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    allowed
        .iter()
        .any(|allowed| allowed.eq_ignore_ascii_case(text))
        .then_some(origin)
}

/// The request's Host, if it is one.
pub fn host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next().filter(|_| hosts.next().is_none())?;
    let host = host.to_str().ok()?;
    let authority: Authority = host.parse().ok()?;
    // User information has no place in a Host, and would end up in links.
    (!authority.as_str().contains('@') && !authority.host().is_empty()).then_some(host)
}

fn is_origin_of(origin: &str, host: &str) -> bool {
    let (scheme, authority) = origin.split_once("://").unwrap_or(("", ""));
    let default = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |text: &str| {
        text.strip_suffix(default)
            .unwrap_or(text)
            .to_ascii_lowercase()
    };
    bare(authority) == bare(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn plain_clients_and_the_own_page_may_change_mail() {
        let host = ("host", "mail.example:9000");
        for pairs in [
            &[host][..],
            &[host, ("origin", "http://mail.example:9000")],
            &[host, ("origin", "http://MAIL.example:9000")],
            &[host, ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "none")],
            &[
                ("host", "mail.example"),
                ("origin", "https://mail.example:443"),
            ],
            &[host, ("origin", "https://ui.example")],
        ] {
            assert!(
                check(&headers(pairs), &["https://ui.example".into()]).is_ok(),
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn other_pages_may_not() {
        let host = ("host", "mail.example:9000");
        for pairs in [
            &[host, ("origin", "http://evil.example")][..],
            &[host, ("origin", "null")],
            &[host, ("origin", "http://mail.example:9001")],
            &[host, ("origin", "http://mail.example:9000.evil.example")],
            &[host, ("origin", "ftp://mail.example:9000")],
            &[host, ("sec-fetch-site", "cross-site")],
            &[host, ("sec-fetch-site", "same-site")],
            &[("origin", "http://mail.example:9000")],
            &[
                host,
                ("origin", "http://mail.example:9000"),
                ("origin", "http://evil.example"),
            ],
        ] {
            assert!(check(&headers(pairs), &[]).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn a_host_that_is_none_is_not_used() {
        assert_eq!(
            host(&headers(&[("host", "[::1]:9000")])),
            Some("[::1]:9000")
        );
        for bad in ["", "a b", "a/b", "user@host", "a\"b", "a<b"] {
            assert_eq!(host(&headers(&[("host", bad)])), None, "{bad}");
        }
    }
}
