//! The sidecar follows, survives, and is never trusted blindly.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Random, Server, eventually, mail};

fn sidecar(spool: &Path, mailbox: &str) -> Result<Value, String> {
    let text = fs::read(spool.join(mailbox).join("index.json")).map_err(|err| err.to_string())?;
    serde_json::from_slice(&text).map_err(|err| err.to_string())
}

fn ids_in_sidecar(spool: &Path, mailbox: &str) -> Result<Vec<String>, String> {
    let sidecar = sidecar(spool, mailbox)?;
    let id = |message: &Value| message["id"].as_str().unwrap().to_owned();
    Ok(sidecar["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(id)
        .collect())
}

/// A second of quiet, and some more for a machine that is busy.
const SOON: Duration = Duration::from_secs(5);

fn follows(spool: &Path, mailbox: &str, expected: &[&str]) {
    eventually(SOON, || match ids_in_sidecar(spool, mailbox) {
        Ok(ids) if ids == expected => Ok(()),
        other => Err(other),
    });
}

#[test]
fn it_has_one_message_per_line_with_its_stamp() {
    use std::os::unix::fs::MetadataExt;
    let server = Server::start();
    server.drop_message("box", "a", mail("first"));
    server.drop_message("box", "b", mail("second"));
    assert_eq!(server.ids("box").len(), 2);
    assert_eq!(
        server
            .send("PATCH", "/api/v1/mailbox/box/b", &[], b"")
            .status,
        200
    );
    let text = fs::read_to_string(server.spool.join("box/index.json")).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(
        (lines[0], lines[3]),
        ("{\"version\":1,\"messages\":[", "]}")
    );
    let file = fs::metadata(server.spool.join("box/b.eml")).unwrap();
    let mtime = file.mtime() * 1_000_000_000 + file.mtime_nsec();
    let expected = format!(
        "{{\"id\":\"b\",\"size\":{},\"mtime\":{mtime},\"inode\":{},\"from\":\"Ann <ann@example.com>\",\
         \"to\":[\"<bob@example.com>\"],\"subject\":\"second\",\"seen\":true}}",
        file.len(),
        file.ino(),
    );
    assert_eq!(lines[2], expected);
}

#[test]
fn it_follows_every_change_also_where_nobody_asks() {
    let server = Server::start();
    server.drop_message("quiet", "a", mail("a"));
    follows(&server.spool, "quiet", &["a"]);
    server.drop_message("quiet", "b", mail("b"));
    follows(&server.spool, "quiet", &["a", "b"]);
    fs::remove_file(server.spool.join("quiet/a.eml")).unwrap();
    follows(&server.spool, "quiet", &["b"]);
    server.request("DELETE", "/api/v1/mailbox/quiet");
    follows(&server.spool, "quiet", &[]);
    // An empty directory stays as it is.
    fs::create_dir(server.spool.join("empty")).unwrap();
    assert!(server.ids("empty").is_empty());
    server.drop_message("later", "x", mail("x"));
    follows(&server.spool, "later", &["x"]);
    assert!(!server.spool.join("empty/index.json").exists());
}

#[test]
fn it_is_written_on_shutdown() {
    let spool = tempfile::tempdir().unwrap();
    let server = Server::on(spool.path());
    server.drop_message("box", "a", mail("a"));
    assert_eq!(server.ids("box"), ["a"]);
    assert!(server.stop().success());
    assert_eq!(ids_in_sidecar(spool.path(), "box").unwrap(), ["a"]);
}

#[test]
fn a_mark_is_on_disk_before_patch_answers_and_survives_a_kill() {
    let spool = tempfile::tempdir().unwrap();
    let server = Server::on(spool.path());
    for n in 0..20 {
        server.drop_message("box", &format!("m{n:02}"), mail("x"));
    }
    // Many at once share their saves, and each is there when it has been answered.
    std::thread::scope(|scope| {
        for n in 0..20 {
            let (server, spool) = (&server, spool.path());
            scope.spawn(move || {
                let id = format!("m{n:02}");
                let response = server.send(
                    "PATCH",
                    &format!("/api/v1/mailbox/box/{id}"),
                    &[],
                    b"{\"seen\":true}",
                );
                assert_eq!(response.status, 200);
                let sidecar = sidecar(spool, "box").unwrap();
                let messages = sidecar["messages"].as_array().unwrap();
                let own = messages
                    .iter()
                    .find(|message| message["id"] == id.as_str())
                    .unwrap();
                assert_eq!(own["seen"], true);
            });
        }
    });
    server.signal(rustix::process::Signal::KILL);
    drop(server);
    let server = Server::on(spool.path());
    assert!(server.list("box").iter().all(|entry| entry["seen"] == true));
}

#[test]
fn a_mark_that_is_set_already_is_on_disk_again_when_patch_answers() {
    let spool = tempfile::tempdir().unwrap();
    let mut server = Server::on(spool.path());
    server.drop_message("box", "a", mail("a"));
    let path = spool.path().join("box/index.json");
    for round in 0..3 {
        let patch = |server: &Server| {
            server
                .send("PATCH", "/api/v1/mailbox/box/a", &[], b"")
                .status
        };
        assert_eq!(patch(&server), 200);
        match round {
            0 => fs::remove_file(&path).unwrap(),
            1 => fs::write(&path, "garbage").unwrap(),
            _ => fs::write(&path, "{\"version\":1,\"messages\":[]}").unwrap(),
        }
        assert_eq!(patch(&server), 200);
        server.signal(rustix::process::Signal::KILL);
        drop(server);
        server = Server::on(spool.path());
        assert_eq!(server.list("box")[0]["seen"], true, "round {round}");
    }
}

#[test]
fn a_mark_that_cannot_be_saved_is_not_set() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    fs::create_dir(server.spool.join("box/index.json")).unwrap();
    let failed = server.send("PATCH", "/api/v1/mailbox/box/a", &[], b"");
    assert!(failed.status >= 500, "{failed:?}");
    assert_eq!(
        failed.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(server.list("box")[0]["seen"], false);
    fs::remove_dir(server.spool.join("box/index.json")).unwrap();
    assert_eq!(
        server
            .send("PATCH", "/api/v1/mailbox/box/a", &[], b"")
            .status,
        200
    );
    assert_eq!(server.list("box")[0]["seen"], true);
}

#[test]
fn damage_of_any_kind_costs_nothing_but_marks() {
    let spool = tempfile::tempdir().unwrap();
    let mut random = Random::new(42);
    for mailbox in 0..12 {
        for message in 0..8 {
            let id = format!("m{message}");
            crate::support::drop_message(
                spool.path(),
                &format!("box{mailbox}"),
                &id,
                mail(&format!("{mailbox}/{message}")),
            );
        }
    }
    for round in 0..3 {
        let server = Server::on(spool.path());
        for mailbox in 0..12 {
            let name = format!("box{mailbox}");
            let list = server.list(&name);
            let subjects: Vec<_> = list
                .iter()
                .map(|e| e["subject"].as_str().unwrap().to_owned())
                .collect();
            let expected: Vec<_> = (0..8)
                .map(|message| format!("{mailbox}/{message}"))
                .collect();
            assert_eq!(subjects, expected, "round {round}");
            follows(
                &server.spool,
                &name,
                &["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7"],
            );
        }
        let log = server.log();
        assert!(!log.contains("ERROR") && !log.contains("panic"), "{log}");
        assert!(server.stop().success());
        for mailbox in 0..12 {
            let path = spool.path().join(format!("box{mailbox}/index.json"));
            damage(&path, mailbox + round, &mut random);
        }
    }
}

fn damage(path: &Path, kind: usize, random: &mut Random) {
    let content = fs::read(path).unwrap();
    match kind % 8 {
        0 => fs::remove_file(path).unwrap(),
        1 => fs::write(path, b"").unwrap(),
        2 => fs::write(path, &content[..random.below(content.len())]).unwrap(),
        3 => fs::write(path, (0..5000).map(|_| random.next() as u8).collect::<Vec<_>>()).unwrap(),
        4 => {
            let text = String::from_utf8(content).unwrap();
            fs::write(path, text.replace("\"version\":1", "\"version\":2")).unwrap();
        }
        5 => {
            let mut bytes = content;
            for _ in 0..10 {
                let at = random.below(bytes.len());
                bytes[at] = random.next() as u8;
            }
            fs::write(path, bytes).unwrap();
        }
        6 => fs::write(path, "[".repeat(200_000)).unwrap(),
        // Entries for messages that are not there, and none for those that are.
        _ => fs::write(
            path,
            "{\"version\":1,\"messages\":[\n{\"id\":\"ghost\",\"size\":1,\"mtime\":1,\"inode\":1,\"from\":\"\",\"to\":[],\
             \"subject\":\"boo\",\"seen\":true}\n]}\n",
        )
        .unwrap(),
    }
}

#[test]
fn damage_under_a_running_server_is_mended() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    follows(&server.spool, "box", &["a"]);
    fs::remove_file(server.spool.join("box/index.json")).unwrap();
    follows(&server.spool, "box", &["a"]);
    fs::write(server.spool.join("box/index.json"), "noise").unwrap();
    server.drop_message("box", "b", mail("b"));
    assert_eq!(server.ids("box"), ["a", "b"]);
    follows(&server.spool, "box", &["a", "b"]);
}

