//! What the process knows of one mailbox, and the locks around it.
//!
//! The locks, none of which is ever held while another thread's I/O is awaited but for the thing
//! that it serialises:
//!
//! - `scanning` lets one thread at a time look at the directory, so that a burst of requests after a
//!   change costs one scan;
//! - `known` guards the index itself. It is held for look-ups and insertions in memory only, never
//!   across a system call: reading a message by its id never waits for a scan;
//! - `claim` makes ids ascend in the order of publication; it is held for one `link`;
//! - `saving` lets one thread at a time write the sidecar; those who wait share the next save, as
//!   those who wait for `sync` share the next fsync;
//! - `telling` is held while changes are told, so that they are told in order.
//!
//! They are std locks because nothing under them awaits. A panic under one of them leaves plain data
//! that the next scan corrects, so poisoning is passed over.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::batch::Batch;
use super::freshness::{FileStamp, Scan};
use super::ids::ServerId;
use super::index::{Entry, Index};
use super::save::Saved;
use super::stray::Stray;
use super::{Change, ChangeKind};
use crate::names::{MailboxName, MessageId};

/// One mailbox of this process.
#[derive(Debug)]
pub struct State {
    pub name: MailboxName,
    pub path: PathBuf,
    /// The directory was there when we last looked.
    pub exists: AtomicBool,
    pub scanning: Mutex<()>,
    pub known: RwLock<Known>,
    /// The last id that this process published here.
    pub claim: Mutex<Option<ServerId>>,
    /// Shares the fsyncs of the directory.
    pub sync: Batch,
    pub saving: Mutex<Saved>,
    pub telling: Mutex<()>,
}

/// The index with all that must change together with it.
#[derive(Debug, Default)]
pub struct Known {
    pub index: Index,
    /// The sidecar has been taken over and the names compared.
    pub loaded: bool,
    pub scan: Option<Scan>,
    /// The sidecar that we last read or wrote.
    pub sidecar: Option<FileStamp>,
    /// Counts the changes; a sidecar of this generation holds them all.
    pub generation: u64,
    /// `seen` marks that were set here and are not on disk yet, with their generation.
    pub unsaved_seen: HashMap<MessageId, u64>,
    /// Strays that have been named in the log.
    pub strays: HashMap<Vec<u8>, Stray>,
    /// Changes that have not been told yet; kept only when somebody listens.
    pub untold: Vec<Change>,
    pub listened_to: bool,
    /// Counts what is recorded while a window is open.
    moment: u64,
    /// The moments at which the open windows were opened.
    windows: Vec<u64>,
    /// When ids were last recorded, for as long as an open window may care.
    touched: HashMap<MessageId, u64>,
}

impl State {
    /// `floor` is an id that new ones must come after.
    pub fn new(
        name: MailboxName,
        path: PathBuf,
        listened_to: bool,
        floor: Option<ServerId>,
    ) -> Self {
        Self {
            name,
            path,
            exists: AtomicBool::new(false),
            scanning: Mutex::default(),
            known: RwLock::new(Known {
                listened_to,
                ..Known::default()
            }),
            claim: Mutex::new(floor),
            sync: Batch::default(),
            saving: Mutex::default(),
            telling: Mutex::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.known
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Opens a window; see [`Window`].
    pub fn window(&self) -> Window<'_> {
        let mut known = self.write();
        let opened = known.moment;
        known.windows.push(opened);
        drop(known);
        Window {
            state: self,
            opened,
        }
    }
}

/// The time between looking at the files and writing down what was seen.
///
/// While windows are open, it is noted when the index last learnt about an id. Whoever opened a
/// window leaves alone what was recorded since: somebody else knows better. This keeps a scan from
/// resurrecting what was deleted meanwhile, and tells every change exactly once.
#[derive(Debug)]
pub struct Window<'a> {
    state: &'a State,
    opened: u64,
}

impl Window<'_> {
    /// Whether somebody recorded this id since the window was opened.
    pub fn is_overtaken(&self, known: &Known, id: &MessageId) -> bool {
        known.touched.get(id).is_some_and(|at| *at > self.opened)
    }
}

impl Drop for Window<'_> {
    fn drop(&mut self) {
        let mut known = self.state.write();
        if let Some(at) = known
            .windows
            .iter()
            .position(|&opened| opened == self.opened)
        {
            known.windows.swap_remove(at);
        }
        match known.windows.iter().min().copied() {
            None => known.touched = HashMap::new(),
            Some(oldest) => known.touched.retain(|_, at| *at > oldest),
        }
    }
}

impl Known {
    /// The files of messages that could not be read.
    pub fn unreadable(&self) -> Vec<String> {
        let names = self
            .strays
            .iter()
            .filter(|(_, why)| **why == Stray::Unreadable);
        names
            .filter_map(|(name, _)| String::from_utf8(name.clone()).ok())
            .collect()
    }

    /// Records a message that is new or has changed.
    pub fn put(&mut self, mailbox: &MailboxName, entry: Arc<Entry>) {
        let known = self.index.get(&entry.id).is_some();
        self.index.insert(entry.clone());
        self.note(&entry.id);
        self.tell(
            mailbox,
            if known {
                ChangeKind::Changed(entry)
            } else {
                ChangeKind::Stored(entry)
            },
        );
    }

    /// Records that a message is gone.
    pub fn forget(&mut self, mailbox: &MailboxName, id: &MessageId) {
        if self.index.remove(id).is_some() {
            self.tell(mailbox, ChangeKind::Deleted(id.clone()));
        }
        self.unsaved_seen.remove(id);
        // Noted even when it was unknown: a scan may be about to add it.
        self.note(id);
    }

    /// Records that messages went together.
    pub fn forget_all(&mut self, mailbox: &MailboxName, ids: &[MessageId]) {
        for id in ids {
            self.index.remove(id);
            self.unsaved_seen.remove(id);
            self.note(id);
        }
        self.tell(mailbox, ChangeKind::Purged);
    }

    /// Sets a mark in memory; returns the changed entry.
    pub fn mark(&mut self, id: &MessageId, seen: bool) -> Option<Arc<Entry>> {
        let entry = self.index.get(id)?;
        if entry.seen == seen {
            return None;
        }
        let entry = Arc::new(Entry {
            seen,
            ..Entry::clone(entry)
        });
        self.index.insert(entry.clone());
        self.generation += 1;
        Some(entry)
    }

    pub fn tell(&mut self, mailbox: &MailboxName, kind: ChangeKind) {
        if self.listened_to {
            self.untold.push(Change {
                mailbox: mailbox.clone(),
                kind,
            });
        }
    }

    fn note(&mut self, id: &MessageId) {
        self.generation += 1;
        if !self.windows.is_empty() {
            self.moment += 1;
            self.touched.insert(id.clone(), self.moment);
        }
    }
}

/// Locks, and passes over the poison of a panic elsewhere.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
