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

use std::cmp::Ordering;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::FileType;

use super::delivery::TempName;
use super::dir::{self, Dir, DirEntry, Opened};
use super::freshness::{FileStamp, FsClock, Now, Scan, Timestamp};
use super::index::Entry;
use super::mailbox::Mailbox;
use super::sidecar;
use super::state::{Known, lock};
use super::stray::Stray;
use crate::error::{IoContext, Result};
use crate::message::Summary;
use crate::names::MessageId;

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// At the names, and at the files behind new names and new inodes.
    Names,
    /// At every file's stamp.
    Stamps,
}

/// Up to this many messages, looking at every stamp costs less than anybody notices, so that even a
/// file that was removed and written anew under the same inode is found at once.
const FEW: usize = 512;

/// From this many on, messages are read by several threads.
const MANY: usize = 256;

/// No more of a header section is read for a summary.
const HEAD_MAX: usize = 1024 * 1024;

/// The names of a mailbox's directory, by what they are.
#[derive(Debug, Default)]
struct Names {
    /// Ascending by id.
    messages: Vec<Found>,
    temporaries: Vec<(TempName, u64)>,
    strays: Vec<(Vec<u8>, Stray)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    id: MessageId,
    dirent: u64,
}

impl Names {
    fn sort_out(entries: Vec<DirEntry>) -> Self {
        let mut names = Self::default();
        for entry in entries {
            let text = std::str::from_utf8(&entry.name).ok();
            let file = text.filter(|_| entry.kind == FileType::RegularFile);
            if let Some(Some(Ok(id))) = file.map(MessageId::of_file) {
                names.messages.push(Found {
                    id,
                    dirent: entry.inode,
                });
            } else if let Some(temp) = file.and_then(TempName::parse) {
                names.temporaries.push((temp, entry.inode));
            } else if file != Some(sidecar::FILE_NAME) {
                let stray = Stray::of(&entry.name, entry.kind);
                names.strays.push((entry.name, stray));
            }
        }
        names.messages.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        names
    }
}

/// What has to be done so that the index says what the directory says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// S2, and all that has to be looked at for S4: with the entry that is known.
    look_at: Vec<(Found, Option<Arc<Entry>>)>,
    /// S5.
    gone: Vec<MessageId>,
}

/// Compares what is known with what was found; both ascend by id.
fn diff(known: &[Arc<Entry>], found: Vec<Found>, depth: Depth) -> Plan {
    let mut plan = Plan::default();
    let mut known = known.iter().peekable();
    for name in found {
        let mut entry = None;
        while let Some(next) = known.peek() {
            match next.id.cmp(&name.id) {
                Ordering::Less => plan.gone.extend(known.next().map(|gone| gone.id.clone())),
                Ordering::Equal => {
                    entry = known.next();
                    break;
                }
                Ordering::Greater => break,
            }
        }
        let same = entry.is_some_and(|entry| entry.dirent == name.dirent);
        if !same || depth == Depth::Stamps {
            plan.look_at.push((name, entry.cloned()));
        }
    }
    plan.gone.extend(known.map(|gone| gone.id.clone()));
    plan
}

