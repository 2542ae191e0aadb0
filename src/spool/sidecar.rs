//! `index.json`: the index on disk, and the only place that knows its form.
//!
//! ```text
//! {"version":1,"messages":[
//! {"id":"welcome","size":812,"mtime":1794700000123456789,"inode":131,"from":"…","to":["…"],"subject":"…","seen":false},
//! …
//! ]}
//! ```
//!
//! One message per line, ascending by id, so that `jq`, `grep` and `diff` work on it. `size`,
//! `mtime` (in nanoseconds since 1970) and `inode` are the stamp of the file that the line was made
//! from: a line whose stamp is not the file's is out of date.
//!
//! It is a cache. Anything unexpected in it (another version, a truncated file, noise) means that
//! there is none, never an error; what is lost with it is `seen` and the time to read the messages
//! again. Version 1 is the first; a reader of a later version may take it over line by line.

use std::io::Read;

use serde::{Deserialize, Serialize};

use super::dir::{Dir, Opened};
use super::freshness::{FileStamp, Timestamp};
use super::index::Entry;
use crate::error::Result;
use crate::message::Summary;
use crate::names::MessageId;

/// The sidecar's name in every mailbox.
pub const FILE_NAME: &str = "index.json";

const VERSION: u32 = 1;

/// A larger file is not ours, and reading it would cost memory that nobody gave us.
const SIZE_MAX: u64 = 512 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    size: u64,
    mtime: i128,
    inode: u64,
    from: String,
    to: Vec<String>,
    subject: String,
    seen: bool,
}

#[derive(Deserialize)]
struct Document {
    version: u32,
    messages: Vec<Line>,
}

/// What a sidecar said, with the stamp of the file that said it.
pub struct Loaded {
    pub stamp: FileStamp,
    /// Ascending by id, each id once.
    pub entries: Vec<Entry>,
}

/// The stamp of a mailbox's sidecar, by which we know our own again.
pub fn stamp(dir: &Dir) -> Result<Option<FileStamp>> {
    let stamp = dir.file_stamp(FILE_NAME)?;
    Ok(stamp.map(FileStamp::across_renames))
}

/// Reads the sidecar of a mailbox; any trouble at all means that there is none.
pub fn load(dir: &Dir) -> Option<Loaded> {
    let Ok(Opened::File(file, stamp)) = dir.open_file(FILE_NAME) else {
        return None;
    };
    if stamp.size > SIZE_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(stamp.size as usize + 1);
    file.take(SIZE_MAX).read_to_end(&mut bytes).ok()?;
    Some(Loaded {
        stamp: stamp.across_renames(),
        entries: parse(&bytes, stamp.mtime)?,
    })
}

/// `written` is the sidecar's own age: a message that is not clearly older may have been written to
/// after it was indexed without its stamp telling.
fn parse(bytes: &[u8], written: Timestamp) -> Option<Vec<Entry>> {
    let document: Document = serde_json::from_slice(bytes).ok()?;
    if document.version != VERSION {
        return None;
    }
    let mut entries = Vec::with_capacity(document.messages.len());
    for line in document.messages {
        entries.push(line.entry(written)?);
    }
    entries.sort_by(|a: &Entry, b: &Entry| a.id.cmp(&b.id));
    entries.dedup_by(|a, b| a.id == b.id);
    Some(entries)
}

impl Line {
    fn entry(self, written: Timestamp) -> Option<Entry> {
        let mtime = Timestamp::from_nanos(self.mtime)?;
        Some(Entry {
            id: MessageId::parse(&self.id).ok()?,
            stamp: FileStamp {
                size: self.size,
                mtime,
                inode: self.inode,
                ctime: None,
            },
            dirent: self.inode,
            racy: mtime.seconds >= written.seconds.saturating_sub(2) && mtime <= written,
            summary: Summary {
                from: self.from,
                to: self.to,
                subject: self.subject,
            },
            seen: self.seen,
        })
    }
}

