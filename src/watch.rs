//! Hints from the file system: something happened here, look again.
//!
//! A hint is never believed to say *what* happened. Whatever notify reports, or fails to report
//! (an overflow, an error, a directory that is new), comes down to a place to look at, and at worst
//! the place is everything. Hints that come together are merged.
//!
//! Each directory is watched by itself, the spool and every mailbox: so that we know which are
//! watched, and notice when the system's limit is reached.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind};
use notify::{Config, ErrorKind, Event, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::names::{MailboxName, MessageId};

/// Hints that come within this time are one.
const MERGE: Duration = Duration::from_millis(40);

/// More hints for single messages of a mailbox than this are a hint for the mailbox.
const MESSAGES_MAX: usize = 64;

/// Places to look at again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hints {
    /// Something was not reported: any file may have changed.
    pub lost: bool,
    /// The spool's own directory is in question.
    pub everything: bool,
    /// Mailboxes whose own directory came, went or was renamed.
    pub directories: BTreeSet<MailboxName>,
    /// These mailboxes, and in them these messages even if the mailbox's directory did not change.
    pub mailboxes: BTreeMap<MailboxName, Messages>,
}

/// Messages that may have been rewritten in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Messages {
    /// These.
    Some(BTreeSet<MessageId>),
    /// Too many to name.
    All,
}

impl Hints {
    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        !self.lost && !self.everything && self.directories.is_empty() && self.mailboxes.is_empty()
    }

    /// Takes up other hints.
    pub fn merge(&mut self, other: Hints) {
        self.lost |= other.lost;
        self.everything |= other.everything;
        self.directories.extend(other.directories);
        for (name, messages) in other.mailboxes {
            match messages {
                Messages::All => {
                    self.mailboxes.insert(name, Messages::All);
                }
                Messages::Some(ids) if ids.is_empty() => self.mailbox(name, None),
                Messages::Some(ids) => ids
                    .into_iter()
                    .for_each(|id| self.mailbox(name.clone(), Some(id))),
            }
        }
    }

    fn mailbox(&mut self, name: MailboxName, message: Option<MessageId>) {
        let messages = self
            .mailboxes
            .entry(name)
            .or_insert(Messages::Some(BTreeSet::new()));
        if let (Messages::Some(some), Some(id)) = (&mut *messages, message) {
            some.insert(id);
            if some.len() > MESSAGES_MAX {
                *messages = Messages::All;
            }
        }
    }

    /// Takes up what an event hints at.
    fn add(&mut self, root: &Path, event: &Event) {
        if event.need_rescan() {
            self.lost = true;
            return;
        }
        if is_our_own_reading(event.kind) {
            return;
        }
        if event.paths.is_empty() {
            self.lost = true;
        }
        for path in &event.paths {
            let Ok(inside) = path.strip_prefix(root) else {
                self.everything = true; // The spool has another name now.
                continue;
            };
            let mut parts = inside.iter().map(|part| part.to_str());
            match (parts.next(), parts.next()) {
                // A directory that came, went or was renamed may hold anything.
                (None, _) => self.everything = true,
                (Some(name), None) if concerns_names(event.kind) => {
                    self.directories
                        .extend(name.and_then(|name| MailboxName::parse(name).ok()));
                }
                (Some(_), None) => {}
                (Some(Some(mailbox)), Some(file)) => {
                    let Ok(mailbox) = MailboxName::parse(mailbox) else {
                        continue;
                    };
                    // Temporary files and what people hide is no mail, and no reason to look.
                    match file {
                        Some(hidden) if hidden.starts_with('.') => {}
                        file => {
                            let id = file.and_then(MessageId::of_file).and_then(Result::ok);
                            let rewritten = !concerns_names(event.kind) || created(event.kind);
                            self.mailbox(mailbox, id.filter(|_| rewritten));
                        }
                    }
                }
                (Some(None), Some(_)) => {}
            }
        }
    }
}

/// Reading is no change; without this the server would wake itself.
fn is_our_own_reading(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// Whether names came or went, which a directory's stamp tells as well.
fn concerns_names(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::Create(_) | EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))
    ) || matches!(kind, EventKind::Any | EventKind::Other)
}

fn created(kind: EventKind) -> bool {
    matches!(kind, EventKind::Create(CreateKind::File | CreateKind::Any))
}

/// Why watching is not possible, in words for the log.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The system's limit of watches is reached.
    #[error(
        "the system allows no more watches (raise it with `sysctl fs.inotify.max_user_watches=N`; \
         there is one for each mailbox)"
    )]
    OutOfWatches,
    /// The system's limit of watchers is reached.
    #[error(
        "the system allows no more watchers (raise it with `sysctl fs.inotify.max_user_instances=N`)"
    )]
    OutOfWatchers,
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl From<notify::Error> for WatchError {
    fn from(err: notify::Error) -> Self {
        match err.kind {
            ErrorKind::MaxFilesWatch => WatchError::OutOfWatches,
            // ENOSPC is how inotify says the same.
            ErrorKind::Io(ref io) if io.raw_os_error() == Some(28) => WatchError::OutOfWatches,
            ErrorKind::Io(ref io) if io.raw_os_error() == Some(24) => WatchError::OutOfWatchers,
            _ => WatchError::Other(err.to_string()),
        }
    }
}

