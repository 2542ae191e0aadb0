//! The sidecar's way to disk: when, and how.

use std::collections::HashSet;
use std::io::Write;
use std::time::{Duration, Instant};

use super::diff::Depth;
use super::dir::{Dir, Opened};
use super::freshness::FileStamp;
use super::mailbox::Mailbox;
use super::sidecar::{self, Loaded};
use super::state::{Known, lock};
use super::temp::TempName;
use super::{ChangeKind, Dirty};
use crate::error::{Error, IoContext, Result};
use crate::names::{MailboxName, MessageId};

/// How far the sidecar on disk is, and what the last save cost.
#[derive(Debug, Default)]
pub struct Saved {
    /// Everything up to this generation is in the file.
    pub generation: u64,
    /// Everything up to this generation will be there after a crash.
    pub durable: u64,
    pub cost: Duration,
    pub finished: Option<Instant>,
    /// The last failure has been told.
    pub complained: bool,
    #[cfg(test)]
    pub times: usize,
}

/// No change for this long, and the sidecar is written.
const QUIET: Duration = Duration::from_millis(250);

/// After this long without a change it is written whatever it costs.
const LONG_QUIET: Duration = Duration::from_millis(500);

/// Where it never gets quiet, it is written this long after the first change.
const BUSY: Duration = Duration::from_secs(2);

/// A save waits until this many times its last cost has passed since the one before.
const RESTRAINT: u32 = 40;

/// Whether a mailbox that changed should be saved now.
pub fn is_due(now: Instant, dirty: Dirty, cost: Duration, finished: Option<Instant>) -> bool {
    let quiet = now.saturating_duration_since(dirty.last);
    let waiting = now.saturating_duration_since(dirty.first);
    let affordable =
        finished.is_none_or(|at| now.saturating_duration_since(at) >= cost * RESTRAINT);
    quiet >= LONG_QUIET || (affordable && (quiet >= QUIET || waiting >= BUSY))
}

impl Mailbox {
    /// Writes the sidecar unless what happened up to `through` is in it already. Callers that wait
    /// for a save that is running share the next one.
    pub(super) fn save(&self, through: u64, durable: bool) -> Result<()> {
        let state = self.state();
        let mut saved = lock(&state.saving);
        let reached = if durable {
            saved.durable
        } else {
            saved.generation
        };
        if reached >= through {
            return Ok(());
        }
        let started = Instant::now();
        let Some(dir) = self.open_dir()? else {
            return Ok(()); // Gone, and its messages and marks with it.
        };
        let result = self.write_sidecar(&dir, durable);
        saved.cost = started.elapsed();
        saved.finished = Some(Instant::now());
        let generation = result?;
        saved.complained = false;
        #[cfg(test)]
        {
            saved.times += 1;
        }
        saved.generation = generation;
        if durable {
            saved.durable = generation;
        }
        Ok(())
    }

    fn write_sidecar(&self, dir: &Dir, durable: bool) -> Result<u64> {
        let state = self.state();
        dir.lock();
        for _ in 0..5 {
            if self.foreign_sidecar(dir)?.is_none() {
                break;
            }
            // Somebody else wrote it, perhaps with marks for messages that we have not met yet, and
            // what we write will replace it: meet them first.
            self.look(Depth::Names)?;
            let foreign = self.foreign_sidecar(dir)?;
            if foreign.is_none_or(|foreign| state.write().merge(&state.name, foreign)) {
                break;
            }
        }
        let (listing, generation) = {
            let mut known = state.write();
            if !known.loaded {
                return Ok(known.generation);
            }
            (known.index.listing(&state.name), known.generation)
        };
        if let Opened::NotAFile = dir.open_file(sidecar::FILE_NAME)? {
            let path = dir.path().join(sidecar::FILE_NAME);
            let source = std::io::Error::other("something that is not a regular file has its name");
            return Err(Error::Io {
                action: "write",
                path,
                source,
            });
        }
        let bytes = sidecar::render(listing.entries().iter().map(AsRef::as_ref));
        let temp = TempName::next().to_string();
        let mut file = dir.create(&temp)?;
        super::dir::lock_file(&file);
        // Synced even when nobody waits for it: otherwise a crash could leave an empty file where a
        // durable one stood.
        let written = file
            .write_all(&bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| rustix::fs::fstat(&file).map_err(Into::into))
            .during("write", dir.path().join(sidecar::FILE_NAME))
            .and_then(|stat| {
                dir.replace(&temp, sidecar::FILE_NAME)
                    .map(|()| FileStamp::of(&stat))
            });
        let stamp = match written {
            Ok(stamp) => stamp,
            Err(err) => {
                let _ = dir.unlink(&temp);
                return Err(err);
            }
        };
        // At once, so that a scan does not take our own sidecar for somebody else's.
        state.write().sidecar = Some(stamp.across_renames());
        if durable {
            let id = dir.stamp()?;
            state.sync.run((id.device, id.inode), || dir.sync())?;
            let mut known = state.write();
            known.unsaved_seen.retain(|_, at| *at > generation);
        }
        Ok(generation)
    }