/// Writes entries, which must be ascending by id, in the sidecar's form.
pub fn render<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Borrowed<'a> {
        id: &'a str,
        size: u64,
        mtime: i128,
        inode: u64,
        from: &'a str,
        to: &'a [String],
        subject: &'a str,
        seen: bool,
    }
    let mut out = format!("{{\"version\":{VERSION},\"messages\":[").into_bytes();
    let mut separator = "\n";
    for entry in entries {
        out.extend_from_slice(separator.as_bytes());
        separator = ",\n";
        let line = Borrowed {
            id: entry.id.as_str(),
            size: entry.stamp.size,
            mtime: entry.stamp.mtime.as_nanos(),
            inode: entry.stamp.inode,
            from: &entry.summary.from,
            to: &entry.summary.to,
            subject: &entry.summary.subject,
            seen: entry.seen,
        };
        serde_json::to_writer(&mut out, &line)
            .expect("strings and numbers always serialise into memory");
    }
    out.extend_from_slice(b"\n]}\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, subject: &str, seen: bool) -> Entry {
        Entry {
            id: MessageId::parse(id).unwrap(),
            stamp: FileStamp {
                size: 12,
                mtime: Timestamp {
                    seconds: 1_790_000_000,
                    nanos: 123_456_789,
                },
                inode: u64::MAX,
                ctime: None,
            },
            dirent: u64::MAX,
            racy: false,
            summary: Summary {
                from: "Ann <a@b>".into(),
                to: vec!["<x@y>".into(), "\"q\" <z@y>".into()],
                subject: subject.into(),
            },
            seen,
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let entries = [
            entry("a", "line\nbreak \u{2028} \0", true),
            entry("b", "", false),
        ];
        let bytes = render(&entries);
        let later = Timestamp {
            seconds: 1_790_000_100,
            nanos: 0,
        };
        assert_eq!(parse(&bytes, later).unwrap(), entries);
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(text.lines().count(), 4);
        assert!(text.starts_with("{\"version\":1,\"messages\":[\n{\"id\":\"a\",\"size\":12,\"mtime\":1790000000123456789,\"inode\":"));
        assert_eq!(render(&[]), b"{\"version\":1,\"messages\":[\n]}\n");
        assert!(parse(&render(&[]), later).unwrap().is_empty());
    }

    #[test]
    fn a_message_as_young_as_the_sidecar_is_racy() {
        let bytes = render(&[entry("a", "", false)]);
        let soon = Timestamp {
            seconds: 1_790_000_000,
            nanos: 200_000_000,
        };
        assert!(parse(&bytes, soon).unwrap()[0].racy);
    }

    #[test]
    fn any_damage_is_a_miss() {
        let good = render(&[entry("a", "", false)]);
        for end in 0..good.len() - 2 {
            assert!(
                parse(&good[..end], Timestamp::default()).is_none(),
                "cut at {end}"
            );
        }
        let text = String::from_utf8(good).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"id\":\"a\"", "\"id\":\"../a\""),
            ("\"seen\":false", "\"seen\":0"),
            (
                "\"mtime\":1790000000123456789",
                "\"mtime\":170141183460469231731687303715884105727",
            ),
            ("]}", "]}x"),
        ] {
            assert!(
                parse(text.replace(from, to).as_bytes(), Timestamp::default()).is_none(),
                "{to}"
            );
        }
        for noise in [
            &b""[..],
            b"{}",
            b"[]",
            b"null",
            b"\xff\xfe\0",
            b"{\"version\":1}",
        ] {
            assert!(parse(noise, Timestamp::default()).is_none());
        }
    }

    #[test]
    fn a_reformatted_sidecar_is_still_one() {
        let value: serde_json::Value =
            serde_json::from_slice(&render(&[entry("a", "", true)])).unwrap();
        let pretty = serde_json::to_vec_pretty(&value).unwrap();
        assert!(parse(&pretty, Timestamp::default()).unwrap()[0].seen);
    }
}
