//! What is not mail is never listed, served, followed or deleted, is named once, and hides nothing.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use crate::support::{NOBODY, Server, eventually, is_root, mail};

fn count(log: &str, needle: &str) -> usize {
    log.lines()
        .filter(|line| line.contains(needle) && line.contains("left alone"))
        .count()
}

#[test]
fn every_kind_of_stray_is_left_alone() {
    let server = Server::start();
    server.drop_message("box", "good", mail("good"));
    let path = server.spool.join("box");
    let outside = server.spool.with_file_name("outside.eml");
    fs::write(&outside, mail("outside")).unwrap();
    symlink(&outside, path.join("link-out.eml")).unwrap();
    symlink("good.eml", path.join("link-in.eml")).unwrap();
    symlink("nowhere", path.join("dangling.eml")).unwrap();
    fs::create_dir(path.join("dir.eml")).unwrap();
    fs::write(path.join("dir.eml/inner.eml"), mail("inner")).unwrap();
    fs::create_dir(path.join("cur")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path.join("fifo.eml"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(path.join("socket.eml")).unwrap();
    let plain = [
        "UPPER.EML",
        "latest.eml",
        "notes.txt",
        "inbox.mbox",
        ".hidden.eml",
        ".part",
        " space.eml",
        "back\\slash.eml",
    ];
    for name in plain {
        fs::write(path.join(name), mail("stray")).unwrap();
    }
    fs::write(
        path.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff.eml")),
        mail("stray"),
    )
    .unwrap();
    fs::write(path.join("control\n.eml"), mail("stray")).unwrap();
    let before = fs::read_dir(&path).unwrap().count();

    for _ in 0..3 {
        assert_eq!(server.ids("box"), ["good"]);
    }
    for id in [
        "link-out", "link-in", "dangling", "dir", "fifo", "socket", "UPPER", "cur",
    ] {
        for (method, suffix) in [
            ("GET", ""),
            ("GET", "/source"),
            ("DELETE", ""),
            ("PATCH", ""),
        ] {
            let path = format!("/api/v1/mailbox/box/{id}{suffix}");
            assert_eq!(server.request(method, &path).status, 404, "{method} {path}");
        }
    }
    assert_eq!(server.message("box", "latest")["id"], "good");
    assert_eq!(server.request("DELETE", "/api/v1/mailbox/box").status, 200);
    assert!(server.ids("box").is_empty());
    // All but the one message, with the sidecar that may have come.
    let left = fs::read_dir(&path)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name() != "index.json")
        .count();
    assert_eq!(left, before - 1);
    assert!(outside.exists() && path.join("dir.eml/inner.eml").exists());

    // Each is named once, with the remedy.
    server.drop_message("box", "more", mail("more"));
    assert_eq!(server.ids("box"), ["more"]);
    let log = server.log();
    for name in [
        "link-out.eml",
        "link-in.eml",
        "dir.eml",
        "fifo.eml",
        "socket.eml",
        "UPPER.EML",
        "latest.eml",
        "inbox.mbox",
        "notes.txt",
    ] {
        assert_eq!(
            count(&log, &format!("{name}\\\"")).max(count(&log, &format!("\"{name}\""))),
            1,
            "{name} in {log}"
        );
    }
    assert!(log.contains("rename it"));
}

#[test]
fn links_and_files_in_place_of_mailboxes_are_no_mailboxes() {
    let server = Server::start();
    let outside = server.spool.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("a.eml"), mail("outside")).unwrap();
    server.drop_message("real", "a", mail("inside"));
    symlink(&outside, server.spool.join("link")).unwrap();
    symlink("real", server.spool.join("inner")).unwrap();
    fs::write(server.spool.join("file"), mail("file")).unwrap();
    for name in ["link", "inner", "file"] {
        assert!(server.ids(name).is_empty(), "{name}");
        assert_eq!(server.get(&format!("/api/v1/mailbox/{name}/a")).status, 404);
        assert_eq!(
            server
                .get(&format!("/api/v1/mailbox/{name}/a/source"))
                .status,
            404
        );
        assert_eq!(
            server
                .request("DELETE", &format!("/api/v1/mailbox/{name}/a"))
                .status,
            404
        );
        assert_eq!(
            server
                .request("DELETE", &format!("/api/v1/mailbox/{name}"))
                .status,
            200
        );
    }
    assert!(outside.join("a.eml").exists() && server.spool.join("file").exists());
    assert_eq!(server.ids("real"), ["a"]);
    eventually(std::time::Duration::from_secs(5), || {
        let log = server.log();
        let named = ["link", "inner", "file"]
            .iter()
            .all(|name| count(&log, &format!("name=\"{name}\"")) == 1);
        if named { Ok(()) } else { Err(log) }
    });
}

#[test]
fn the_spool_itself_may_be_a_link() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("real")).unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    let server = Server::on(&dir.path().join("link"));
    server.drop_message("box", "a", mail("a"));
    assert_eq!(server.ids("box"), ["a"]);
    assert_eq!(
        server.request("DELETE", "/api/v1/mailbox/box/a").status,
        200
    );
    assert!(!dir.path().join("real/box/a.eml").exists());
}

#[test]
fn an_unreadable_message_is_skipped_until_it_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let spool = dir.path().join("spool");
    crate::support::drop_message(&spool, "box", "good", mail("good"));
    crate::support::drop_message(&spool, "box", "locked", mail("locked"));
    let locked = spool.join("box/locked.eml");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    if is_root() {
        // To root nothing is unreadable, so the server runs as somebody else, who owns the mailbox.
        for path in [&spool, &spool.join("box")] {
            std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
        }
    }
    let log_dir = tempfile::tempdir().unwrap();
    let server = Server::launch(log_dir, &spool, &[], |command| {
        if is_root() {
            std::os::unix::process::CommandExt::uid(command, NOBODY);
        }
    });
    assert_eq!(server.ids("box"), ["good"]);
    for (method, suffix) in [("GET", ""), ("GET", "/source"), ("DELETE", "")] {
        let path = format!("/api/v1/mailbox/box/locked{suffix}");
        assert_eq!(server.request(method, &path).status, 404, "{method} {path}");
    }
    assert_eq!(server.request("DELETE", "/api/v1/mailbox/box").status, 200);
    assert!(locked.exists());
    assert_eq!(count(&server.log(), "locked.eml"), 1);
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o644)).unwrap();
    // The advice in the log works by itself.
    eventually(std::time::Duration::from_secs(5), || {
        match server.ids("box") {
            ids if ids == ["locked"] => Ok(()),
            ids => Err(ids),
        }
    });
}

#[test]
fn a_message_that_vanishes_between_listing_and_reading_hides_nothing() {
    let server = Server::start();
    server.drop_message("box", "steady", mail("steady"));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = server.spool.join(format!("box/flicker{}.eml", n % 7));
                let _ = fs::write(&path, mail("flicker"));
                let _ = fs::remove_file(&path);
                n += 1;
            }
        });
        for _ in 0..300 {
            let response = server.get("/api/v1/mailbox/box");
            assert_eq!(response.status, 200, "{response:?}");
            let listed = response.json();
            let steady = listed
                .as_array()
                .unwrap()
                .iter()
                .filter(|e| e["id"] == "steady")
                .count();
            assert_eq!(steady, 1, "{listed}");
            let latest = server.get("/api/v1/mailbox/box/latest").status;
            assert!([200, 404].contains(&latest), "{latest}");
            let flicker = server.get("/api/v1/mailbox/box/flicker3").status;
            assert!([200, 404].contains(&flicker), "{flicker}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(server.ids("box"), ["steady"]);
}
