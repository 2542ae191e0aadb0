//! Names that came from outside, parsed once.
//!
//! A [`MailboxName`] or a [`MessageId`] that exists is safe to use as one component of a path: it
//! holds no separator, cannot begin with a dot, and fits into a file name. Nothing validates twice.

use std::fmt;
use std::sync::Arc;

/// The ending of a message's file name.
pub(crate) const EML: &str = ".eml";

/// The id that always means the newest message, and so can be nobody's own.
pub const LATEST: &str = "latest";

/// The longest file name that common file systems take, in bytes.
const FILE_NAME_MAX: usize = 255;

/// The name of a mailbox: 1–255 bytes of UTF-8 without `/`, `\` or control characters, without a
/// leading dot, and without a space at either end.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxName(Arc<str>);

/// The id of a message within its mailbox: its file's name without `.eml`. The rules are those of
/// a [`MailboxName`], with at most 251 bytes, and `latest` is reserved.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(Arc<str>);

impl MailboxName {
    /// Takes the string as a name, or says why it cannot be one.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        match fault(name, FILE_NAME_MAX) {
            None => Ok(Self(name.into())),
            Some(why) => Err(NameError::new("mailbox name", name, why)),
        }
    }

    /// The name as it was given, which is also its directory's name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl MessageId {
    /// Takes the string as an id, or says why it cannot be one.
    pub fn parse(id: &str) -> Result<Self, NameError> {
        let why = match fault(id, FILE_NAME_MAX - EML.len()) {
            None if id == LATEST => Some(Fault::Reserved),
            other => other,
        };
        match why {
            None => Ok(Self(id.into())),
            Some(why) => Err(NameError::new("message id", id, why)),
        }
    }

    /// The id of the message that a file of this name holds, if the name is a message's.
    pub(crate) fn of_file(name: &str) -> Option<Result<Self, NameError>> {
        name.strip_suffix(EML).map(Self::parse)
    }

    /// The name of the message's file.
    pub(crate) fn file_name(&self) -> String {
        format!("{}{EML}", self.0)
    }

    /// The id as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a string was refused as a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    what: &'static str,
    given: String,
    why: Fault,
}

impl NameError {
    fn new(what: &'static str, given: &str, why: Fault) -> Self {
        // What a client sent may be long; an error message should not be.
        let mut given: String = given.chars().take(81).collect();
        if given.chars().count() > 80 {
            given.pop();
            given.push('…');
        }
        Self { what, given, why }
    }

    /// The string has an @ and yet is no address.
    pub(crate) fn not_an_address(given: &str) -> Self {
        Self::new("mailbox name", given, Fault::NotAnAddress)
    }

    /// The same fault, told of the string from which the name was made.
    pub(crate) fn about(self, given: &str) -> Self {
        Self::new(self.what, given, self.why)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} cannot be a {}: {}",
            self.given, self.what, self.why
        )
    }
}

impl std::error::Error for NameError {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Empty,
    TooLong(usize),
    Separator,
    Control,
    LeadingDot,
    OuterSpace,
    Reserved,
    NotAnAddress,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Empty => f.write_str("it is empty"),
            Fault::TooLong(max) => write!(f, "it is longer than {max} bytes"),
            Fault::Separator => f.write_str("it contains a slash or a backslash"),
            Fault::Control => f.write_str("it contains a control character"),
            Fault::LeadingDot => f.write_str("it begins with a dot"),
            Fault::OuterSpace => f.write_str("it begins or ends with a space"),
            Fault::Reserved => f.write_str("the word is reserved for the newest message"),
            Fault::NotAnAddress => f.write_str("it is not an address like ann@example.com"),
        }
    }
}

fn fault(name: &str, max: usize) -> Option<Fault> {
    if name.is_empty() {
        Some(Fault::Empty)
    } else if name.len() > max {
        Some(Fault::TooLong(max))
    } else if name.contains(['/', '\\']) {
        Some(Fault::Separator)
    } else if name.chars().any(char::is_control) {
        Some(Fault::Control)
    } else if name.starts_with('.') {
        Some(Fault::LeadingDot)
    } else if name.starts_with(' ') || name.ends_with(' ') {
        Some(Fault::OuterSpace)
    } else {
        None
    }
}

macro_rules! reads_as_str {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

reads_as_str!(MailboxName);
reads_as_str!(MessageId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_call_mailboxes_is_accepted() {
        for name in [
            "alice",
            "bob@example.com",
            "Ünï cödé",
            "a+b",
            "#1",
            "~",
            "..a".trim_matches('.'),
        ] {
            assert_eq!(MailboxName::parse(name).unwrap().as_str(), name);
        }
        assert!(MailboxName::parse(&"x".repeat(255)).is_ok());
        assert!(MessageId::parse(&"x".repeat(251)).is_ok());
        assert!(MailboxName::parse("latest").is_ok());
    }

    #[test]
    fn what_could_leave_the_directory_or_confuse_a_shell_is_refused() {
        let bad = [
            "", ".", "..", ".hidden", "a/b", "/", "../x", "a\\b", "a\0b", "a\nb", "a\u{7f}",
            "a\u{85}", " a", "a ",
        ];
        for name in bad {
            assert!(MailboxName::parse(name).is_err(), "{name:?}");
            assert!(MessageId::parse(name).is_err(), "{name:?}");
        }
        assert!(MailboxName::parse(&"x".repeat(256)).is_err());
        assert!(MessageId::parse(&"x".repeat(252)).is_err());
        assert!(MessageId::parse("latest").is_err());
    }

    #[test]
    fn an_error_names_the_string_and_stays_short() {
        let err = MailboxName::parse("a/b").unwrap_err();
        assert_eq!(
            err.to_string(),
            "\"a/b\" cannot be a mailbox name: it contains a slash or a backslash"
        );
        assert!(
            MailboxName::parse(&"x".repeat(5000))
                .unwrap_err()
                .to_string()
                .len()
                < 200
        );
    }

    #[test]
    fn a_file_name_is_a_messages_only_with_the_exact_ending() {
        assert_eq!(MessageId::of_file("a.eml").unwrap().unwrap().as_str(), "a");
        assert!(MessageId::of_file("a.EML").is_none());
        assert!(MessageId::of_file(".eml").unwrap().is_err());
        assert!(MessageId::of_file("latest.eml").unwrap().is_err());
    }
}