    /// Reads the sidecar if it is not the one that we last read or wrote: another server shares the
    /// spool, or somebody restored a backup.
    pub(super) fn foreign_sidecar(&self, dir: &Dir) -> Result<Option<Foreign>> {
        let ours = self.state().read().sidecar;
        if sidecar::stamp(dir)? == ours {
            return Ok(None);
        }
        Ok(Some(Foreign {
            ours,
            theirs: sidecar::load(dir),
        }))
    }
}

/// A sidecar that somebody else wrote.
pub struct Foreign {
    /// What we had read or written last when it was found.
    ours: Option<FileStamp>,
    /// `None` when it was removed or damaged.
    theirs: Option<Loaded>,
}

impl Known {
    /// Takes over the marks of a sidecar that somebody else wrote, except where ours are younger;
    /// `false` when it is not the latest any more.
    pub(super) fn merge(&mut self, mailbox: &MailboxName, foreign: Foreign) -> bool {
        if self.sidecar != foreign.ours {
            return false; // We have read or written another since.
        }
        let Some(Loaded { stamp, entries }) = foreign.theirs else {
            self.sidecar = None;
            return true;
        };
        self.sidecar = Some(stamp);
        for theirs in &entries {
            if !self.unsaved_seen.contains_key(&theirs.id)
                && let Some(entry) = self.mark(&theirs.id, theirs.seen)
            {
                self.tell(mailbox, ChangeKind::Changed(entry));
            }
        }
        // What we know and they do not is not on disk any more.
        let listing = self.index.listing(mailbox);
        let theirs: HashSet<&MessageId> = entries.iter().map(|entry| &entry.id).collect();
        let missing = listing
            .entries()
            .iter()
            .filter(|ours| !theirs.contains(&ours.id));
        for (at, ours) in missing.enumerate() {
            self.generation += u64::from(at == 0);
            if ours.seen {
                self.unsaved_seen
                    .entry(ours.id.clone())
                    .or_insert(self.generation);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saves_follow_quiet_and_stay_cheap() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let due = |now: u64, first: u64, last: u64, cost: u64, finished: Option<u64>| {
            let dirty = Dirty {
                first: at(first),
                last: at(last),
            };
            is_due(
                at(now),
                dirty,
                Duration::from_millis(cost),
                finished.map(at),
            )
        };
        // Quiet after one change.
        assert!(!due(100, 0, 0, 1, None));
        assert!(due(250, 0, 0, 1, None));
        // Changes all the time: now and then.
        assert!(!due(1900, 0, 1899, 1, None));
        assert!(due(2000, 0, 1999, 1, None));
        // A large sidecar waits, unless it is really quiet.
        assert!(!due(2000, 0, 1700, 100, Some(0)));
        assert!(due(4000, 0, 3700, 100, Some(0)));
        assert!(due(2000, 0, 1200, 100, Some(0)));
    }

    #[test]
    fn marks_that_come_together_share_their_saves() {
        use crate::{MailboxName, MessageId, Options, Spool};
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("box")).unwrap();
        for n in 0..64 {
            std::fs::write(dir.path().join(format!("box/m{n}.eml")), "Subject: x\n\n").unwrap();
        }
        let spool = Spool::open(dir.path(), Options::default()).unwrap();
        let mailbox = spool.mailbox(&MailboxName::parse("box").unwrap());
        assert_eq!(mailbox.list().unwrap().entries().len(), 64);
        // All have set their marks before the first may save.
        let held = lock(&mailbox.state().saving);
        std::thread::scope(|scope| {
            for n in 0..64 {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    mailbox
                        .mark_seen(&MessageId::parse(&format!("m{n}")).unwrap(), true)
                        .unwrap()
                });
            }
            let deadline = Instant::now() + Duration::from_secs(60);
            while mailbox.state().read().unsaved_seen.len() < 64 {
                assert!(Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(held);
        });
        assert_eq!(lock(&mailbox.state().saving).times, 1);
        assert!(
            mailbox
                .list()
                .unwrap()
                .entries()
                .iter()
                .all(|entry| entry.seen())
        );
    }
}
