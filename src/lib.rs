//! A mail spool that you can read with `ls` and over HTTP at once.
//!
//! Each mailbox is a directory of `<id>.eml` files plus a sidecar `index.json`; a server answers the
//! Inbucket REST API v1 over those files. This page is the architecture: what is promised, what the
//! code relies on, and where things are. As a library, start at [`Spool`].
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use std::io::Write;
//! use spoolbox::{MailboxName, Options, Spool};
//!
//! let spool = Spool::open(dir.path(), Options::default())?;
//! let alice = spool.mailbox(&MailboxName::parse("alice")?);
//!
//! let mut delivery = alice.deliver()?;
//! write!(delivery, "From: bob@example.com\nSubject: lunch?\n\nAt noon.\n")?;
//! let id = delivery.commit()?; // on disk, or an error
//!
//! for entry in alice.list()?.entries() {
//!     println!("{} {} {}", entry.id(), entry.summary().from, entry.summary().subject);
//! }
//! let (_, message) = alice.message(&id)?;
//! assert_eq!(message.text, "At noon.\n");
//! alice.remove(&id)?;
//! # Ok(())
//! # }
//! ```
//!
//! # On disk
//!
//! ```text
//! spool/
//!   alice/
//!     20261114T235612-0001.eml     stored by the server
//!     welcome.eml                  dropped by hand: its id is `welcome`
//!     index.json                   the sidecar: a cache
//!     .spoolbox-<host>-<pid>-<n>.tmp    a delivery in progress
//! ```
//!
//! A message's `date` is its file's mtime and its `size` the file's length; all else is in the
//! message. Whatever is not a regular file called `<id>.eml` is a stray: never listed, served,
//! followed or deleted, and named in the log with what to do about it.
//!
//! # Invariants
//!
//! 1. Files are the truth; the index is a cache.
//! 2. Only the `spool` module touches the mail directory; every caller enters by [`Mailbox`], and
//!    every name from outside is resolved by `policy::Naming`. There is no second door.
//! 3. A drop is visible to the very next request. A request stats the mailbox's directory and
//!    refreshes when it changed; `spool::freshness` says when an unchanged stamp proves anything.
//!    No watcher is needed for this.
//! 4. A watch event is a hint to look again (at a message, a mailbox, or everything), never a
//!    description of what changed. Overflow, an error or a new directory means: look at everything.
//! 5. Success is reported after the data is durable, never before. A failed delivery leaves no
//!    trace and says so.
//! 6. Nothing a sender or another process puts into the spool can make the server panic, hang, grow
//!    without bound, leave the spool's directory, or hide other mail. Parsing is total.
//! 7. `spool`, `message`, `names` and `error` know nothing of tokio, warp, sockets, environment or
//!    configuration.
//! 8. Only `http::model` knows the wire JSON, only `spool::sidecar` the sidecar's.
//! 9. A mailbox's lock is never held across `.await` or while a peer's bytes are awaited. Reading a
//!    message by its id does no mailbox-wide work; of the index it asks one mark, under a lock that
//!    nobody holds across a system call. (The first request for a mailbox after a start loads its
//!    sidecar.)
//! 10. Several processes may share one spool: ids are claimed with an exclusive link, the sidecar is
//!     replaced by rename and never trusted blindly, and marks are merged before it is replaced.
//! 11. Paths are opened relative to directory handles, without following links and without
//!     blocking, and checked to be regular files after opening (`spool::dir`).
//!
//! # The code
//!
//! Dependencies point strictly down this table.
//!
//! | module | what it is |
//! |---|---|
//! | [`cli`] | subcommands and flags, exit codes |
//! | `server` | `run(config, shutdown)`: the one wiring function |
//! | `check` | the check-up, for people and for programs |
//! | `config` | settings, checked once |
//! | `http` | the edge (connections), routes, handlers, wire JSON, error → status |
//! | `follow` | keeps the index up to date where nobody asks: by events, or by looking |
//! | `watch` | notify → hints, merged |
//! | `policy` | a name or address as given → a mailbox's name |
//! | `task` | the one place that moves blocking work off the async threads |
//! | `spool` | [`Spool`], [`Mailbox`], [`Delivery`], the index and its sidecar, refresh, freshness |
//! | [`message`] | bytes → [`Summary`] or [`Message`]; pure and total |
//! | `error` | [`Error`]: the path and the operation |
//! | `names` | [`MailboxName`], [`MessageId`]: parse or refuse |
//!
//! # Known limits
//!
//! - Ids ascend within a mailbox even when the clock steps back, as long as the process knows the
//!   index, as a server does. `deliver` does not read the index or the names (it must not cost more in
//!   a large mailbox); it goes by the time of the directory's last change, so after a step back the
//!   order of its ids may be off until the clock has caught up. No id is ever given twice.
//! - A message that is rewritten in place, under the same inode, reaches lists with the watcher's
//!   hint, well within a second. Where there are no events (network file systems), it does so when the
//!   server next looks at the files' stamps, which it does as often as their number allows: within a
//!   second or so for thousands. `GET` of the message is right at once.
//! - A connection notes what it does in two atomics and no timer, so its limits are kept to within a
//!   quarter of a second.
//!
//! # Deliberately absent
//!
//! - A database, and any state outside the spool's directory.
//! - Recursive removal of directories.
//! - A cache of parsed messages: `GET` reads the file, and so is always right.
//! - Directory handles that are kept open: the spool may be moved away and made again, and ten
//!   thousand mailboxes must not cost ten thousand descriptors.
//! - A tree of warp filters: one pure function reads the path, so that a name is decoded once and a
//!   looser route can never answer what a stricter one refused.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod check;
pub mod cli;
mod config;
mod error;
mod follow;
mod http;
pub mod message;
mod names;
mod policy;
mod server;
mod spool;
mod task;
mod watch;

pub use error::{Error, Result};
pub use message::{Attachment, Headers, Message, Summary};
pub use names::{LATEST, MailboxName, MessageId, NameError};
pub use spool::{
    Change, ChangeKind, CheckUp, Delivery, Entry, Finding, FindingKind, Listing, Mailbox, OnChange,
    Options, Source, Spool, Timestamp,
};
