//! The wire JSON, and the only place that knows it.

use std::time::{Duration, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use super::attachment::{self, Purpose};
use crate::follow;
use crate::message::{Headers, Message};
use crate::names::MailboxName;
use crate::spool::{Entry, Listing, Spool, Timestamp};

/// One JSON value followed by one newline, as every answer is.
fn json_line(value: &impl Serialize) -> Vec<u8> {
    let mut out = serde_json::to_vec(value)
        .expect("strings, numbers and string keys always serialise into memory");
    out.push(b'\n');
    out
}

/// A mailbox's list.
pub fn list(listing: &Listing) -> Vec<u8> {
    let summaries: Vec<_> = listing
        .entries()
        .iter()
        .map(|entry| Summary::new(listing.mailbox(), entry))
        .collect();
    json_line(&summaries)
}

/// One message, whose links begin with `base`.
pub fn message(mailbox: &MailboxName, entry: &Entry, message: &Message, base: &str) -> Vec<u8> {
    let attachments = message
        .attachments
        .iter()
        .enumerate()
        .map(|(number, part)| Attachment {
            filename: &part.filename,
            content_type: &part.content_type,
            download_link: attachment::link(
                base,
                Purpose::Download,
                mailbox,
                &entry.id,
                number,
                part,
            ),
            view_link: attachment::link(base, Purpose::View, mailbox, &entry.id, number, part),
            md5: part.md5(),
        })
        .collect();
    json_line(&FullMessage {
        summary: Summary::new(mailbox, entry),
        body: Body {
            text: &message.text,
            html: &message.html,
        },
        header: &message.headers,
        attachments,
    })
}

/// How the server is.
pub fn status(spool: &Spool, following: &follow::Status, uptime: Duration) -> Vec<u8> {
    #[derive(Serialize)]
    struct Status<'a> {
        version: &'a str,
        spool: String,
        mailboxes: usize,
        messages: usize,
        bytes: u64,
        watcher: Watcher<'a>,
        #[serde(rename = "uptime-seconds")]
        uptime: u64,
    }
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct Watcher<'a> {
        mode: &'a str,
        healthy: bool,
        reason: Option<&'a str>,
        last_reconcile: Option<String>,
    }
    let (mailboxes, messages, bytes) = spool.totals();
    let reconciled = following.reconciled.map(|at| {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        date(Timestamp {
            seconds: since.as_secs() as i64,
            nanos: since.subsec_nanos(),
        })
    });
    json_line(&Status {
        version: env!("CARGO_PKG_VERSION"),
        spool: spool.path().display().to_string(),
        mailboxes,
        messages,
        bytes,
        watcher: Watcher {
            mode: following.mode,
            healthy: following.healthy,
            reason: following.reason.as_deref(),
            last_reconcile: reconciled,
        },
        uptime: uptime.as_secs(),
    })
}

/// A problem document.
pub fn problem(status: u16, title: &str, detail: &str) -> Vec<u8> {
    #[derive(Serialize)]
    struct Problem<'a> {
        r#type: &'a str,
        title: &'a str,
        status: u16,
        detail: &'a str,
    }
    json_line(&Problem {
        r#type: "about:blank",
        title,
        status,
        detail,
    })
}

/// What a PATCH asks for. A body without `seen` changes nothing; no body at all means `true`.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Patch {
    pub seen: Option<bool>,
}

impl Patch {
    pub fn parse(body: &[u8]) -> Result<Self, String> {
        if body.trim_ascii().is_empty() {
            return Ok(Self { seen: Some(true) });
        }
        // A struct would also be read from an array.
        if !body.trim_ascii_start().starts_with(b"{") {
            return Err("it is not an object".into());
        }
        serde_json::from_slice(body).map_err(|err| err.to_string())
    }
}