/// Watches a spool and its mailboxes.
pub struct Watcher {
    root: PathBuf,
    inner: RecommendedWatcher,
    events: Receiver<notify::Result<Event>>,
    /// What is watched under each name: another directory may come to have the name.
    watched: HashMap<MailboxName, Identity>,
    root_identity: Identity,
}

impl Watcher {
    /// Begins to watch a spool's own directory. The mailboxes are for [`follow`](Self::follow).
    pub fn new(root: &Path) -> Result<Self, WatchError> {
        let (sender, events) = mpsc::channel();
        let mut inner = RecommendedWatcher::new(
            move |event: notify::Result<Event>| {
                // What we do ourselves by reading is most of what there is.
                if !event
                    .as_ref()
                    .is_ok_and(|event| is_our_own_reading(event.kind) && !event.need_rescan())
                {
                    let _ = sender.send(event);
                }
            },
            Config::default(),
        )?;
        inner.watch(root, RecursiveMode::NonRecursive)?;
        Ok(Self {
            root_identity: identity(root, true).unwrap_or((0, 0, None)),
            root: root.to_path_buf(),
            inner,
            events,
            watched: HashMap::new(),
        })
    }

    /// Whether another directory has taken the place of the one that is watched.
    pub fn is_lost(&self) -> bool {
        identity(&self.root, true) != Some(self.root_identity)
    }

    /// Watches these mailboxes and no others; with `anew`, also those that are watched already. To be
    /// followed by a look at each that is new, since what happened before it was watched is not
    /// reported.
    pub fn follow(&mut self, names: &[MailboxName], anew: bool) -> Result<(), WatchError> {
        let path = |name: &MailboxName| self.root.join(name.as_str());
        let now: HashMap<&MailboxName, Identity> = names
            .iter()
            .filter_map(|name| Some((name, identity(&path(name), false)?)))
            .collect();
        let gone = self
            .watched
            .iter()
            .filter(|(name, id)| anew || now.get(name) != Some(id));
        let gone: BTreeSet<_> = gone.map(|(name, _)| name.clone()).collect();
        let new: Vec<_> = now.into_keys().cloned().collect();
        self.doubt(&gone);
        self.renew(new)
    }

    /// Watches those of these mailboxes that are there, and gives up those that are not.
    pub fn renew(
        &mut self,
        names: impl IntoIterator<Item = MailboxName>,
    ) -> Result<(), WatchError> {
        let mut there = BTreeMap::new();
        for name in names {
            let path = self.root.join(name.as_str());
            let now = identity(&path, false);
            // A directory that was renamed is watched under its old name still, and giving that up
            // would give up its new name too: so first away with all the old.
            if self.watched.get(&name) != now.as_ref() && self.watched.remove(&name).is_some() {
                let _ = self.inner.unwatch(&path);
            }
            if let Some(now) = now {
                there.insert(name, (path, now));
            }
        }
        for (name, (path, now)) in there {
            if self.watched.contains_key(&name) {
                continue;
            }
            match self
                .inner
                .watch(&path, RecursiveMode::NonRecursive)
                .map_err(WatchError::from)
            {
                Ok(()) => {
                    self.watched.insert(name, now);
                }
                Err(WatchError::OutOfWatches) => return Err(WatchError::OutOfWatches),
                // Gone again, or not for us to read: the others are watched all the same.
                Err(err) => tracing::debug!(mailbox = %name, "cannot watch: {err}"),
            }
        }
        Ok(())
    }

    /// Forgets which of these are watched, so that they are watched anew.
    pub fn doubt(&mut self, names: &BTreeSet<MailboxName>) {
        for name in names {
            if self.watched.remove(name).is_some() {
                let _ = self.inner.unwatch(&self.root.join(name.as_str()));
            }
        }
    }

    /// Waits for hints, up to `patience`; what comes together is given together.
    pub fn wait(&mut self, patience: Duration) -> Hints {
        let mut hints = Hints::default();
        let mut deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) => {
                    let was_empty = hints.is_empty();
                    match event {
                        Ok(event) => hints.add(&self.root, &event),
                        Err(err) => {
                            tracing::debug!("the watcher reports an error: {err}");
                            hints.lost = true;
                        }
                    }
                    if was_empty && !hints.is_empty() {
                        deadline = deadline.min(Instant::now() + MERGE);
                    }
                }
                Err(RecvTimeoutError::Timeout) => return hints,
                Err(RecvTimeoutError::Disconnected) => {
                    // The watcher's thread is gone; whoever waits will find that out by looking.
                    std::thread::sleep(left);
                    hints.lost = true;
                    return hints;
                }
            }
        }
    }
}

