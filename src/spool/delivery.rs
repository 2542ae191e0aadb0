//! A message on its way in: temporary file, fsync, exclusive link, fsync of the directory.
//!
//! The message exists from the link on. A crash before it leaves a temporary file that a later
//! refresh removes; a crash after it leaves a complete message, with or without the temporary name.
//! What a crash can lose is only what was never reported as stored.

use std::fs::File;
use std::io::{self, Write};

use super::dir::Dir;
use super::ids::ServerId;
use super::mailbox::Mailbox;
use super::temp::TempName;
use crate::error::{IoContext, Result};
use crate::names::MessageId;

/// A message that is being written into a mailbox.
///
/// Write its bytes, then [`commit`](Delivery::commit). Dropping it before that aborts the delivery
/// and leaves nothing behind.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use std::io::Write;
/// use spoolbox::{MailboxName, Options, Spool};
///
/// let spool = Spool::open(dir.path(), Options::default())?;
/// let mailbox = spool.mailbox(&MailboxName::parse("alice")?);
/// let mut delivery = mailbox.deliver()?;
/// delivery.write_all(b"Subject: hello\n\nHi Alice\n")?;
/// let id = delivery.commit()?;
/// assert_eq!(mailbox.message(&id)?.1.summary.subject, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Delivery {
    mailbox: Mailbox,
    dir: Dir,
    file: File,
    temp: TempName,
    /// When the directory was last changed before this delivery began.
    floor: ServerId,
    /// The mailbox's directory was made for this delivery.
    made: bool,
    prepared: bool,
    published: bool,
}

impl Delivery {
    pub(super) fn start(mailbox: Mailbox) -> Result<Self> {
        // Another delivery that failed may remove the directory between our steps: then again.
        let mut tries = 0;
        loop {
            let (dir, made) = mailbox.open_or_make()?;
            mailbox.know_before_telling()?;
            let floor = ServerId::at(dir.stamp()?.mtime);
            let temp = TempName::next();
            match dir.create(&temp.to_string()) {
                Ok(file) => {
                    // Shows other processes that somebody is at work on it.
                    super::dir::lock_file(&file);
                    return Ok(Self {
                        mailbox,
                        dir,
                        file,
                        temp,
                        floor,
                        made,
                        prepared: false,
                        published: false,
                    });
                }
                Err(err)
                    if tries < 8
                        && err
                            .io()
                            .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
                {
                    tries += 1
                }
                Err(err) => {
                    if made {
                        mailbox.unmake();
                    }
                    return Err(err);
                }
            }
        }
    }

    /// Makes the bytes durable, so that what is left to [`commit`](Self::commit) is quick and
    /// hardly fails. Calling it is optional.
    pub fn prepare(&mut self) -> Result<()> {
        if !self.prepared {
            self.file
                .sync_all()
                .during("sync", self.dir.path().join(self.temp.to_string()))?;
            self.prepared = true;
        }
        Ok(())
    }

    /// Publishes the message under a new id. When this returns, the message is on disk; when it
    /// fails, nothing of it is left.
    pub fn commit(mut self) -> Result<MessageId> {
        self.prepare()?;
        let id = self
            .mailbox
            .publish(&self.dir, &self.temp.to_string(), &self.file, self.floor)?;
        self.published = true;
        Ok(id)
    }
}

impl Write for Delivery {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.prepared = false;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.published {
            let _ = self.dir.unlink(&self.temp.to_string());
            if self.made {
                self.mailbox.unmake();
            }
        }
    }
}
