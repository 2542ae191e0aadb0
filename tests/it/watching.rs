//! What happens in the spool is followed without anybody asking: by events, and by polling.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Server, eventually, mail};

/// The contract says 2 seconds; a busy machine gets some more.
const SOON: Duration = Duration::from_secs(6);

fn in_sidecar(spool: &Path, mailbox: &str) -> Result<Vec<(String, String)>, String> {
    let text = fs::read(spool.join(mailbox).join("index.json")).map_err(|err| err.to_string())?;
    let value: Value = serde_json::from_slice(&text).map_err(|err| err.to_string())?;
    let text = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
    let messages = value["messages"].as_array().unwrap();
    Ok(messages
        .iter()
        .map(|message| (text(message, "id"), text(message, "subject")))
        .collect())
}

/// Nobody asks the server: its sidecar tells what it knows.
#[track_caller]
fn follows(spool: &Path, mailbox: &str, expected: &[(&str, &str)]) {
    eventually(SOON, || match in_sidecar(spool, mailbox) {
        Ok(found)
            if found
                .iter()
                .map(|(id, subject)| (id.as_str(), subject.as_str()))
                .eq(expected.iter().copied()) =>
        {
            Ok(())
        }
        other => Err(other),
    });
}

fn watcher(server: &Server) -> Value {
    server.get("/api/v1/status").json()["watcher"].clone()
}

fn modes() -> [Server; 2] {
    let native = Server::start_with(&["--watch", "native"]);
    let poll = Server::start_with(&["--watch", "poll", "--poll-interval", "300ms"]);
    for (server, mode) in [(&native, "native"), (&poll, "poll")] {
        eventually(SOON, || match watcher(server) {
            status if status["mode"] == mode => Ok(()),
            status => Err(status),
        });
    }
    [native, poll]
}

#[test]
fn every_change_reaches_the_sidecar_unasked() {
    for server in modes() {
        let spool = &server.spool;
        server.drop_message("a", "one", mail("one"));
        follows(spool, "a", &[("one", "one")]);
        fs::write(spool.join("a/two.eml"), mail("two")).unwrap();
        follows(spool, "a", &[("one", "one"), ("two", "two")]);
        // Rewritten in place.
        fs::write(spool.join("a/two.eml"), mail("again")).unwrap();
        follows(spool, "a", &[("one", "one"), ("two", "again")]);
        fs::rename(spool.join("a/one.eml"), spool.join("a/three.eml")).unwrap();
        fs::remove_file(spool.join("a/two.eml")).unwrap();
        follows(spool, "a", &[("three", "one")]);
        // The mailbox gets another name, and is followed under it.
        fs::rename(spool.join("a"), spool.join("b")).unwrap();
        server.drop_message("b", "four", mail("four"));
        follows(spool, "b", &[("four", "four"), ("three", "one")]);
        // Removed and made again.
        fs::remove_dir_all(spool.join("b")).unwrap();
        server.drop_message("b", "five", mail("five"));
        follows(spool, "b", &[("five", "five")]);
        server.drop_message("b", "six", mail("six"));
        follows(spool, "b", &[("five", "five"), ("six", "six")]);
    }
}

#[test]
fn a_rewrite_in_place_is_listed_within_a_second() {
    let server = Server::start_with(&["--watch", "native"]);
    for n in 0..700 {
        server.drop_message("box", &format!("m{n:03}"), mail("old"));
    }
    assert_eq!(server.list("box").len(), 700);
    for round in 0..5 {
        let subject = format!("r{round}");
        fs::write(server.spool.join("box/m350.eml"), mail(&subject)).unwrap();
        eventually(Duration::from_secs(2), || {
            match &server.list("box")[350]["subject"] {
                found if *found == subject.as_str() => Ok(()),
                found => Err(found.clone()),
            }
        });
    }
}

#[test]
fn a_file_that_is_written_slowly_is_corrected_when_it_is_complete() {
    use std::io::Write;
    for server in modes() {
        fs::create_dir(server.spool.join("box")).unwrap();
        let mut file = fs::File::create(server.spool.join("box/slow.eml")).unwrap();
        for piece in ["Subject: s", "lo", "wly\n", "\nbo", "dy\n"] {
            file.write_all(piece.as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(60));
        }
        drop(file);
        follows(&server.spool, "box", &[("slow", "slowly")]);
    }
}