/// What a look at one file came to.
enum Outcome {
    Same,
    Entry(Entry),
    Gone(MessageId),
    Stray(MessageId),
}

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
        let foreign = if loading {
            None
        } else {
            self.foreign_sidecar(&dir)?
        };

        let mut known_now = state.write();
        if loading {
            let sidecar = loaded.as_ref().map(|loaded| loaded.stamp);
            known_now.take_over(known, sidecar);
        }
        let clean = self.apply(&mut known_now, plan.gone, outcomes);
        if let Some(foreign) = foreign {
            known_now.merge(&state.name, foreign);
        }
        if known_now.sidecar.is_none() && !known_now.index.is_empty() {
            known_now.generation += 1; // There is no sidecar, and there should be one.
        }
        // Where somebody else was faster, look again next time.
        let before = known_now.scan;
        known_now.scan = clean.then(|| Scan::new(stamp, began, clock, before.as_ref()));
        self.name_strays(&mut known_now, names.strays);
        drop(known_now);
        drop(window);
        drop(scanning);
        self.changed();
        Ok(())
    }

    /// Looks at the stamp of every known file, without reading the directory, and refreshes when one
    /// has changed: so a message that was rewritten in place is found.
    pub(super) fn look_at_stamps(&self) -> Result<()> {
        let Some(dir) = self.open_dir()? else {
            return self.look(Depth::Names);
        };
        let clock = dir.clock();
        let listing = self.state().write().index.listing(self.name());
        for entry in listing.entries() {
            let stamp = dir.file_stamp(&entry.id.file_name())?;
            if stamp.is_none_or(|stamp| entry.is_outdated(stamp, Now::read().wall, clock)) {
                return self.look(Depth::Stamps);
            }
        }
        Ok(())
    }

    /// Writes down what was seen; `false` when others recorded some of it meanwhile.
    fn apply(&self, known: &mut Known, gone: Vec<MessageId>, outcomes: Vec<Outcome>) -> bool {
        let name = &self.state().name;
        let mut clean = true;
        let mut untouched = |known: &Known, id: &MessageId| {
            let untouched = !known.is_touched(id);
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
                    if old
                        .is_some_and(|old| old.stamp == entry.stamp && old.summary == entry.summary)
                    {
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
        state.rooted.store(0, Relaxed);
    }

    /// Tells each stray once, for as long as it lies there.
    fn name_strays(&self, known: &mut Known, strays: Vec<(Vec<u8>, Stray)>) {
        let mut present = HashSet::with_capacity(strays.len());
        for (name, why) in strays {
            if !known.strays.contains(&name) {
                let shown = String::from_utf8_lossy(&name);
                tracing::warn!(mailbox = %self.state().name, name = ?shown, "not mail, left alone: {why}");
            }
            present.insert(name);
        }
        known.strays = present;
    }
}

impl Entry {
    /// Whether a file with this stamp has to be read again. A message that was read in the very tick
    /// in which it was written is read once more when the tick is over.
    fn is_outdated(&self, stamp: FileStamp, now: Timestamp, clock: FsClock) -> bool {
        stamp != self.stamp || (self.racy && !stamp.is_racy(now, clock))
    }
}

impl Known {
    /// Takes the entries of a sidecar for known. That is no change: they were here before.
    fn take_over(&mut self, entries: Vec<Arc<Entry>>, sidecar: Option<FileStamp>) {
        for entry in entries {
            if !self.is_touched(&entry.id) {
                self.index.insert(entry);
            }
        }
        self.sidecar = sidecar;
        self.loaded = true;
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

/// Looks at files, by several threads when there are many.
fn look_at_all(
    dir: &Dir,
    wanted: Vec<(Found, Option<Arc<Entry>>)>,
    clock: FsClock,
) -> Result<Vec<Outcome>> {
    let one_by_one = |wanted: &[(Found, Option<Arc<Entry>>)]| {
        let look = |(found, known): &(Found, Option<Arc<Entry>>)| {
            look_at(dir, found, known.as_deref(), clock)
        };
        wanted.iter().map(look).collect::<Result<Vec<_>>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    if wanted.len() < MANY || threads == 1 {
        return one_by_one(&wanted);
    }
    let mut outcomes = Vec::with_capacity(wanted.len());
    std::thread::scope(|scope| {
        let chunks = wanted.chunks(wanted.len().div_ceil(threads));
        let workers: Vec<_> = chunks
            .map(|chunk| scope.spawn(move || one_by_one(chunk)))
            .collect();
        for worker in workers {
            match worker.join() {
                Ok(looked) => outcomes.extend(looked?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(outcomes)
    })
}

fn look_at(dir: &Dir, found: &Found, known: Option<&Entry>, clock: FsClock) -> Result<Outcome> {
    let now = Now::read().wall;
    let name = found.id.file_name();
    if let Some(known) = known {
        match dir.file_stamp(&name)? {
            Some(stamp)
                if !known.is_outdated(stamp, now, clock) && known.dirent == found.dirent =>
            {
                return Ok(Outcome::Same);
            }
            Some(stamp) if !known.is_outdated(stamp, now, clock) => {
                // The directory tells inodes of its own, as overlays do: remember them.
                return Ok(Outcome::Entry(Entry {
                    dirent: found.dirent,
                    ..known.clone()
                }));
            }
            _ => {}
        }
    }
    match dir.open_file(&name)? {
        Opened::File(file, stamp) => {
            let head = read_head(&file).during("read", dir.path().join(&name))?;
            Ok(Outcome::Entry(Entry {
                id: found.id.clone(),
                stamp,
                dirent: found.dirent,
                racy: stamp.is_racy(now, clock),
                summary: Summary::parse(&head),
                seen: false,
            }))
        }
        Opened::Missing => Ok(Outcome::Gone(found.id.clone())),
        Opened::NotAFile | Opened::Forbidden => Ok(Outcome::Stray(found.id.clone())),
    }
}

/// Reads a message up to the end of its header section.
pub(super) fn read_head(file: &File) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(8 * 1024);
    let mut step = 8 * 1024;
    while head.len() < HEAD_MAX {
        let searched = head.len();
        let got = file.take(step).read_to_end(&mut head)?;
        // The end may lie across two reads.
        let from = searched.saturating_sub(3);
        let end = memchr::memchr_iter(b'\n', &head[from..])
            .map(|at| from + at + 1)
            .find(|&at| matches!(&head[at..], [b'\n', ..] | [b'\r', b'\n', ..]));
        if let Some(end) = end {
            head.truncate(end);
            break;
        }
        if (got as u64) < step {
            break;
        }
        step = 64 * 1024;
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(id: &str, dirent: u64) -> Found {
        Found {
            id: MessageId::parse(id).unwrap(),
            dirent,
        }
    }

    fn known(id: &str, dirent: u64) -> Arc<Entry> {
        Arc::new(Entry {
            id: MessageId::parse(id).unwrap(),
            stamp: FileStamp {
                size: 0,
                mtime: Timestamp::default(),
                inode: dirent,
            },
            dirent,
            racy: false,
            summary: Summary::default(),
            seen: false,
        })
    }

    fn ids(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
        (
            plan.look_at
                .iter()
                .map(|(found, _)| found.id.as_str())
                .collect(),
            plan.gone.iter().map(MessageId::as_str).collect(),
        )
    }

    #[test]
    fn the_diff_finds_what_is_new_replaced_and_gone() {
        let known = [known("a", 1), known("b", 2), known("c", 3), known("e", 5)];
        let now = vec![
            found("0", 9),
            found("b", 2),
            found("c", 8),
            found("d", 4),
            found("f", 6),
        ];
        let plan = diff(&known, now.clone(), Depth::Names);
        assert_eq!(ids(&plan), (vec!["0", "c", "d", "f"], vec!["a", "e"]));
        assert!(plan.look_at[1].1.is_some() && plan.look_at[2].1.is_none());
        let plan = diff(&known, now, Depth::Stamps);
        assert_eq!(ids(&plan).0, ["0", "b", "c", "d", "f"]);
    }

    #[test]
    fn nothing_new_means_nothing_to_do() {
        let all = [known("a", 1), known("b", 2)];
        assert_eq!(
            diff(&all, vec![found("a", 1), found("b", 2)], Depth::Names),
            Plan::default()
        );
        assert_eq!(diff(&[], vec![], Depth::Stamps), Plan::default());
        assert_eq!(ids(&diff(&all, vec![], Depth::Names)).1, ["a", "b"]);
    }

    #[test]
    fn the_head_ends_at_the_first_empty_line() {
        use std::io::{Seek, Write};
        let read = |content: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(content).unwrap();
            file.rewind().unwrap();
            read_head(&file).unwrap()
        };
        assert_eq!(read(b"A: b\n\nbody"), b"A: b\n");
        assert_eq!(read(b"A: b\r\n\r\nbody"), b"A: b\r\n");
        assert_eq!(read(b"A: b"), b"A: b");
        assert_eq!(read(b""), b"");
        // Across the boundary of two reads, at every offset.
        for length in 8180..8200 {
            let mut content = b"A: ".to_vec();
            content.resize(length, b'x');
            content.extend_from_slice(b"\r\n\r\nbody\n\n");
            assert_eq!(read(&content).len(), length + 2);
        }
        assert!(read(&vec![b'x'; 3 * HEAD_MAX]).len() < 2 * HEAD_MAX);
    }
}
