//! The spool: mailboxes as directories, messages as files, and an index that follows them.
//!
//! This module is the only one that touches the mail directory. Its own order, from the outside in:
//! `mailbox` has every operation; `delivery` is a message on its way in (`temp` and `ids` are its
//! names before and after); `refresh` looks again (`diff` compares names with entries, `reading`
//! reads what is new); `save` and `sidecar` bring the index to disk; `state` and `index` are what is
//! known in memory; `freshness` says what a stamp proves; `dir` is the one place that passes names
//! to the operating system.

mod batch;
mod check;
mod delivery;
mod diff;
mod dir;
mod freshness;
mod ids;
mod index;
mod mailbox;
mod reading;
mod refresh;
mod save;
mod sidecar;
mod state;
mod stray;
mod temp;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock, TryLockError};
use std::time::{Duration, Instant};

pub use check::{CheckUp, Finding, FindingKind};
pub use delivery::Delivery;
pub use freshness::Timestamp;
pub use index::{Entry, Listing};
pub use mailbox::{Mailbox, Source};

use dir::Dir;
use freshness::{FsClock, Now, Scan};
use ids::ServerId;
use state::{State, lock};

use crate::error::{IoContext, Result};
use crate::names::{MailboxName, MessageId};

/// A directory of mailboxes.
///
/// Cloning is cheap, and all clones share what they know. Several processes may work on one
/// directory at once.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use spoolbox::{MailboxName, Options, Spool};
///
/// // Anybody may put a file there, by any means…
/// std::fs::create_dir(dir.path().join("bob"))?;
/// std::fs::write(dir.path().join("bob/hello.eml"), "Subject: dropped\n\nby hand\n")?;
///
/// // …and it is listed, without having been announced.
/// let spool = Spool::open(dir.path(), Options::default())?;
/// let bob = spool.mailbox(&MailboxName::parse("bob")?);
/// let listing = bob.list()?;
/// assert_eq!(listing.entries()[0].summary().subject, "dropped");
/// assert_eq!(bob.latest()?.id().as_str(), "hello");
///
/// // Marks survive in `bob/index.json`; nothing else depends on that file.
/// bob.mark_seen(bob.latest()?.id(), true)?;
/// spool.save_all();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Spool(Arc<Inner>);

/// Is told of every change.
pub type OnChange = Arc<dyn Fn(&Change) + Send + Sync>;

/// How a spool is to be opened.
#[derive(Clone)]
pub struct Options {
    /// Called after each change is on disk, mailbox by mailbox in order: for a message that was
    /// found as well as for one that was delivered. It must not block for long, and must not itself
    /// change the mailbox that it is told about.
    pub on_change: Option<OnChange>,
    /// No more of a message than this many bytes is taken apart. Its source is never cut.
    pub max_message: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            on_change: None,
            max_message: 256 * 1024 * 1024,
        }
    }
}

/// Something that happened to a mailbox.
#[derive(Debug, Clone)]
pub struct Change {
    /// Where it happened.
    pub mailbox: MailboxName,
    /// What it was.
    pub kind: ChangeKind,
}

/// What can happen to a mailbox.
#[derive(Debug, Clone)]
pub enum ChangeKind {
    /// A message came.
    Stored(Arc<Entry>),
    /// A message was rewritten, or its mark changed.
    Changed(Arc<Entry>),
    /// A message went.
    Deleted(MessageId),
    /// All messages went.
    Purged,
}

struct Inner {
    root: PathBuf,
    options: Options,
    mailboxes: RwLock<HashMap<MailboxName, Arc<State>>>,
    /// The names of all mailboxes, as the last look at the spool found them.
    names: Mutex<Option<(Scan, Vec<MailboxName>)>>,
    /// The state of the spool's directory that is known to be durable.
    synced: Mutex<Option<Scan>>,
    /// The greatest id that was given in a mailbox that has been forgotten since.
    floor: Mutex<Option<ServerId>>,
    /// Mailboxes whose sidecar is behind.
    dirty: Mutex<HashMap<MailboxName, Dirty>>,
    /// Names in the spool that are no mailboxes and have been told.
    strays: Mutex<HashSet<PathBuf>>,
}

/// After a save that failed, the next is tried this much later.
const RETRY: Duration = Duration::from_secs(10);

/// Since when a sidecar is behind, and when that was last made worse.
#[derive(Debug, Clone, Copy)]
struct Dirty {
    first: Instant,
    last: Instant,
}

