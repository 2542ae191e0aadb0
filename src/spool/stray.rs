//! Names that are no mail: what they are, and what their owner can do.

use std::fmt;

use rustix::fs::FileType;

use crate::names::{EML, MessageId};

/// Why a name in a mailbox is not a message. The text says what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stray {
    Hidden,
    Link,
    Directory,
    Maildir,
    Special,
    OtherCase,
    Reserved,
    BadName,
    NotUtf8,
    Mbox,
    NotMail,
    Unreadable,
}

impl Stray {
    /// Judges a name that is neither a message nor one of the server's own files.
    pub fn of(name: &[u8], kind: FileType) -> Self {
        let Ok(text) = std::str::from_utf8(name) else {
            return Stray::NotUtf8;
        };
        match kind {
            _ if text.starts_with('.') => Stray::Hidden,
            FileType::Symlink => Stray::Link,
            FileType::Directory if matches!(text, "cur" | "new" | "tmp") => Stray::Maildir,
            FileType::Directory => Stray::Directory,
            FileType::RegularFile => Self::of_file(text),
            _ => Stray::Special,
        }
    }

    fn of_file(name: &str) -> Self {
        let at = name.len().saturating_sub(EML.len());
        match MessageId::of_file(name) {
            Some(_) if name == "latest.eml" => Stray::Reserved,
            Some(_) => Stray::BadName,
            None if name.is_char_boundary(at) && name[at..].eq_ignore_ascii_case(EML) => {
                Stray::OtherCase
            }
            None if name.ends_with(".mbox") || name == "mbox" => Stray::Mbox,
            None => Stray::NotMail,
        }
    }
}

impl fmt::Display for Stray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stray::Hidden => "its name begins with a dot: rename it to something.eml if it is a message",
            Stray::Link => "it is a symbolic link, and links are not followed: put the file itself here",
            Stray::Directory => "it is a directory: mailboxes lie directly in the spool, messages directly in a mailbox",
            Stray::Maildir => "this looks like a Maildir, which is not read: copy its messages here as <id>.eml",
            Stray::Special => "it is not a regular file: remove it",
            Stray::OtherCase => "the ending must be .eml in lower case: rename it",
            Stray::Reserved => "the id `latest` means the newest message: rename it",
            Stray::BadName => "its name cannot be an id (a control character, a backslash, a space at an end): rename it",
            Stray::NotUtf8 => "its name is not UTF-8: rename it",
            Stray::Mbox => "this looks like an mbox, which is not read: split it into <id>.eml files",
            Stray::NotMail => "only files called <id>.eml are messages: rename it if it is one",
            Stray::Unreadable => "it cannot be read: check its owner and its permissions",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_apart() {
        use FileType::*;
        let cases: [(&[u8], FileType, Stray); 13] = [
            (b".DS_Store", RegularFile, Stray::Hidden),
            (b".eml", RegularFile, Stray::Hidden),
            (b"a.eml", Symlink, Stray::Link),
            (b"a.eml", Directory, Stray::Directory),
            (b"cur", Directory, Stray::Maildir),
            (b"a.eml", Fifo, Stray::Special),
            (b"A.EML", RegularFile, Stray::OtherCase),
            (b"latest.eml", RegularFile, Stray::Reserved),
            (b"a\n.eml", RegularFile, Stray::BadName),
            (b"\xff.eml", RegularFile, Stray::NotUtf8),
            (b"inbox.mbox", RegularFile, Stray::Mbox),
            (b"notes.txt", RegularFile, Stray::NotMail),
            ("äöü".as_bytes(), RegularFile, Stray::NotMail),
        ];
        for (name, kind, expected) in cases {
            assert_eq!(Stray::of(name, kind), expected, "{name:?}");
        }
    }
}
