//! Paths → routes: pure, decoded once, matched on what they say and not on how they are spelled.

use warp::http::Method;

use super::attachment::Purpose;
use super::error::ApiError;
use crate::names::{LATEST, MessageId};

/// What a path names. A mailbox is still as the client wrote it: which one is meant is for the
/// naming policy to say.
#[derive(Debug, PartialEq, Eq)]
pub enum Route {
    Mailbox(String),
    Message(String, IdOrLatest),
    Source(String, IdOrLatest),
    Attachment {
        mailbox: String,
        id: IdOrLatest,
        number: String,
        purpose: Purpose,
    },
    Status,
    /// Whether the process runs.
    Live,
    /// Whether the spool can be used.
    Ready,
}

/// A message's own id, or whichever is the newest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdOrLatest {
    Id(MessageId),
    Latest,
}

/// What is asked of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// GET, and HEAD, for which the body is left out on the way.
    Get,
    Patch,
    Delete,
}

impl Action {
    /// Whether it changes anything.
    pub fn is_change(self) -> bool {
        self != Action::Get
    }
}

impl Route {
    /// Reads a path. Behind a proxy that does not strip the public prefix, routes begin with it;
    /// they answer with it and without.
    pub fn parse(path: &str, prefix: &[String]) -> Result<Self, ApiError> {
        let segments: Vec<Segment> = path.split('/').skip(1).map(Segment::decode).collect();
        let prefixed = segments.len() > prefix.len()
            && prefix
                .iter()
                .zip(&segments)
                .all(|(word, part)| part.is(word));
        if !prefix.is_empty() && prefixed {
            match Self::of(&segments[prefix.len()..]) {
                Err(ApiError::NoRoute) => {}
                other => return other,
            }
        }
        Self::of(&segments)
    }

    fn of(segments: &[Segment]) -> Result<Self, ApiError> {
        if segments.iter().any(|segment| segment.raw.is_empty()) {
            return Err(ApiError::NoRoute);
        }
        match segments {
            [api, v1, mailbox, rest @ ..]
                if api.is("api") && v1.is("v1") && mailbox.is("mailbox") =>
            {
                match rest {
                    [name] => Ok(Route::Mailbox(name.text()?)),
                    [name, id] => Ok(Route::Message(name.text()?, id.id()?)),
                    [name, id, source] if source.is("source") => {
                        Ok(Route::Source(name.text()?, id.id()?))
                    }
                    _ => Err(ApiError::NoRoute),
                }
            }
            [api, v1, status] if api.is("api") && v1.is("v1") && status.is("status") => {
                Ok(Route::Status)
            }
            [live] if live.is("livez") => Ok(Route::Live),
            [ready] if ready.is("readyz") => Ok(Route::Ready),
            [mailbox, kind, name, id, number, _ignored] if mailbox.is("mailbox") => {
                let purpose = match () {
                    () if kind.is("dattach") => Purpose::Download,
                    () if kind.is("vattach") => Purpose::View,
                    () => return Err(ApiError::NoRoute),
                };
                Ok(Route::Attachment {
                    mailbox: name.text()?,
                    id: id.id()?,
                    number: number.text()?,
                    purpose,
                })
            }
            _ => Err(ApiError::NoRoute),
        }
    }

    /// What a method means here.
    pub fn action(&self, method: &Method) -> Result<Action, ApiError> {
        let allowed = match self {
            Route::Mailbox(_) => "GET, HEAD, DELETE",
            Route::Message(..) => "GET, HEAD, PATCH, DELETE",
            _ => "GET, HEAD",
        };
        match *method {
            Method::GET | Method::HEAD => Ok(Action::Get),
            Method::DELETE if allowed.contains("DELETE") => Ok(Action::Delete),
            Method::PATCH if allowed.contains("PATCH") => Ok(Action::Patch),
            _ => Err(ApiError::Method(allowed)),
        }
    }
}

/// One part of a path, and what it says once its escapes are undone.
struct Segment<'a> {
    raw: &'a str,
    text: Option<String>,
}

impl<'a> Segment<'a> {
    fn decode(raw: &'a str) -> Self {
        let escapes_are_whole = raw.split('%').skip(1).all(|after| {
            let digits = after.as_bytes();
            digits.len() >= 2 && digits[..2].iter().all(u8::is_ascii_hexdigit)
        });
        let bytes = || percent_encoding::percent_decode_str(raw).collect();
        let text = escapes_are_whole
            .then(bytes)
            .and_then(|bytes| String::from_utf8(bytes).ok());
        Self { raw, text }
    }

    fn is(&self, word: &str) -> bool {
        self.text.as_deref() == Some(word)
    }

    fn text(&self) -> Result<String, ApiError> {
        self.text
            .clone()
            .ok_or_else(|| ApiError::BadEscape(self.raw.chars().take(80).collect()))
    }

