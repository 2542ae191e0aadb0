//! A check-up: every index compared with its files, every stray named, nothing changed.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::Spool;
use super::diff::{Found, Names};
use super::dir::{self, Dir, Opened};
use super::freshness::Now;
use super::sidecar;
use crate::error::Result;
use crate::message;
use crate::names::MailboxName;

/// What a check-up found in one mailbox, or in the spool around the mailboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The mailbox; `None` for what lies beside them.
    pub mailbox: Option<MailboxName>,
    /// The file; empty when it is about the mailbox as a whole.
    pub name: String,
    /// What kind of thing it is.
    pub kind: FindingKind,
    /// What it is, and what can be done about it.
    pub detail: String,
}

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FindingKind {
    /// The index does not say what the files say. It can be rebuilt.
    Index,
    /// A delivery left something behind. It can be removed.
    Debris,
    /// Something that is not mail.
    Stray,
    /// A message that cannot be read.
    Unreadable,
    /// A message that is not shown as its sender meant it.
    Damaged,
}

impl FindingKind {
    /// Whether rebuilding mends it.
    pub fn can_be_mended(self) -> bool {
        matches!(self, FindingKind::Index | FindingKind::Debris)
    }
}

/// What there is in one mailbox.
#[derive(Debug, Default)]
pub struct CheckUp {
    /// The number of messages.
    pub messages: usize,
    /// What is not as it should be.
    pub findings: Vec<Finding>,
}

/// Messages longer than this are taken for whole.
const LOOKED_AT: u64 = 16 * 1024 * 1024;

impl Spool {
    /// Names what lies beside the mailboxes and is none.
    pub fn check_root(&self) -> Result<Vec<Finding>> {
        let root = self.root()?;
        let stray = |entry: dir::DirEntry| {
            let name = std::str::from_utf8(&entry.name).ok();
            let sound = name.is_some_and(|name| MailboxName::parse(name).is_ok());
            if sound && entry.kind == rustix::fs::FileType::Directory {
                return None;
            }
            let why = match entry.kind {
                rustix::fs::FileType::Directory => {
                    "its name cannot be a mailbox's: rename it if it is one"
                }
                rustix::fs::FileType::Symlink => {
                    "it is a symbolic link, and links are not followed: put the directory itself here"
                }
                _ => "only directories are mailboxes: put messages into one, as <id>.eml",
            };
            Some(Finding {
                mailbox: None,
                name: String::from_utf8_lossy(&entry.name).into_owned(),
                kind: FindingKind::Stray,
                detail: why.into(),
            })
        };
        let mut strays: Vec<_> = root.names()?.into_iter().filter_map(stray).collect();
        strays.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(strays)
    }

