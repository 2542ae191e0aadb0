//! Each state of a message, built by hand and refreshed, through the library.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use spoolbox::{ChangeKind, Mailbox, MailboxName, MessageId, Options, Spool};

use crate::support::mail;

fn open(path: &Path) -> Mailbox {
    let spool = Spool::open(path, Options::default()).unwrap();
    spool.mailbox(&MailboxName::parse("box").unwrap())
}

fn listed(mailbox: &Mailbox) -> Vec<(String, String, bool)> {
    let listing = mailbox.list().unwrap();
    let entry =
        |e: &Arc<spoolbox::Entry>| (e.id().to_string(), e.summary().subject.clone(), e.seen());
    listing.entries().iter().map(entry).collect()
}

fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}

fn row(id: &str, subject: &str, seen: bool) -> (String, String, bool) {
    (id.into(), subject.into(), seen)
}

/// The name of a temporary file that this machine's process `pid` would make.
fn temporary(pid: u32, number: u32) -> String {
    let node = rustix::system::uname();
    let host: String = node
        .nodename()
        .to_string_lossy()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        })
        .take(64)
        .collect();
    format!(".spoolbox-{host}-{pid}-{number}.tmp")
}

/// A process id that was in use a moment ago and is not any more.
fn dead_process() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

#[test]
fn s0_nothing_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("box")).unwrap();
    let mailbox = open(dir.path());
    mailbox.refresh().unwrap();
    assert!(listed(&mailbox).is_empty());
    assert!(names(&dir.path().join("box")).is_empty());
}

#[test]
fn s1_debris_goes_and_work_in_progress_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    let debris = temporary(dead_process(), 1);
    fs::write(path.join(&debris), mail("debris")).unwrap();
    let ancient = ".spoolbox-elsewhere.example-1-1.tmp";
    fs::write(path.join(ancient), mail("ancient")).unwrap();
    let two_days_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
    crate::support::set_date(path.join(ancient), two_days_ago);
    let elsewhere = ".spoolbox-elsewhere.example-1-2.tmp";
    let similar = ".spoolbox-elsewhere.example-01-2.tmp";
    let own = temporary(std::process::id(), 999_999);
    for name in [elsewhere, similar, &own] {
        fs::write(path.join(name), mail("in progress")).unwrap();
    }
    let mailbox = open(dir.path());
    let mut delivery = mailbox.deliver().unwrap();
    delivery.write_all(b"half a mess").unwrap();
    mailbox.refresh().unwrap();
    assert!(listed(&mailbox).is_empty());
    let left = names(&path);
    assert!(
        !left.contains(&debris) && !left.iter().any(|name| name == ancient),
        "{left:?}"
    );
    for name in [elsewhere, similar, &own] {
        assert!(left.iter().any(|n| n == name), "{name} of {left:?}");
    }
    assert_eq!(left.len(), 4);
    drop(delivery);
    assert_eq!(names(&path).len(), 3);
}

#[test]
fn s1_prime_a_published_message_loses_its_temporary_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    // Even when its writer seems to live: the message is complete.
    let temp = temporary(std::process::id(), 888_888);
    fs::write(path.join(&temp), mail("published")).unwrap();
    fs::hard_link(path.join(&temp), path.join("a.eml")).unwrap();
    let mailbox = open(dir.path());
    assert_eq!(listed(&mailbox), [row("a", "published", false)]);
    assert_eq!(names(&path), ["a.eml"]);
}

#[test]
fn s2_a_message_without_an_entry_is_indexed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    let mailbox = open(dir.path());
    assert!(listed(&mailbox).is_empty());
    fs::write(path.join("a.eml"), mail("found")).unwrap();
    assert_eq!(listed(&mailbox), [row("a", "found", false)]);
}

#[test]
fn s3_what_agrees_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.eml"), mail("same")).unwrap();
    let mailbox = open(dir.path());
    mailbox.mark_seen(&id("a"), true).unwrap();
    let before = fs::metadata(path.join("index.json"))
        .unwrap()
        .modified()
        .unwrap();
    let again = Spool::open(dir.path(), Options::default()).unwrap();
    let mailbox = again.mailbox(&MailboxName::parse("box").unwrap());
    mailbox.refresh().unwrap();
    assert_eq!(listed(&mailbox), [row("a", "same", true)]);
    again.save_all();
    // A refresh that finds nothing writes nothing.
    assert_eq!(
        fs::metadata(path.join("index.json"))
            .unwrap()
            .modified()
            .unwrap(),
        before
    );
}

#[test]
fn s4_a_rewritten_message_is_read_again_and_keeps_its_mark() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("a.eml"), mail("old")).unwrap();
    let mailbox = open(dir.path());
    mailbox.mark_seen(&id("a"), true).unwrap();
    fs::write(path.join("a.eml"), mail("new and longer")).unwrap();
    mailbox.refresh().unwrap();
    assert_eq!(listed(&mailbox), [row("a", "new and longer", true)]);
    // The same across a restart.
    fs::write(path.join("a.eml"), mail("newer still, and longer")).unwrap();
    let mailbox = open(dir.path());
    mailbox.refresh().unwrap();
    assert_eq!(
        listed(&mailbox),
        [row("a", "newer still, and longer", true)]
    );
}

