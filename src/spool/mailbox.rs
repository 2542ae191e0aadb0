//! A mailbox: every operation, and the order of its steps.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, TryLockError};

use super::delivery::Delivery;
use super::diff::Depth;
use super::dir::{self, Dir, Opened};
use super::freshness::{FileStamp, Now, Timestamp};
use super::ids::ServerId;
use super::index::{Entry, Listing};
use super::reading::read_head;
use super::sidecar;
use super::state::{State, lock};
use super::{ChangeKind, Spool};
use crate::error::{Error, IoContext, Result};
use crate::message::{Message, Summary};
use crate::names::{MailboxName, MessageId};

/// One mailbox of a spool: a directory of messages.
///
/// A handle may be had for any name. A mailbox comes into being with its first delivery, or when
/// somebody makes its directory; until then it is empty, and asking creates nothing.
#[derive(Debug)]
pub struct Mailbox {
    spool: Spool,
    state: Arc<State>,
}

/// A message's bytes, as they lie on disk.
#[derive(Debug)]
pub struct Source {
    /// The open file.
    pub file: File,
    /// Its length when it was opened.
    pub size: u64,
}

impl Mailbox {
    pub(super) fn new(spool: Spool, state: Arc<State>) -> Self {
        Self { spool, state }
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    /// The mailbox's name.
    pub fn name(&self) -> &MailboxName {
        &self.state.name
    }

    /// The messages, ascending by the bytes of their ids.
    pub fn list(&self) -> Result<Arc<Listing>> {
        self.fresh()?;
        Ok(self.state.write().index.listing(&self.state.name))
    }

    /// The messages, if finding them out takes no more than one look at the directory's stamp; this
    /// neither reads the disk nor waits for anybody who does.
    pub fn list_at_once(&self) -> Option<Arc<Listing>> {
        let current = self.is_current().unwrap_or(false);
        current
            .then(|| self.state.read().index.current_listing())
            .flatten()
    }

    /// One message as a list shows it.
    pub fn entry(&self, id: &MessageId) -> Result<Arc<Entry>> {
        self.fresh()?;
        let entry = self.state.read().index.get(id).cloned();
        entry.ok_or_else(|| self.no_message(id))
    }

    /// The most recent message: the latest date, and of equal dates the greatest id.
    pub fn latest(&self) -> Result<Arc<Entry>> {
        self.fresh()?;
        let latest = self.state.read().index.latest().cloned();
        latest.ok_or_else(|| Error::Empty {
            mailbox: self.name().clone(),
        })
    }

    /// A message's exact bytes.
    pub fn source(&self, id: &MessageId) -> Result<Source> {
        let (file, stamp) = self.open_message(id)?;
        Ok(Source {
            file,
            size: stamp.size,
        })
    }

    /// A message taken apart, read from its file at this moment.
    pub fn message(&self, id: &MessageId) -> Result<(Entry, Message)> {
        let (file, stamp) = self.open_message(id)?;
        self.take_apart(id, file, stamp)
    }

    /// The same, if the message's file is not longer than `max`: what is longer takes longer.
    pub fn message_up_to(&self, id: &MessageId, max: u64) -> Result<Option<(Entry, Message)>> {
        let (file, stamp) = self.open_message(id)?;
        if stamp.size > max {
            return Ok(None);
        }
        self.take_apart(id, file, stamp).map(Some)
    }

    /// Whether somebody is reading the mailbox's directory at this moment.
    pub fn is_being_read(&self) -> bool {
        matches!(
            self.state.scanning.try_lock(),
            Err(TryLockError::WouldBlock)
        )
    }

    fn take_apart(&self, id: &MessageId, file: File, stamp: FileStamp) -> Result<(Entry, Message)> {
        let limit = self.spool.options().max_message;
        let mut raw = Vec::with_capacity(stamp.size.min(limit) as usize + 1);
        file.take(limit)
            .read_to_end(&mut raw)
            .during("read", self.state.path.join(id.file_name()))?;
        let message = Message::parse(&raw);
        let entry = Entry {
            id: id.clone(),
            stamp,
            dirent: stamp.inode,
            racy: false,
            summary: message.summary.clone(),
            seen: self.is_seen(id),
        };
        Ok((entry, message))
    }

    /// Begins to store a message. The mailbox's directory is made when there is none.
    pub fn deliver(&self) -> Result<Delivery> {
        Delivery::start(self.spool.mailbox(self.name()))
    }

    /// Sets or clears the mark that somebody has seen a message. The mark is on disk when this
    /// returns; calls that come while another's mark is being written are written together.
    pub fn mark_seen(&self, id: &MessageId, seen: bool) -> Result<()> {
        self.fresh()?;
        let dir = self.open_dir()?.ok_or_else(|| self.no_message(id))?;
        let on_disk = sidecar::stamp(&dir)?;
        let (through, changed) = {
            let mut known = self.state.write();
            if known.index.get(id).is_none() {
                return Err(self.no_message(id));
            }
            let changed = known.mark(id, seen).is_some();
            if changed {
                let generation = known.generation;
                known.unsaved_seen.insert(id.clone(), generation);
            } else if known.sidecar != on_disk || on_disk.is_none() {
                // The mark is set, but the file that held it is not there any more.
                known.generation += 1;
                let generation = known.generation;
                known.unsaved_seen.entry(id.clone()).or_insert(generation);
            }
            // Unchanged, but perhaps not saved yet by whoever changed it.
            (known.unsaved_seen.get(id).copied().unwrap_or(0), changed)
        };
        let saved = self.save(through, true);
        let mut known = self.state.write();
        match &saved {
            Err(_) if changed && known.unsaved_seen.get(id) == Some(&through) => {
                known.unsaved_seen.remove(id);
                known.mark(id, !seen);
            }
            Ok(()) if changed => {
                if let Some(entry) = known.index.get(id).cloned() {
                    known.tell(self.name(), ChangeKind::Changed(entry));
                }
            }
            _ => {}
        }
        drop(known);
        self.changed();
        saved
    }

    /// Removes a message: file first, index second. When this returns, it stays removed.
    pub fn remove(&self, id: &MessageId) -> Result<()> {
        self.know_before_telling()?;
        let dir = self.open_dir()?.ok_or_else(|| self.no_message(id))?;
        let name = id.file_name();
        // Whatever is not a readable message is not ours to remove.
        let Opened::File(..) = dir.open_file(&name)? else {
            return Err(self.no_message(id));
        };
        let window = self.state.window();
        if !dir.unlink(&name)? {
            return Err(self.no_message(id));
        }
        self.sync(&dir)?;
        let mut known = self.state.write();
        if known.loaded && !window.is_overtaken(&known, id) {
            known.forget(self.name(), id);
        }
        drop(known);
        drop(window);
        self.changed();
        Ok(())
    }

    /// Removes every message, and nothing else, and tells how many there were.
    pub fn purge(&self) -> Result<usize> {
        let listing = self.list()?;
        let Some(dir) = self.open_dir()? else {
            return Ok(0);
        };
        let window = self.state.window();
        let mut gone = Vec::with_capacity(listing.entries().len());
        let mut failure = None;
        for entry in listing.entries() {
            let name = entry.id.file_name();
            // It may have become something else since it was listed.
            match dir.file_stamp(&name).and_then(|stamp| match stamp {
                Some(_) => dir.unlink(&name),
                None => Ok(false),
            }) {
                Ok(true) => gone.push(entry.id.clone()),
                Ok(false) => {}
                Err(err) => {
                    failure = Some(err);
                    break;
                }
            }
        }
        if !gone.is_empty() {
            let synced = self.sync(&dir);
            let mut known = self.state.write();
            let still: Vec<_> = gone
                .iter()
                .filter(|id| !window.is_overtaken(&known, id))
                .cloned()
                .collect();
            known.forget_all(self.name(), &still);
            drop(known);
            failure = failure.or(synced.err());
        }
        drop(window);
        self.changed();
        failure.map_or(Ok(gone.len()), Err)
    }

    /// Looks at the directory and at every file's stamp, and brings the index up to date. Requests
    /// do as much of this as they need by themselves.
    pub fn refresh(&self) -> Result<()> {
        self.look(Depth::Stamps)
    }

    /// Brings the index up to date if the directory changed. With `stamps`, files that were rewritten
    /// in place are found as well, which costs a look at each.
    pub fn follow(&self, stamps: bool) -> Result<()> {
        self.fresh()?;
        if stamps {
            self.look_at_stamps()
        } else {
            Ok(())
        }
    }

    /// Brings the index up to date about one message that may have been rewritten in place.
    pub fn follow_message(&self, id: &MessageId) -> Result<()> {
        self.look_at_message(id)
    }

    fn fresh(&self) -> Result<()> {
        if self.is_current()? {
            Ok(())
        } else {
            self.look(Depth::Names)
        }
    }

    /// Whether the index says what the directory says.
    pub(super) fn is_current(&self) -> Result<bool> {
        let Some(stamp) = dir::stamp_at(&self.state.path)? else {
            return Ok(false);
        };
        let now = Now::read();
        Ok(self
            .state
            .read()
            .scan
            .is_some_and(|scan| scan.covers(stamp, now)))
    }

    /// The mark of a message, which is all that reading it by its id takes from the index.
    fn is_seen(&self, id: &MessageId) -> bool {
        // Only the first one after a start has to wait for the index. Trouble with other files is no
        // reason not to show this one.
        let loaded = self.state.read().loaded || self.fresh().is_ok();
        loaded
            && self
                .state
                .read()
                .index
                .get(id)
                .is_some_and(|entry| entry.seen)
    }

    /// Opens a message's file. The index is not asked: the file is the truth.
    fn open_message(&self, id: &MessageId) -> Result<(File, FileStamp)> {
        let dir = self.open_dir()?.ok_or_else(|| self.no_message(id))?;
        match dir.open_file(&id.file_name())? {
            Opened::File(file, stamp) => Ok((file, stamp)),
            Opened::Missing | Opened::NotAFile | Opened::Forbidden => Err(self.no_message(id)),
        }
    }

    /// Opens the mailbox's directory; `None` when there is none, or something else in its place.
    pub(super) fn open_dir(&self) -> Result<Option<Dir>> {
        match self.spool.root()?.child(self.name().as_str()) {
            Err(Error::NotADirectory { path }) => {
                self.spool.name_stray(&path);
                Ok(None)
            }
            other => other,
        }
    }

    /// Opens the mailbox's directory, and makes it when there is none.
    pub(super) fn open_or_make(&self) -> Result<(Dir, bool)> {
        let root = self.spool.root()?;
        let mut made = false;
        loop {
            if let Some(dir) = root.child(self.name().as_str())? {
                return Ok((dir, made));
            }
            made = root.make_child(self.name().as_str())?;
        }
    }

    /// Removes a directory that was made for a delivery that failed, if nothing has come into it.
    pub(super) fn unmake(&self) {
        if let Ok(root) = self.spool.root() {
            root.remove_empty_child(self.name().as_str());
        }
    }

    /// Whoever listens is told of what comes and goes from here on, so what is there must be known.
    pub(super) fn know_before_telling(&self) -> Result<()> {
        let known = self.state.read();
        if known.listened_to && !known.loaded {
            drop(known);
            self.fresh()?;
        }
        Ok(())
    }

    /// Gives a finished temporary file its id. The message exists from the link on; what fails
    /// after it is undone.
    pub(super) fn publish(
        &self,
        dir: &Dir,
        temp: &str,
        file: &File,
        floor: ServerId,
    ) -> Result<MessageId> {
        let window = self.state.window();
        let id = self.claim(dir, temp, floor)?;
        let name = id.file_name();
        let settled = dir
            .unlink(temp)
            .and_then(|_| self.sync(dir))
            .and_then(|()| self.spool.sync_root());
        if let Err(err) = settled {
            let _ = dir.unlink(&name);
            let _ = dir.sync();
            return Err(err);
        }
        self.state.exists.store(true, Relaxed);
        // Were it not to be read back, the next scan would index it: it is stored all the same.
        if let Ok(entry) = self.entry_of(file, &id) {
            let mut known = self.state.write();
            if known.loaded && !window.is_overtaken(&known, &id) {
                known.put(self.name(), Arc::new(entry));
            }
        }
        drop(window);
        self.changed();
        Ok(id)
    }

    /// Links the temporary file to the first free id after all that came before.
    fn claim(&self, dir: &Dir, temp: &str, floor: ServerId) -> Result<MessageId> {
        let mut last = lock(&self.state.claim);
        let now = Timestamp::now();
        // A process that knows the index knows the greatest id. To one that does not, the time of
        // the directory's last change stands in for it: to know better it would have to read every
        // name, and a delivery must not cost more in a large mailbox.
        let greatest = self.state.read().index.greatest();
        let mut next = ServerId::after(now, [Some(floor), greatest, *last].into_iter().flatten());
        loop {
            let id = MessageId::parse(&next.to_string())?;
            if dir.link(temp, &id.file_name())? {
                *last = Some(next);
                return Ok(id);
            }
            // Another process is at work in the same second.
            next = next.next();
        }
    }

    fn entry_of(&self, file: &File, id: &MessageId) -> std::io::Result<Entry> {
        use std::io::Seek;
        let mut reader = file;
        reader.rewind()?;
        let stamp = FileStamp::of(&rustix::fs::fstat(file)?);
        Ok(Entry {
            id: id.clone(),
            stamp,
            dirent: stamp.inode,
            racy: false,
            summary: Summary::parse(&read_head(file)?),
            seen: false,
        })
    }

    fn sync(&self, dir: &Dir) -> Result<()> {
        let stamp = dir.stamp()?;
        self.state
            .sync
            .run((stamp.device, stamp.inode), || dir.sync())
    }

    /// To be called, without locks, after the index changed: tells who listens, in order, and
    /// remembers that the sidecar has to follow.
    pub(super) fn changed(&self) {
        if self.state.read().listened_to {
            let _in_order = lock(&self.state.telling);
            let untold = std::mem::take(&mut self.state.write().untold);
            untold.iter().for_each(|change| self.spool.tell(change));
        }
        self.spool.note_dirty(&self.state);
    }

    fn no_message(&self, id: &MessageId) -> Error {
        Error::NoMessage {
            mailbox: self.name().clone(),
            id: id.clone(),
        }
    }
}

impl Drop for Mailbox {
    /// What is remembered of a name under which there is no mailbox goes with its last handle.
    fn drop(&mut self) {
        if !self.state.exists.load(Relaxed) {
            self.spool.release(&mut self.state);
        }
    }
}
