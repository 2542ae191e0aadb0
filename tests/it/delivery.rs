//! `spoolbox deliver` and the library's deliveries: complete or not at all.

use std::fs;
use std::io::Write;
use std::path::Path;

use spoolbox::{MailboxName, Options, Spool};

use crate::support::{Server, mail, run, spoolbox};

fn deliver(spool: &Path, args: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let output = run(
        spoolbox()
            .arg("deliver")
            .arg("--spool")
            .arg(spool)
            .args(args),
        input,
    );
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn deliver_prints_the_id_that_the_next_list_shows() {
    let server = Server::start();
    let mut ids = Vec::new();
    for n in 0..5 {
        let (code, out, err) = deliver(
            &server.spool,
            &["Ann+tag@example.com"],
            mail(&n.to_string()).as_bytes(),
        );
        assert_eq!((code, err.as_str()), (Some(0), ""));
        let id = out.strip_suffix('\n').unwrap().to_owned();
        assert_eq!(id.len(), "20261114T235612-0001".len());
        ids.push(id);
        assert_eq!(server.ids("ann"), ids, "ascending, and there at once");
    }
    assert_eq!(
        server
            .get(&format!("/api/v1/mailbox/ann/{}/source", ids[3]))
            .body,
        mail("3").as_bytes()
    );
    // It never touches the index.
    let alone = tempfile::tempdir().unwrap();
    assert_eq!(
        deliver(alone.path(), &["box"], b"Subject: x\n\n").0,
        Some(0)
    );
    let names: Vec<_> = fs::read_dir(alone.path().join("box")).unwrap().collect();
    assert_eq!(names.len(), 1);
}

#[test]
fn the_sender_is_recorded_with_the_messages_own_line_ends() {
    let spool = tempfile::tempdir().unwrap();
    for (message, line_end) in [
        ("Subject: x\n\nhi\n", "\n"),
        ("Subject: x\r\n\r\nhi\r\n", "\r\n"),
    ] {
        let (code, out, _) = deliver(
            spool.path(),
            &["-f", "<me@example.com>", "box"],
            message.as_bytes(),
        );
        assert_eq!(code, Some(0));
        let stored =
            fs::read_to_string(spool.path().join(format!("box/{}.eml", out.trim_end()))).unwrap();
        assert_eq!(
            stored,
            format!("Return-Path: <me@example.com>{line_end}{message}")
        );
    }
    let (code, out, _) = deliver(spool.path(), &["-f", "", "box"], b"Subject: bounce\n\n");
    assert_eq!(code, Some(0));
    let stored =
        fs::read_to_string(spool.path().join(format!("box/{}.eml", out.trim_end()))).unwrap();
    assert!(stored.starts_with("Return-Path: <>\n"));
}

#[test]
fn failures_leave_no_trace_and_speak_sysexits() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    fs::create_dir(&spool).unwrap();
    fs::write(spool.join("taken"), "a file").unwrap();
    let cases: [(&[&str], &[u8], i32, &str); 8] = [
        (&["box"], b"", 65, "empty"),
        (&["../x"], b"Subject: x\n\n", 64, "slash"),
        (&[".x"], b"Subject: x\n\n", 64, "dot"),
        (&["+tag"], b"Subject: x\n\n", 64, "empty"),
        (&["-f", "a\nb", "box"], b"Subject: x\n\n", 64, "address"),
        (&[], b"Subject: x\n\n", 64, "MAILBOX-OR-ADDRESS"),
        (
            &["--no-such-flag", "box"],
            b"Subject: x\n\n",
            64,
            "--no-such-flag",
        ),
        (&["taken"], b"Subject: x\n\n", 73, "not a directory"),
    ];
    for (args, input, code, why) in cases {
        let (got, out, err) = deliver(&spool, args, input);
        assert_eq!(got, Some(code), "{args:?}: {err}");
        assert_eq!(out, "");
        assert!(err.contains(why), "{args:?}: {err}");
    }
    let (code, _, err) = deliver(&dir.path().join("missing"), &["box"], b"Subject: x\n\n");
    assert_eq!(code, Some(75));
    assert!(err.contains("the spool must exist"), "{err}");
    assert!(!dir.path().join("missing").exists());
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 1);
}

#[test]
fn a_delivery_that_is_dropped_leaves_nothing_not_even_its_mailbox() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), Options::default()).unwrap();
    let mailbox = spool.mailbox(&MailboxName::parse("box").unwrap());
    let mut delivery = mailbox.deliver().unwrap();
    delivery.write_all(b"half").unwrap();
    assert!(dir.path().join("box").exists());
    drop(delivery);
    assert!(!dir.path().join("box").exists());
    // A mailbox that was there before stays.
    fs::create_dir(dir.path().join("box")).unwrap();
    drop(mailbox.deliver().unwrap());
    assert_eq!(fs::read_dir(dir.path().join("box")).unwrap().count(), 0);
}

