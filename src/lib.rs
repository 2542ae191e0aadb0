//! A mail spool that you can read with `ls` and over HTTP at once.

#![forbid(unsafe_code)]

mod error;
pub mod message;
mod names;

pub use error::{Error, Result};
pub use message::{Attachment, Headers, Message, Summary};
pub use names::{LATEST, MailboxName, MessageId, NameError};