    fn id(&self) -> Result<IdOrLatest, ApiError> {
        let text = self.text()?;
        if text == LATEST {
            return Ok(IdOrLatest::Latest);
        }
        Ok(IdOrLatest::Id(
            MessageId::parse(&text).map_err(crate::Error::from)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Result<Route, ApiError> {
        Route::parse(path, &[])
    }

    fn id(text: &str) -> IdOrLatest {
        IdOrLatest::Id(MessageId::parse(text).unwrap())
    }

    #[test]
    fn every_route() {
        assert_eq!(
            parse("/api/v1/mailbox/a%40b").unwrap(),
            Route::Mailbox("a@b".into())
        );
        assert_eq!(
            parse("/%61pi/v1/mailbox/a").unwrap(),
            Route::Mailbox("a".into())
        );
        assert_eq!(
            parse("/api/v1/mailbox/a/b%20c").unwrap(),
            Route::Message("a".into(), id("b c"))
        );
        assert_eq!(
            parse("/api/v1/mailbox/a/latest").unwrap(),
            Route::Message("a".into(), IdOrLatest::Latest)
        );
        assert_eq!(
            parse("/api/v1/mailbox/a/source").unwrap(),
            Route::Message("a".into(), id("source"))
        );
        assert_eq!(
            parse("/api/v1/mailbox/a/b/source").unwrap(),
            Route::Source("a".into(), id("b"))
        );
        let view = Route::Attachment {
            mailbox: "a".into(),
            id: id("b"),
            number: "0".into(),
            purpose: Purpose::View,
        };
        assert_eq!(parse("/mailbox/vattach/a/b/0/%FF%2F").unwrap(), view);
        assert!(matches!(
            parse("/mailbox/dattach/a/b/0/x"),
            Ok(Route::Attachment {
                purpose: Purpose::Download,
                ..
            })
        ));
    }

    #[test]
    fn names_are_decoded_once() {
        assert_eq!(
            parse("/api/v1/mailbox/a%2540b").unwrap(),
            Route::Mailbox("a%40b".into())
        );
        for bad in ["%zz", "%", "%4", "a%", "%ff", "%C3"] {
            assert!(
                matches!(
                    parse(&format!("/api/v1/mailbox/{bad}")),
                    Err(ApiError::BadEscape(_))
                ),
                "{bad}"
            );
        }
    }

    #[test]
    fn ids_that_cannot_be_one_are_refused_before_the_disk_is_touched() {
        for bad in [
            "..",
            "%2e%2e",
            "a%2Fb",
            "%00",
            "a%0Ab",
            ".x",
            &"x".repeat(300),
        ] {
            let path = format!("/api/v1/mailbox/a/{bad}");
            assert!(
                matches!(parse(&path), Err(ApiError::Spool(crate::Error::Name(_)))),
                "{bad}"
            );
        }
    }

    #[test]
    fn there_is_nothing_else() {
        for path in [
            "/",
            "",
            "/api",
            "/api/v1",
            "/api/v1/mailbox",
            "/api/v1/mailbox/",
            "/api/v1/mailbox/a/",
            "//api/v1/mailbox/a",
            "/api/v1/mailbox/a/b/c",
            "/api/v2/mailbox/a",
            "/API/v1/mailbox/a",
            "/mailbox/xattach/a/b/0/f",
            "/mailbox/dattach/a/b/0",
            "/mailbox/dattach/a/b/0/f/g",
            "*",
        ] {
            assert!(matches!(parse(path), Err(ApiError::NoRoute)), "{path}");
        }
    }

    #[test]
    fn a_public_prefix_may_be_there_or_not() {
        let prefix = ["mail".to_owned(), "box é".to_owned()];
        for path in ["/mail/box%20%C3%A9/api/v1/mailbox/a", "/api/v1/mailbox/a"] {
            assert_eq!(
                Route::parse(path, &prefix).unwrap(),
                Route::Mailbox("a".into())
            );
        }
        assert!(Route::parse("/mail/api/v1/mailbox/a", &prefix).is_err());
        let prefix = ["mailbox".to_owned()];
        assert!(matches!(
            Route::parse("/mailbox/dattach/a/b/0/f", &prefix),
            Ok(Route::Attachment { .. })
        ));
    }

    #[test]
    fn methods() {
        let message = parse("/api/v1/mailbox/a/b").unwrap();
        assert_eq!(message.action(&Method::HEAD).unwrap(), Action::Get);
        assert_eq!(message.action(&Method::PATCH).unwrap(), Action::Patch);
        let source = parse("/api/v1/mailbox/a/b/source").unwrap();
        assert!(matches!(
            source.action(&Method::DELETE),
            Err(ApiError::Method("GET, HEAD"))
        ));
        let mailbox = parse("/api/v1/mailbox/a").unwrap();
        for method in [
            Method::PATCH,
            Method::POST,
            Method::PUT,
            Method::OPTIONS,
            Method::TRACE,
        ] {
            assert!(matches!(
                mailbox.action(&method),
                Err(ApiError::Method("GET, HEAD, DELETE"))
            ));
        }
    }
}