#[test]
fn a_sidecar_with_wrong_stamps_is_not_believed() {
    let spool = tempfile::tempdir().unwrap();
    crate::support::drop_message(spool.path(), "box", "a", mail("truth"));
    let lie = |inode: u64| {
        let line = format!(
            "{{\"id\":\"a\",\"size\":1,\"mtime\":1,\"inode\":{inode},\"from\":\"\",\"to\":[],\"subject\":\"lie\",\"seen\":true}}"
        );
        fs::write(
            spool.path().join("box/index.json"),
            format!("{{\"version\":1,\"messages\":[\n{line}\n]}}\n"),
        )
        .unwrap();
    };
    use std::os::unix::fs::MetadataExt;
    for inode in [
        1,
        fs::metadata(spool.path().join("box/a.eml")).unwrap().ino(),
    ] {
        lie(inode);
        let server = Server::on(spool.path());
        let list = server.list("box");
        assert_eq!(
            (&list[0]["subject"], &list[0]["seen"]),
            (&"truth".into(), &true.into())
        );
    }
}

#[test]
fn stamps_are_verified_behind_the_first_list_of_a_large_mailbox() {
    let spool = tempfile::tempdir().unwrap();
    for n in 0..600 {
        crate::support::drop_message(spool.path(), "box", &format!("m{n:03}"), mail("truth"));
    }
    let server = Server::on(spool.path());
    assert_eq!(server.list("box").len(), 600);
    assert!(server.stop().success());
    // The names and inodes are right, the stamp is not: as after a rewrite while no server ran.
    let path = spool.path().join("box/index.json");
    let text = fs::read_to_string(&path).unwrap();
    let lie = |line: &str| match line.contains("\"id\":\"m007\"") {
        true => line
            .replace("\"mtime\":1", "\"mtime\":2")
            .replace("truth", "lie"),
        false => line.to_owned(),
    };
    fs::write(&path, text.lines().map(lie).collect::<Vec<_>>().join("\n")).unwrap();
    let server = Server::on(spool.path());
    assert_eq!(server.list("box").len(), 600);
    eventually(SOON, || {
        let list = server.list("box");
        let wrong: Vec<_> = list
            .into_iter()
            .filter(|entry| entry["subject"] != "truth")
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    });
}

