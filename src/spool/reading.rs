//! Reading messages for the index: stamps first, and no more of a file than its header section.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use super::diff::Found;
use super::dir::{Dir, Opened};
use super::freshness::{FileStamp, FsClock, Now, Timestamp};
use super::index::Entry;
use crate::error::{IoContext, Result};
use crate::message::{HEAD_MAX, Summary};
use crate::names::MessageId;

/// From this many on, messages are read by several threads.
const MANY: usize = 256;

/// What a look at one file came to.
pub enum Outcome {
    Same,
    Entry(Entry),
    Gone(MessageId),
    Stray(MessageId),
}

impl Entry {
    /// Whether a file with this stamp has to be read again. A message that was read in the very tick
    /// in which it was written is read once more when the tick is over.
    pub fn is_outdated(&self, stamp: FileStamp, now: Timestamp, clock: FsClock) -> bool {
        !stamp.agrees(&self.stamp) || (self.racy && !stamp.is_racy(now, clock))
    }
}

/// Looks at files, by several threads when there are many.
pub fn look_at_all(
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
    if wanted.len() < MANY {
        return one_by_one(&wanted);
    }
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
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

/// Looks at one file. Whatever is wrong with it is its own misfortune and hides no other mail; only
/// when the machine has run out of something is there no telling what any file is like.
fn look_at(dir: &Dir, found: &Found, known: Option<&Entry>, clock: FsClock) -> Result<Outcome> {
    match examine(dir, found, known, clock) {
        Err(err) if !err.is_exhaustion() => Ok(Outcome::Stray(found.id.clone())),
        other => other,
    }
}

fn examine(dir: &Dir, found: &Found, known: Option<&Entry>, clock: FsClock) -> Result<Outcome> {
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
pub fn read_head(file: &File) -> io::Result<Vec<u8>> {
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
    head.truncate(HEAD_MAX);
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(read(&vec![b'x'; 3 * HEAD_MAX]).len(), HEAD_MAX);
    }
}