#[derive(Serialize)]
struct Summary<'a> {
    mailbox: &'a str,
    id: &'a str,
    from: &'a str,
    subject: &'a str,
    date: String,
    size: u64,
    to: &'a [String],
    #[serde(rename = "posix-millis")]
    posix_millis: i64,
    seen: bool,
}

impl<'a> Summary<'a> {
    fn new(mailbox: &'a MailboxName, entry: &'a Entry) -> Self {
        let summary = entry.summary();
        Self {
            mailbox: mailbox.as_str(),
            id: entry.id().as_str(),
            from: &summary.from,
            subject: &summary.subject,
            date: date(entry.date()),
            size: entry.size(),
            to: &summary.to,
            posix_millis: millis(entry.date()),
            seen: entry.seen(),
        }
    }
}

#[derive(Serialize)]
struct FullMessage<'a> {
    #[serde(flatten)]
    summary: Summary<'a>,
    body: Body<'a>,
    #[serde(serialize_with = "header_map")]
    header: &'a Headers,
    attachments: Vec<Attachment<'a>>,
}

#[derive(Serialize)]
struct Body<'a> {
    text: &'a str,
    html: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Attachment<'a> {
    filename: &'a str,
    content_type: &'a str,
    download_link: String,
    view_link: String,
    md5: String,
}

fn header_map<S: Serializer>(headers: &&Headers, serializer: S) -> Result<S::Ok, S::Error> {
    let groups = headers.grouped();
    let mut map = serializer.serialize_map(Some(groups.len()))?;
    for (name, values) in groups {
        map.serialize_entry(name, &values)?;
    }
    map.end()
}

/// UTC with nine digits and a numeric offset, always. Years that RFC 3339 cannot write are cut to
/// the last it can.
fn date(time: Timestamp) -> String {
    const FIRST: i64 = -62_167_219_200; // 0000-01-01
    const LAST: i64 = 253_402_300_799; // 9999-12-31
    let date = DateTime::<Utc>::from_timestamp(time.seconds.clamp(FIRST, LAST), time.nanos)
        .unwrap_or_default();
    date.format("%Y-%m-%dT%H:%M:%S%.9f+00:00").to_string()
}

fn millis(time: Timestamp) -> i64 {
    time.seconds
        .saturating_mul(1000)
        .saturating_add(i64::from(time.nanos / 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_nine_digits_and_a_numeric_offset() {
        let at = |seconds, nanos| date(Timestamp { seconds, nanos });
        assert_eq!(
            at(1_794_700_572, 646_370_568),
            "2026-11-14T23:56:12.646370568+00:00"
        );
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000000000+00:00");
        assert_eq!(at(-1, 5), "1969-12-31T23:59:59.000000005+00:00");
        assert_eq!(at(i64::MAX, 0), "9999-12-31T23:59:59.000000000+00:00");
        assert_eq!(at(i64::MIN, 0), "0000-01-01T00:00:00.000000000+00:00");
    }

    #[test]
    fn millis_are_truncated() {
        assert_eq!(
            millis(Timestamp {
                seconds: 1,
                nanos: 999_999_999
            }),
            1999
        );
        assert_eq!(
            millis(Timestamp {
                seconds: i64::MAX,
                nanos: 1
            }),
            i64::MAX
        );
    }

    #[test]
    fn patches() {
        let seen = |body: &str| Patch::parse(body.as_bytes()).map(|patch| patch.seen);
        assert_eq!(seen(""), Ok(Some(true)));
        assert_eq!(seen(" \r\n"), Ok(Some(true)));
        assert_eq!(seen("{\"seen\":false}"), Ok(Some(false)));
        assert_eq!(seen("{}"), Ok(None));
        assert_eq!(seen("{\"other\":1}"), Ok(None));
        for bad in [
            "{",
            "[]",
            "[true]",
            "true",
            "{\"seen\":1}",
            "{\"seen\":\"true\"}",
            "{}x",
        ] {
            assert!(seen(bad).is_err(), "{bad}");
        }
    }
}