#[test]
fn a_read_only_spool_is_served_all_the_same() {
    if crate::support::is_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(
            dir.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let spool = dir.path().join("spool");
        crate::support::drop_message(&spool, "box", "a", mail("a"));
        // A user without rights may read everything here and write nothing.
        let log_dir = tempfile::tempdir().unwrap();
        let server = Server::launch(log_dir, &spool, &[], |command| {
            std::os::unix::process::CommandExt::uid(command, crate::support::NOBODY);
        });
        assert_eq!(server.ids("box"), ["a"]);
        assert_eq!(server.message("box", "a")["subject"], "a");
        for (method, path) in [
            ("PATCH", "/api/v1/mailbox/box/a"),
            ("DELETE", "/api/v1/mailbox/box/a"),
        ] {
            assert_eq!(server.request(method, path).status, 503, "{method}");
        }
        eventually(SOON, || {
            let log = server.log();
            if log.matches("the index stays in memory").count() == 1 {
                Ok(())
            } else {
                Err(log)
            }
        });
        assert_eq!(server.ids("box"), ["a"]);
    } else {
        // The same with our own rights taken away.
        use std::os::unix::fs::PermissionsExt;
        let server = Server::start();
        server.drop_message("box", "a", mail("a"));
        fs::set_permissions(server.spool.join("box"), fs::Permissions::from_mode(0o555)).unwrap();
        assert_eq!(server.ids("box"), ["a"]);
        assert_eq!(
            server.request("DELETE", "/api/v1/mailbox/box/a").status,
            503
        );
        fs::set_permissions(server.spool.join("box"), fs::Permissions::from_mode(0o755)).unwrap();
    }
}