#[test]
fn ids_ascend_in_arrival_order_whatever_the_clock_says() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    // Left by a server whose clock was ahead.
    fs::write(path.join("20991231T235958-9998.eml"), mail("future")).unwrap();
    let spool = Spool::open(dir.path(), Options::default()).unwrap();
    let mailbox = spool.mailbox(&MailboxName::parse("box").unwrap());
    mailbox.list().unwrap();
    let mut last = "20991231T235958-9998".to_owned();
    for expected in [
        "20991231T235958-9999",
        "20991231T235959-0001",
        "20991231T235959-0002",
    ] {
        let mut delivery = mailbox.deliver().unwrap();
        delivery.write_all(b"Subject: x\n\n").unwrap();
        let id = delivery.commit().unwrap().to_string();
        assert!(id > last);
        assert_eq!(id, expected);
        last = id;
    }
    // Another process, which has read no names, goes by the directory's own time.
    let ahead = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
    fs::create_dir(dir.path().join("ahead")).unwrap();
    fs::File::open(dir.path().join("ahead"))
        .unwrap()
        .set_modified(ahead)
        .unwrap();
    let (code, id, _) = deliver(dir.path(), &["ahead"], b"Subject: x\n\n");
    assert_eq!(code, Some(0));
    let tomorrow = chrono::DateTime::<chrono::Utc>::from(ahead)
        .format("%Y%m%dT%H%M%S-")
        .to_string();
    assert!(id.starts_with(&tomorrow), "{id}");
}

#[test]
fn deliveries_one_after_another_ascend_whoever_makes_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = String::new();
    for n in 0..60 {
        let (code, id, _) = deliver(dir.path(), &["box"], mail(&n.to_string()).as_bytes());
        assert_eq!(code, Some(0));
        assert!(id > last, "{id} after {last}");
        last = id;
    }
}

#[test]
fn an_id_is_not_given_again_by_the_same_process() {
    let dir = tempfile::tempdir().unwrap();
    let spool = Spool::open(dir.path(), Options::default()).unwrap();
    let mut given = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let mailbox = spool.mailbox(&MailboxName::parse("box").unwrap());
        let mut delivery = mailbox.deliver().unwrap();
        delivery.write_all(b"Subject: x\n\n").unwrap();
        assert!(given.insert(delivery.commit().unwrap()));
        fs::remove_dir_all(dir.path().join("box")).unwrap();
        assert!(mailbox.list().unwrap().entries().is_empty());
    }
}

#[test]
fn a_delivery_that_fails_midway_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("old")).unwrap();
    for mailbox in ["old", "new"] {
        // A limit on the size of files stands in for a disk that is full.
        let script = format!(
            "trap '' XFSZ; ulimit -f 100; exec {} deliver --spool {} {mailbox}",
            crate::support::PROGRAM,
            dir.path().display()
        );
        let message = [mail("large").into_bytes(), vec![b'x'; 1_000_000]].concat();
        let output = run(
            std::process::Command::new("bash").args(["-c", &script]),
            &message,
        );
        assert_eq!(output.status.code(), Some(75), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    }
    assert_eq!(fs::read_dir(dir.path().join("old")).unwrap().count(), 0);
    assert!(!dir.path().join("new").exists());
}

#[test]
fn many_processes_and_threads_never_give_an_id_twice() {
    let server = Server::start();
    let spool = Spool::open(&server.spool, Options::default()).unwrap();
    let name = MailboxName::parse("box").unwrap();
    let ids = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let (code, id, err) =
                        deliver(&server.spool, &["box"], mail("process").as_bytes());
                    assert_eq!(code, Some(0), "{err}");
                    ids.lock().unwrap().push(id.trim_end().to_owned());
                }
            });
            scope.spawn(|| {
                let mut last = None;
                for _ in 0..50 {
                    let mut delivery = spool.mailbox(&name).deliver().unwrap();
                    delivery.write_all(mail("thread").as_bytes()).unwrap();
                    let id = delivery.commit().unwrap();
                    assert!(last.as_ref() < Some(&id));
                    ids.lock().unwrap().push(id.to_string());
                    last = Some(id);
                }
            });
        }
        scope.spawn(|| (0..50).for_each(|_| drop(server.list("box"))));
    });
    let mut ids = ids.into_inner().unwrap();
    ids.sort();
    assert_eq!(ids.len(), 180);
    assert_eq!(server.ids("box"), ids);
}

#[test]
fn modes_are_the_umasks_business() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "umask 027; exec {} deliver --spool {} box",
        crate::support::PROGRAM,
        dir.path().display()
    );
    let output = run(
        std::process::Command::new("sh").args(["-c", &script]),
        b"Subject: x\n\n",
    );
    assert!(output.status.success(), "{output:?}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir.path().join("box")), 0o750);
    let message = fs::read_dir(dir.path().join("box"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    assert_eq!(mode(&message), 0o640);
}