/// Which directory it is: file systems give a number again as soon as it is free, so when it was
/// made belongs to it, where that is known.
type Identity = (u64, u64, Option<SystemTime>);

/// Which directory a path leads to. The spool itself may be behind a link, a mailbox never is.
fn identity(path: &Path, follow: bool) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let data = if follow {
        std::fs::metadata(path)
    } else {
        std::fs::symlink_metadata(path)
    };
    let data = data.ok().filter(|data| data.is_dir())?;
    Some((data.dev(), data.ino(), data.created().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use notify::event::{DataChange, Flag, MetadataKind, RemoveKind, RenameMode};

    fn hints(events: &[(EventKind, &str)]) -> Hints {
        let mut hints = Hints::default();
        for (kind, path) in events {
            hints.add(
                Path::new("/spool"),
                &Event::new(*kind).add_path(Path::new("/spool").join(path)),
            );
        }
        hints
    }

    fn some(ids: &[&str]) -> Messages {
        Messages::Some(ids.iter().map(|id| MessageId::parse(id).unwrap()).collect())
    }

    fn mailbox(hints: &Hints) -> Option<&Messages> {
        hints.mailboxes.get(&MailboxName::parse("a").unwrap())
    }

    const WRITTEN: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const CREATED: EventKind = EventKind::Create(CreateKind::File);
    const REMOVED: EventKind = EventKind::Remove(RemoveKind::File);
    const RENAMED: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    #[test]
    fn what_happens_to_messages_hints_at_them() {
        assert_eq!(
            mailbox(&hints(&[(WRITTEN, "a/m.eml")])),
            Some(&some(&["m"]))
        );
        assert_eq!(
            mailbox(&hints(&[(CREATED, "a/m.eml"), (WRITTEN, "a/n.eml")])),
            Some(&some(&["m", "n"]))
        );
        let changed = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        assert_eq!(
            mailbox(&hints(&[(changed, "a/m.eml")])),
            Some(&some(&["m"]))
        );
        let dated = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        assert_eq!(mailbox(&hints(&[(dated, "a/m.eml")])), Some(&some(&["m"])));
        // The directory's stamp tells of these.
        assert_eq!(
            mailbox(&hints(&[(REMOVED, "a/m.eml"), (RENAMED, "a/n.eml")])),
            Some(&some(&[]))
        );
        assert_eq!(
            mailbox(&hints(&[(RENAMED, "a/index.json")])),
            Some(&some(&[]))
        );
        let many: Vec<_> = (0..100).map(|n| (WRITTEN, format!("a/m{n}.eml"))).collect();
        let many: Vec<_> = many
            .iter()
            .map(|(kind, path)| (*kind, path.as_str()))
            .collect();
        assert_eq!(mailbox(&hints(&many)), Some(&Messages::All));
    }

    #[test]
    fn our_own_reading_and_temporary_files_hint_at_nothing() {
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        assert!(hints(&[(opened, "a/m.eml"), (read, "a/m.eml"), (opened, "a")]).is_empty());
        assert!(hints(&[(CREATED, "a/.spoolbox-h-1-2.tmp"), (REMOVED, "a/.x")]).is_empty());
        assert!(
            hints(&[(
                EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any)),
                "a"
            )])
            .is_empty()
        );
    }

    #[test]
    fn directories_and_trouble_hint_at_more() {
        let directory = |kind| hints(&[(kind, "a")]).directories.len();
        assert_eq!(directory(EventKind::Create(CreateKind::Folder)), 1);
        assert_eq!(directory(EventKind::Remove(RemoveKind::Folder)), 1);
        assert_eq!(directory(RENAMED), 1);
        assert!(hints(&[(EventKind::Remove(RemoveKind::Folder), "")]).everything);
        let mut overflow = Hints::default();
        overflow.add(
            Path::new("/spool"),
            &Event::new(EventKind::Other).set_flag(Flag::Rescan),
        );
        assert!(overflow.lost && !overflow.is_empty());
    }

    #[test]
    fn hints_are_merged() {
        let mut merged = hints(&[(WRITTEN, "a/m.eml")]);
        merged.merge(hints(&[(WRITTEN, "a/n.eml"), (REMOVED, "b/x.eml")]));
        assert_eq!(mailbox(&merged), Some(&some(&["m", "n"])));
        assert_eq!(merged.mailboxes.len(), 2);
        merged.merge(hints(&[(RENAMED, "c")]));
        assert_eq!(merged.directories.len(), 1);
    }
}
