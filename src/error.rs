//! The library's errors: each names what was being done and to what.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::names::{MailboxName, MessageId, NameError};

/// The result of everything that touches the spool.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a spool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A string that cannot be the name of a mailbox or of a message.
    #[error(transparent)]
    Name(#[from] NameError),

    /// The mailbox holds no message with this id.
    #[error("mailbox {mailbox} has no message {id}")]
    NoMessage {
        /// The mailbox that was searched.
        mailbox: MailboxName,
        /// The id that was asked for.
        id: MessageId,
    },

    /// The newest message was asked for and there is none.
    #[error("mailbox {mailbox} is empty")]
    Empty {
        /// The mailbox that was searched.
        mailbox: MailboxName,
    },

    /// Something that is not a directory stands where a directory belongs.
    #[error("{path} is not a directory", path = path.display())]
    NotADirectory {
        /// Where it stands.
        path: PathBuf,
    },

    /// The operating system refused.
    #[error("cannot {action} {path}", path = path.display())]
    Io {
        /// What was being done, as a verb: `read`, `create`, `sync`.
        action: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl Error {
    /// The system's reason, when the system was the one that refused.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The message with the system's reason behind it.
    pub fn with_reason(&self) -> String {
        match self.io() {
            Some(reason) => format!("{self}: {reason}"),
            None => self.to_string(),
        }
    }

    /// Whether the machine has run out of descriptors or memory, so that the failure says nothing
    /// about the file.
    pub(crate) fn is_exhaustion(&self) -> bool {
        let exhausted =
            [Errno::NFILE, Errno::MFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
        self.io()
            .is_some_and(|err| exhausted.contains(&err.raw_os_error()))
    }

    /// Whether the spool as a whole cannot be used at the moment: it cannot be reached, read or
    /// written, or the machine has run out of something. Trying again later may help.
    pub fn is_unavailable(&self) -> bool {
        use io::ErrorKind::{
            NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StaleNetworkFileHandle,
            StorageFull,
        };
        match self {
            Error::NotADirectory { .. } => true,
            Error::Io { source, .. } => {
                self.is_exhaustion()
                    || matches!(
                        source.kind(),
                        NotFound
                            | PermissionDenied
                            | QuotaExceeded
                            | ReadOnlyFilesystem
                            | StaleNetworkFileHandle
                            | StorageFull
                    )
            }
            _ => false,
        }
    }
}

/// Attaches the action and the path to a system error.
pub(crate) trait IoContext<T> {
    fn during(self, action: &'static str, path: impl AsRef<Path>) -> Result<T>;
}

impl<T, E: Into<io::Error>> IoContext<T> for std::result::Result<T, E> {
    fn during(self, action: &'static str, path: impl AsRef<Path>) -> Result<T> {
        self.map_err(|source| Error::Io {
            action,
            path: path.as_ref().to_path_buf(),
            source: source.into(),
        })
    }
}