    /// Compares a mailbox's index with its files and looks at every message. `progress` is told of
    /// messages that have been looked at. Nothing is changed.
    pub fn check_mailbox(
        &self,
        name: &MailboxName,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<CheckUp> {
        let Ok(Some(dir)) = self.root()?.child(name.as_str()) else {
            let detail = "its directory cannot be opened: check its owner and its permissions";
            return Ok(CheckUp {
                messages: 0,
                findings: vec![finding(name, "", FindingKind::Unreadable, detail)],
            });
        };
        let names = Names::sort_out(dir.names()?);
        let mut findings = Vec::new();
        findings.extend(check_index(&dir, name, &names.messages)?);
        for (temp, _) in &names.temporaries {
            let text = temp.to_string();
            if let Opened::File(file, stamp) = dir.open_file(&text)? {
                let age = Now::read().wall.as_nanos() - stamp.mtime.as_nanos();
                let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
                if temp.is_debris(age, false) && dir::lock_file(&file) {
                    let detail = "a delivery that did not finish left it behind: --fix removes it, and so does a server";
                    findings.push(finding(name, &text, FindingKind::Debris, detail));
                }
            }
        }
        for (stray, why) in &names.strays {
            let shown = String::from_utf8_lossy(stray);
            findings.push(finding(name, &shown, FindingKind::Stray, &why.to_string()));
        }
        findings.extend(check_messages(&dir, name, &names.messages, progress));
        findings.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(CheckUp {
            messages: names.messages.len(),
            findings,
        })
    }

    /// Brings a mailbox's index up to date on disk, and removes what deliveries left behind.
    pub fn mend_mailbox(&self, name: &MailboxName) -> Result<()> {
        let mailbox = self.mailbox(name);
        mailbox.refresh()?;
        let through = {
            let mut known = mailbox.state().write();
            known.generation += 1;
            known.generation
        };
        mailbox.save(through, true)
    }
}

fn finding(mailbox: &MailboxName, name: &str, kind: FindingKind, detail: &str) -> Finding {
    Finding {
        mailbox: Some(mailbox.clone()),
        name: name.to_owned(),
        kind,
        detail: detail.to_owned(),
    }
}

/// One finding at most: an index is right or has to be rebuilt.
fn check_index(dir: &Dir, mailbox: &MailboxName, messages: &[Found]) -> Result<Option<Finding>> {
    let detail = match (dir.open_file(sidecar::FILE_NAME)?, sidecar::load(dir)) {
        (Opened::Missing, _) if messages.is_empty() => None,
        (Opened::Missing, _) => Some("there is none".to_owned()),
        // Named with the strays: nothing can be rebuilt in its place.
        (Opened::NotAFile, _) => None,
        (_, None) => Some("it is damaged, or cannot be read".to_owned()),
        (_, Some(loaded)) => {
            let (mut missing, mut outdated, mut known) = (0, 0, 0);
            for found in messages {
                let entry = loaded
                    .entries
                    .binary_search_by(|entry| entry.id.cmp(&found.id));
                match entry.ok().map(|at| &loaded.entries[at]) {
                    None => missing += 1,
                    Some(entry) => {
                        known += 1;
                        let stamp = dir.file_stamp(&found.id.file_name())?;
                        outdated +=
                            usize::from(stamp.is_some_and(|stamp| !stamp.agrees(&entry.stamp)));
                    }
                }
            }
            let gone = loaded.entries.len() - known;
            (missing + outdated + gone > 0)
                .then(|| format!("it misses {missing} messages, has {gone} that are gone and {outdated} that changed"))
        }
    };
    Ok(detail.map(|detail| {
        let detail = format!("{detail}; --fix rebuilds it, and so does a server");
        finding(mailbox, sidecar::FILE_NAME, FindingKind::Index, &detail)
    }))
}

/// Reads every message, by several threads.
fn check_messages(
    dir: &Dir,
    mailbox: &MailboxName,
    messages: &[Found],
    progress: &(dyn Fn(usize) + Sync),
) -> Vec<Finding> {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
    const STRIDE: usize = 64;
    let work = || {
        let mut findings = Vec::new();
        loop {
            let from = next.fetch_add(STRIDE, Ordering::Relaxed);
            let Some(some) = messages
                .get(from..messages.len().min(from + STRIDE))
                .filter(|some| !some.is_empty())
            else {
                return findings;
            };
            findings.extend(
                some.iter()
                    .filter_map(|found| check_message(dir, mailbox, found)),
            );
            progress(some.len());
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    })
}

fn check_message(dir: &Dir, mailbox: &MailboxName, found: &Found) -> Option<Finding> {
    let name = found.id.file_name();
    let unreadable = || {
        finding(
            mailbox,
            &name,
            FindingKind::Unreadable,
            "it cannot be read: check its owner and its permissions",
        )
    };
    match dir.open_file(&name) {
        Ok(Opened::File(file, stamp)) => {
            let mut raw = Vec::with_capacity(stamp.size.min(LOOKED_AT) as usize);
            if file.take(LOOKED_AT).read_to_end(&mut raw).is_err() {
                return Some(unreadable());
            }
            message::damage(&raw).map(|why| finding(mailbox, &name, FindingKind::Damaged, why))
        }
        Ok(Opened::Missing) => None,
        _ => Some(unreadable()),
    }
}
