//! What a directory's names come to, compared with what is known: pure functions.

use std::cmp::Ordering;
use std::sync::Arc;

use rustix::fs::FileType;

use super::dir::DirEntry;
use super::index::Entry;
use super::sidecar;
use super::stray::Stray;
use super::temp::TempName;
use crate::names::MessageId;

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// At the names, and at the files behind new names and new inodes.
    Names,
    /// At every file's stamp.
    Stamps,
}

/// The names of a mailbox's directory, by what they are.
#[derive(Debug, Default)]
pub struct Names {
    /// Ascending by id.
    pub messages: Vec<Found>,
    pub temporaries: Vec<(TempName, u64)>,
    pub strays: Vec<(Vec<u8>, Stray)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: MessageId,
    pub dirent: u64,
}

impl Names {
    pub fn sort_out(entries: Vec<DirEntry>) -> Self {
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
pub struct Plan {
    /// S2, and all that has to be looked at for S4: with the entry that is known.
    pub look_at: Vec<(Found, Option<Arc<Entry>>)>,
    /// S5.
    pub gone: Vec<MessageId>,
}

/// Compares what is known with what was found; both ascend by id.
pub fn diff(known: &[Arc<Entry>], found: Vec<Found>, depth: Depth) -> Plan {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Summary;
    use crate::spool::freshness::{FileStamp, Timestamp};

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
                ctime: None,
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
}