#[test]
fn a_populated_directory_moved_in_and_the_spool_moved_away_and_back() {
    for server in modes() {
        let outside = server.spool.with_file_name("outside");
        fs::create_dir(&outside).unwrap();
        for n in 0..3 {
            fs::write(outside.join(format!("m{n}.eml")), mail(&n.to_string())).unwrap();
        }
        fs::rename(&outside, server.spool.join("in")).unwrap();
        follows(
            &server.spool,
            "in",
            &[("m0", "0"), ("m1", "1"), ("m2", "2")],
        );

        let away = server.spool.with_file_name("away");
        fs::rename(&server.spool, &away).unwrap();
        eventually(SOON, || match server.get("/readyz").status {
            503 => Ok(()),
            other => Err(other),
        });
        fs::remove_file(away.join("in/m1.eml")).unwrap();
        fs::rename(&away, &server.spool).unwrap();
        follows(&server.spool, "in", &[("m0", "0"), ("m2", "2")]);
        // Another spool in its place, and the watcher lives.
        fs::rename(&server.spool, &away).unwrap();
        fs::create_dir(&server.spool).unwrap();
        server.drop_message("new", "x", mail("x"));
        follows(&server.spool, "new", &[("x", "x")]);
        std::thread::sleep(Duration::from_millis(1_200));
        server.drop_message("new", "y", mail("y"));
        follows(&server.spool, "new", &[("x", "x"), ("y", "y")]);
        assert_eq!(server.ids("in"), Vec::<String>::new());
    }
}

#[test]
fn a_burst_of_forty_thousand_files_is_followed_and_the_watcher_lives() {
    let server = Server::start_with(&["--watch", "native"]);
    let path = server.spool.join("box");
    fs::create_dir(&path).unwrap();
    for n in 0..40_000 {
        fs::write(path.join(format!("m{n:05}.eml")), "Subject: burst\n\n").unwrap();
    }
    eventually(Duration::from_secs(30), || {
        match in_sidecar(&server.spool, "box") {
            Ok(found) if found.len() == 40_000 => Ok(()),
            Ok(found) => Err(found.len().to_string()),
            Err(err) => Err(err),
        }
    });
    server.drop_message("other", "x", mail("x"));
    follows(&server.spool, "other", &[("x", "x")]);
    fs::write(server.spool.join("other/x.eml"), mail("still alive")).unwrap();
    follows(&server.spool, "other", &[("x", "still alive")]);
}

#[test]
#[ignore = "needs root, or user namespaces: scripts/test --all"]
fn without_watches_the_spool_is_polled_and_the_log_says_why() {
    // A user namespace has limits of its own, so nobody else's watches are in danger.
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    for n in 0..200 {
        crate::support::drop_message(&spool, &format!("box{n:03}"), "m", mail("m"));
    }
    let server = Server::launch_through(
        &[
            "unshare",
            "--user",
            "--map-root-user",
            "sh",
            "-c",
            "echo 50 > /proc/sys/user/max_inotify_watches && exec \"$@\"",
            "sh",
        ],
        tempfile::tempdir().unwrap(),
        &spool,
        &["--poll-interval", "300ms"],
    );
    eventually(SOON, || match watcher(&server) {
        status if status["mode"] == "poll" => Ok(()),
        status => Err(status),
    });
    let log = server.log();
    assert_eq!(log.matches("max_user_watches").count(), 1, "{log}");
    for n in [0, 77, 199] {
        let mailbox = format!("box{n:03}");
        server.drop_message(&mailbox, "new", mail("new"));
        follows(&spool, &mailbox, &[("m", "m"), ("new", "new")]);
    }
}

#[test]
fn an_idle_server_does_nothing() {
    let server = Server::start();
    for n in 0..300 {
        server.drop_message(&format!("box{n:03}"), "m", mail("m"));
    }
    for n in 0..300 {
        follows(&server.spool, &format!("box{n:03}"), &[("m", "m")]);
    }
    let used = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        let io = fs::read_to_string(format!("/proc/{}/io", server.pid())).unwrap();
        let written = io
            .lines()
            .find_map(|line| line.strip_prefix("write_bytes: "))
            .unwrap()
            .parse::<u64>()
            .unwrap();
        (
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(),
            written,
        )
    };
    // Let what has just been written settle.
    std::thread::sleep(Duration::from_secs(2));
    let (ticks, written) = used();
    std::thread::sleep(Duration::from_secs(5));
    let (ticks_later, written_later) = used();
    assert_eq!(written_later, written, "an idle server writes");
    assert!(
        ticks_later - ticks <= 5,
        "{} ticks in five idle seconds",
        ticks_later - ticks
    );
}