impl Spool {
    /// Opens a directory as a spool. It must exist; nothing is read yet.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        let path = path.as_ref();
        let root = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        Dir::open(&root)?;
        Ok(Self(Arc::new(Inner {
            root,
            options,
            mailboxes: RwLock::default(),
            names: Mutex::default(),
            synced: Mutex::default(),
            floor: Mutex::default(),
            dirty: Mutex::default(),
            strays: Mutex::default(),
        })))
    }

    /// The spool's absolute path.
    pub fn path(&self) -> &Path {
        &self.0.root
    }

    /// The names of all mailboxes, ascending.
    pub fn mailboxes(&self) -> Result<Vec<MailboxName>> {
        let root = self.root()?;
        let began = Now::read();
        let stamp = root.stamp()?;
        let mut known = lock(&self.0.names);
        if let Some((scan, names)) = &*known
            && scan.covers(stamp, began)
        {
            return Ok(names.clone());
        }
        let mut names = Vec::new();
        for entry in walkdir::WalkDir::new(&self.0.root)
            .min_depth(1)
            .max_depth(1)
        {
            let entry = match entry {
                Ok(entry) => entry,
                // The spool itself cannot be read: that is not the same as being empty.
                Err(err) if err.depth() == 0 => {
                    let source = err
                        .into_io_error()
                        .unwrap_or_else(|| std::io::ErrorKind::Other.into());
                    return Err(source).during("read directory", &self.0.root);
                }
                // A name that is gone again, or that cannot be examined, is not a mailbox now.
                Err(_) => continue,
            };
            let name = entry.file_name().to_str().map(MailboxName::parse);
            match name {
                Some(Ok(name)) if entry.file_type().is_dir() => names.push(name),
                _ => self.name_stray(entry.path()),
            }
        }
        names.sort();
        let before = known.as_ref().map(|(scan, _)| scan);
        *known = Some((Scan::new(stamp, began, root.clock(), before), names.clone()));
        Ok(names)
    }

    /// A mailbox by its name, whether it is there or not.
    pub fn mailbox(&self, name: &MailboxName) -> Mailbox {
        let known = self
            .0
            .mailboxes
            .read()
            .unwrap_or_else(|e| e.into_inner())
            .get(name)
            .cloned();
        let state = known.unwrap_or_else(|| {
            let mut mailboxes = self.0.mailboxes.write().unwrap_or_else(|e| e.into_inner());
            let new = || {
                let path = self.0.root.join(name.as_str());
                let listened_to = self.0.options.on_change.is_some();
                Arc::new(State::new(
                    name.clone(),
                    path,
                    listened_to,
                    *lock(&self.0.floor),
                ))
            };
            mailboxes.entry(name.clone()).or_insert_with(new).clone()
        });
        Mailbox::new(self.clone(), state)
    }

    /// What the mailboxes that have been looked at hold: their number, messages and bytes.
    pub fn totals(&self) -> (usize, usize, u64) {
        let mailboxes = self.0.mailboxes.read().unwrap_or_else(|e| e.into_inner());
        let mut totals = (0, 0, 0u64);
        for state in mailboxes.values() {
            if state.exists.load(std::sync::atomic::Ordering::Relaxed) {
                let (messages, bytes) = state.read().index.totals();
                totals = (
                    totals.0 + 1,
                    totals.1 + messages,
                    totals.2.saturating_add(bytes),
                );
            }
        }
        totals
    }

    /// Whether the spool lies on a file system of this machine, so that every change in it is seen
    /// by this machine.
    pub fn is_local(&self) -> bool {
        self.root().is_ok_and(|root| root.clock() == FsClock::Local)
    }

    /// Whether there is anything to save.
    pub fn is_behind(&self) -> bool {
        !lock(&self.0.dirty).is_empty()
    }

    /// Whether this process may create mailboxes.
    pub fn is_writable(&self) -> bool {
        self.root().is_ok_and(|root| root.is_writable())
    }

    /// Whether there is a directory of exactly this name.
    pub fn has_mailbox(&self, name: &MailboxName) -> Result<bool> {
        Ok(dir::stamp_at(&self.0.root.join(name.as_str()))?.is_some())
    }

    /// Writes the sidecars that are due: of mailboxes that changed and are quiet now, or have been
    /// busy for too long. Meant to be called a few times a second; costs nothing when there is
    /// nothing to do.
    pub fn save_due(&self) {
        let now = Instant::now();
        let dirty: Vec<_> = lock(&self.0.dirty)
            .iter()
            .map(|(name, dirty)| (name.clone(), *dirty))
            .collect();
        for (name, dirty) in dirty {
            let mailbox = self.mailbox(&name);
            let due = match mailbox.state().saving.try_lock() {
                Ok(saved) => save::is_due(now, dirty, saved.cost, saved.finished),
                Err(TryLockError::Poisoned(_)) => true,
                Err(TryLockError::WouldBlock) => false, // Somebody is at it.
            };
            if due {
                self.save(&mailbox);
            }
        }
    }

    /// Writes every sidecar that is behind, now.
    pub fn save_all(&self) {
        let dirty: Vec<_> = lock(&self.0.dirty).keys().cloned().collect();
        for name in dirty {
            self.save(&self.mailbox(&name));
        }
    }

    /// A sidecar that cannot be written is a pity, not an error: it is told once, and tried again.
    fn save(&self, mailbox: &Mailbox) {
        lock(&self.0.dirty).remove(mailbox.name());
        let (through, durable) = {
            let known = mailbox.state().read();
            (known.generation, !known.unsaved_seen.is_empty())
        };
        if let Err(err) = mailbox.save(through, durable) {
            let mut saved = lock(&mailbox.state().saving);
            if !saved.complained {
                tracing::warn!(mailbox = %mailbox.name(), "the index stays in memory for now: {}", err.with_reason());
            }
            saved.complained = true;
            let later = Instant::now() + RETRY;
            lock(&self.0.dirty).insert(
                mailbox.name().clone(),
                Dirty {
                    first: later,
                    last: later,
                },
            );
        }
    }

    fn options(&self) -> &Options {
        &self.0.options
    }

    /// The spool's directory, opened anew: it may have been moved away and made again.
    fn root(&self) -> Result<Dir> {
        Dir::open(&self.0.root)
    }

    fn tell(&self, change: &Change) {
        if let Some(listener) = &self.0.options.on_change {
            listener(change);
        }
    }

    fn note_dirty(&self, state: &State) {
        let generation = state.read().generation;
        // Whoever is saving now may not have this change; better once too often.
        let behind = state
            .saving
            .try_lock()
            .map_or(true, |saved| saved.generation < generation);
        if behind {
            let now = Instant::now();
            let mut dirty = lock(&self.0.dirty);
            let entry = dirty.entry(state.name.clone()).or_insert(Dirty {
                first: now,
                last: now,
            });
            entry.last = now;
        }
    }

    /// Gives up a handle of a mailbox that is not there, and forgets the mailbox if it was the last.
    fn release(&self, handle: &mut Arc<State>) {
        let mut mailboxes = self.0.mailboxes.write().unwrap_or_else(|e| e.into_inner());
        let name = handle.name.clone();
        // Given up while the map is locked, so that of two who leave together the second sees it.
        *handle = Arc::new(State::new(name.clone(), PathBuf::new(), false, None));
        if let Some(state) = mailboxes.get(&name)
            && Arc::strong_count(state) == 1
            && !state.exists.load(std::sync::atomic::Ordering::Relaxed)
        {
            // Ids that were given here are not given again, should the mailbox come back.
            let claimed = *lock(&state.claim);
            let mut floor = lock(&self.0.floor);
            *floor = (*floor).max(claimed);
            mailboxes.remove(&name);
        }
    }

    /// Makes the names of the mailboxes durable, unless nothing came or went since that was done.
    fn sync_root(&self) -> Result<()> {
        let root = self.root()?;
        let began = Now::read();
        let stamp = root.stamp()?;
        let mut synced = lock(&self.0.synced);
        if synced.is_some_and(|scan| scan.covers(stamp, began)) {
            return Ok(());
        }
        root.sync()?;
        *synced = Some(Scan::new(stamp, began, root.clock(), synced.as_ref()));
        Ok(())
    }

    fn name_stray(&self, path: &Path) {
        const REMEMBERED: usize = 10_000;
        let mut strays = lock(&self.0.strays);
        if strays.len() < REMEMBERED && strays.insert(path.to_path_buf()) {
            tracing::warn!(
                name = ?path.file_name().unwrap_or_default(),
                "not a mailbox, left alone: mailboxes are directories in the spool, not links or files, with names \
                 that do not begin with a dot"
            );
        }
    }
}

impl fmt::Debug for Spool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spool").field(&self.0.root).finish()
    }
}
