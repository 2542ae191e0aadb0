//! Looking again: names first, a pure diff, then its application.
//!
//! | state | temporary | message | entry | what refresh does |
//! |---|---|---|---|---|
//! | S0  | – | – | – | nothing |
//! | S1  | ✓ | – | – | removes it when its writer is gone |
//! | S1' | ✓ | ✓ | – | removes the temporary name (same inode), then as S2 |
//! | S2  | – | ✓ | – | reads the message, adds an entry |
//! | S3  | – | ✓ | ✓ | nothing: the stamps agree |
//! | S4  | – | ✓ | ~ | reads the message again, keeps `seen` |
//! | S5  | – | – | ✓ | removes the entry |

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::diff::{Depth, Found, Names, diff};
use super::dir::{self, Dir, Opened};
use super::freshness::{FileStamp, Now, Scan};
use super::index::Entry;
use super::mailbox::Mailbox;
use super::reading::{Outcome, look_at_all};
use super::sidecar;
use super::state::{Known, Window, lock};
use super::stray::Stray;
use crate::error::Result;
use crate::names::MessageId;

/// Up to this many messages, looking at every stamp costs less than anybody notices, so that even a
/// file that was removed and written anew under the same inode is found at once.
const FEW: usize = 512;

impl Mailbox {
    /// Brings the index up to date with the directory.
    pub(super) fn look(&self, depth: Depth) -> Result<()> {
        let state = self.state();
        let scanning = lock(&state.scanning);
        if depth == Depth::Names && self.is_current()? {
            return Ok(()); // Somebody else looked while this thread waited.
        }
        let Some(dir) = self.open_dir()? else {
            self.vanished();
            drop(scanning);
            self.changed();
            return Ok(());
        };
        let began = Now::read();
        let stamp = dir.stamp()?;
        let clock = dir.clock();
        if state
            .read()
            .scan
            .is_some_and(|scan| scan.inode() != (stamp.device, stamp.inode))
        {
            self.vanished(); // Another directory took the place of the one we knew.
        }
        state.exists.store(true, Relaxed);

        // The window opens before the known entries are taken, and they are taken before the names
        // are read: what is known and not found is really gone.
        let window = state.window();
        let loading = !state.read().loaded;
        let loaded = if loading { sidecar::load(&dir) } else { None };
        let known: Vec<Arc<Entry>> = match &loaded {
            Some(loaded) => loaded.entries.iter().cloned().map(Arc::new).collect(),
            None => state.write().index.listing(&state.name).entries().to_vec(),
        };
        // Read before the names are: whatever message it has a mark for is then among them.
        let foreign = if loading {
            None
        } else {
            self.foreign_sidecar(&dir)?
        };
        let mut names = Names::sort_out(dir.names()?);
        clear_away(&dir, &names, began);

        let depth = if known.len() <= FEW {
            Depth::Stamps
        } else {
            depth
        };
        let found = std::mem::take(&mut names.messages);
        let plan = diff(&known, found, depth);
        let outcomes = look_at_all(&dir, plan.look_at, clock)?;
        for outcome in &outcomes {
            if let Outcome::Stray(id) = outcome {
                names
                    .strays
                    .push((id.file_name().into_bytes(), Stray::Unreadable));
            }
        }

        let mut known_now = state.write();
        if loading {
            let sidecar = loaded.as_ref().map(|loaded| loaded.stamp);
            known_now.take_over(&window, known, sidecar);
        }
        let clean = self.apply(&mut known_now, &window, plan.gone, outcomes);
        if let Some(foreign) = foreign {
            known_now.merge(&state.name, foreign);
        }
        if known_now.sidecar.is_none() && !known_now.index.is_empty() {
            known_now.generation += 1; // There is no sidecar, and there should be one.
        }
        // Where somebody else was faster, look again next time.
        let before = known_now.scan;
        known_now.scan = clean.then(|| Scan::new(stamp, began, clock, before.as_ref()));
        let strays = known_now.new_strays(names.strays);
        drop(known_now);
        drop(window);
        drop(scanning);
        for (name, why) in strays {
            let name = String::from_utf8_lossy(&name);
            tracing::warn!(mailbox = %state.name, ?name, "not mail, left alone: {why}");
        }
        self.changed();
        Ok(())
    }

    /// Looks at one message, which may have been rewritten in place.
    pub(super) fn look_at_message(&self, id: &MessageId) -> Result<()> {
        let state = self.state();
        let scanning = lock(&state.scanning);
        let window = state.window();
        let known = state.read().index.get(id).cloned();
        if let Some(known) = known
            && let Some(dir) = self.open_dir()?
        {
            let found = Found {
                id: id.clone(),
                dirent: known.dirent,
            };
            let outcomes = look_at_all(&dir, vec![(found, Some(known))], dir.clock())?;
            self.apply(&mut state.write(), &window, Vec::new(), outcomes);
        }
        drop(window);
        drop(scanning);
        self.changed();
        Ok(())
    }