#[test]
fn s4_a_rewrite_of_the_same_length_in_the_same_tick_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    let mailbox = open(dir.path());
    for round in 0..50 {
        fs::write(path.join("a.eml"), mail("one")).unwrap();
        mailbox.refresh().unwrap();
        fs::write(path.join("a.eml"), mail("two")).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while listed(&mailbox) != [row("a", "two", false)] {
            assert!(
                std::time::Instant::now() < deadline,
                "round {round}: {:?}",
                listed(&mailbox)
            );
            mailbox.refresh().unwrap();
        }
    }
}

#[test]
fn s5_an_entry_without_its_message_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    for name in ["a", "b"] {
        fs::write(path.join(format!("{name}.eml")), mail(name)).unwrap();
    }
    let mailbox = open(dir.path());
    mailbox.mark_seen(&id("a"), true).unwrap();
    fs::remove_file(path.join("a.eml")).unwrap();
    assert_eq!(listed(&mailbox), [row("b", "b", false)]);
    // The same across a restart, with a sidecar that still has it.
    mailbox.mark_seen(&id("b"), true).unwrap();
    fs::write(path.join("c.eml"), mail("c")).unwrap();
    fs::remove_file(path.join("b.eml")).unwrap();
    let mailbox = open(dir.path());
    assert_eq!(listed(&mailbox), [row("c", "c", false)]);
}

#[test]
fn changes_are_told_once_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let options = Options {
        on_change: Some(Arc::new(move |change: &spoolbox::Change| {
            let what = match &change.kind {
                ChangeKind::Stored(entry) => format!("stored {}", entry.id()),
                ChangeKind::Changed(entry) => format!("changed {} {}", entry.id(), entry.seen()),
                ChangeKind::Deleted(id) => format!("deleted {id}"),
                ChangeKind::Purged => "purged".to_owned(),
            };
            sink.lock().unwrap().push(what);
        })),
        ..Options::default()
    };
    let spool = Spool::open(dir.path(), options).unwrap();
    let mailbox = spool.mailbox(&MailboxName::parse("box").unwrap());
    let take = || std::mem::take(&mut *told.lock().unwrap());
    assert!(mailbox.list().unwrap().entries().is_empty());
    let mut delivery = mailbox.deliver().unwrap();
    delivery.write_all(mail("x").as_bytes()).unwrap();
    let delivered = delivery.commit().unwrap();
    mailbox.list().unwrap();
    assert_eq!(take(), [format!("stored {delivered}")]);
    fs::write(dir.path().join("box/hand.eml"), mail("hand")).unwrap();
    mailbox.list().unwrap();
    mailbox.refresh().unwrap();
    assert_eq!(take(), ["stored hand"]);
    mailbox.mark_seen(&id("hand"), true).unwrap();
    mailbox.mark_seen(&id("hand"), true).unwrap();
    fs::write(dir.path().join("box/hand.eml"), mail("longer by hand")).unwrap();
    mailbox.refresh().unwrap();
    mailbox.remove(&id("hand")).unwrap();
    mailbox.refresh().unwrap();
    assert_eq!(
        take(),
        ["changed hand true", "changed hand true", "deleted hand"]
    );
    assert_eq!(mailbox.purge().unwrap(), 1);
    assert_eq!(mailbox.purge().unwrap(), 0);
    mailbox.refresh().unwrap();
    assert_eq!(take(), ["purged"]);
}

#[test]
fn deliveries_removals_and_scans_at_once_agree_in_the_end_and_tell_each_change_once() {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new((0usize, 0usize)));
    let sink = told.clone();
    let options = Options {
        on_change: Some(Arc::new(move |change: &spoolbox::Change| {
            let mut told = sink.lock().unwrap();
            match &change.kind {
                ChangeKind::Stored(_) => told.0 += 1,
                ChangeKind::Deleted(_) => told.1 += 1,
                other => panic!("{other:?}"),
            }
        })),
        ..Options::default()
    };
    let spool = Spool::open(dir.path(), options).unwrap();
    let name = MailboxName::parse("box").unwrap();
    spool.mailbox(&name).list().unwrap();
    let ids = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (spool, name, ids) = (&spool, &name, &ids);
            scope.spawn(move || {
                for n in 0..50 {
                    let mailbox = spool.mailbox(name);
                    let mut delivery = mailbox.deliver().unwrap();
                    delivery
                        .write_all(mail(&format!("{writer}/{n}")).as_bytes())
                        .unwrap();
                    let id = delivery.commit().unwrap();
                    if n % 3 == 0 {
                        mailbox.remove(&id).unwrap();
                    } else {
                        ids.lock().unwrap().push(id);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    spool.mailbox(&name).refresh().unwrap();
                }
            });
        }
    });
    let mut ids = ids.into_inner().unwrap();
    ids.sort();
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "an id was given twice");
    let listing = spool.mailbox(&name).list().unwrap();
    let listed: Vec<_> = listing.entries().iter().map(|e| e.id().clone()).collect();
    assert_eq!(listed, ids);
    assert_eq!(*told.lock().unwrap(), (200, 200 - ids.len()));
}