    /// Looks at the stamp of every known file, without reading the directory, and refreshes when one
    /// has changed: so a message that was rewritten in place is found, and one that may be read now.
    pub(super) fn look_at_stamps(&self) -> Result<()> {
        let Some(dir) = self.open_dir()? else {
            return self.look(Depth::Names);
        };
        let clock = dir.clock();
        let (listing, unreadable) = {
            let mut known = self.state().write();
            (known.index.listing(self.name()), known.unreadable())
        };
        for name in unreadable {
            if let Ok(Opened::File(..)) = dir.open_file(&name) {
                return self.look(Depth::Names);
            }
        }
        for entry in listing.entries() {
            let stamp = dir.file_stamp(&entry.id.file_name())?;
            if stamp.is_none_or(|stamp| entry.is_outdated(stamp, Now::read().wall, clock)) {
                return self.look(Depth::Stamps);
            }
        }
        Ok(())
    }

    /// Writes down what was seen; `false` when others recorded some of it meanwhile.
    fn apply(
        &self,
        known: &mut Known,
        window: &Window,
        gone: Vec<MessageId>,
        outcomes: Vec<Outcome>,
    ) -> bool {
        let name = &self.state().name;
        let mut clean = true;
        let mut untouched = |known: &Known, id: &MessageId| {
            let untouched = !window.is_overtaken(known, id);
            clean &= untouched;
            untouched
        };
        for id in gone {
            if untouched(known, &id) {
                known.forget(name, &id);
            }
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Same => {}
                Outcome::Entry(entry) if untouched(known, &entry.id) => {
                    let old = known.index.get(&entry.id);
                    let entry = Arc::new(Entry {
                        seen: old.is_some_and(|old| old.seen),
                        ..entry
                    });
                    // A file that was only looked at again is no news.
                    if old.is_some_and(|old| {
                        old.stamp.agrees(&entry.stamp) && old.summary == entry.summary
                    }) {
                        known.index.insert(entry);
                    } else {
                        known.put(name, entry);
                    }
                }
                Outcome::Gone(id) | Outcome::Stray(id)
                    if known.index.get(&id).is_some() && untouched(known, &id) =>
                {
                    known.forget(name, &id);
                }
                Outcome::Entry(_) | Outcome::Gone(_) | Outcome::Stray(_) => {}
            }
        }
        clean
    }

    /// Records that the directory is gone.
    fn vanished(&self) {
        let state = self.state();
        let mut known = state.write();
        let listing = known.index.listing(&state.name);
        for entry in listing.entries() {
            known.forget(&state.name, &entry.id);
        }
        known.loaded = false;
        known.scan = None;
        known.sidecar = None;
        state.exists.store(false, Relaxed);
    }
}

impl Known {
    /// Takes the entries of a sidecar for known. That is no change: they were here before.
    fn take_over(&mut self, window: &Window, entries: Vec<Arc<Entry>>, sidecar: Option<FileStamp>) {
        for entry in entries {
            if !window.is_overtaken(self, &entry.id) {
                self.index.insert(entry);
            }
        }
        self.sidecar = sidecar;
        self.loaded = true;
    }

    /// The strays that have not been named yet. Each is named once for as long as it lies there.
    fn new_strays(&mut self, strays: Vec<(Vec<u8>, Stray)>) -> Vec<(Vec<u8>, Stray)> {
        let before = std::mem::take(&mut self.strays);
        self.strays = strays.iter().cloned().collect();
        strays
            .into_iter()
            .filter(|(name, _)| !before.contains_key(name))
            .collect()
    }
}

/// S1 and S1': removes what deliveries left behind, by names of exactly our form only.
fn clear_away(dir: &Dir, names: &Names, now: Now) {
    if names.temporaries.is_empty() {
        return;
    }
    let published: HashSet<u64> = names.messages.iter().map(|found| found.dirent).collect();
    for (temp, inode) in &names.temporaries {
        let name = temp.to_string();
        let Ok(Opened::File(file, stamp)) = dir.open_file(&name) else {
            continue;
        };
        let age = now.wall.as_nanos() - stamp.mtime.as_nanos();
        let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
        // The lock is tried only on what looks abandoned, so that it is never in a writer's way.
        let debris =
            temp.is_debris(age, false) && (dir::lock_file(&file) || temp.is_debris(age, true));
        let done = published.contains(inode)
            && rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_nlink > 1);
        if debris || done {
            tracing::info!(path = %dir.path().join(&name).display(), "removing what a delivery left behind");
            if let Err(err) = dir.unlink(&name) {
                tracing::warn!("{}", err.with_reason());
            }
        }
    }
}
