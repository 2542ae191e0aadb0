//! A spool is backed up and restored with ordinary tools while the server runs.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Random, Server, mail};

fn filled() -> Server {
    let server = Server::start();
    let mut random = Random::new(7);
    for mailbox in ["alice", "bob@example.com", "böb x"] {
        for n in 0..20 {
            let id = format!("m{n:02}");
            server.drop_message(mailbox, &id, mail(&format!("{mailbox} {n}")));
            let time = std::time::UNIX_EPOCH
                + std::time::Duration::new(
                    1_600_000_000 + random.below(100_000_000) as u64,
                    random.below(1_000_000_000) as u32,
                );
            let path = server.spool.join(mailbox).join(format!("{id}.eml"));
            crate::support::set_date(path, time);
        }
    }
    for n in 0..5 {
        assert_eq!(
            server
                .send("PATCH", &format!("/api/v1/mailbox/alice/m{n:02}"), &[], b"")
                .status,
            200
        );
    }
    server
}

fn lists(server: &Server) -> Vec<Vec<Value>> {
    ["alice", "bob@example.com", "b%C3%B6b%20x"]
        .map(|name| server.list(name))
        .into()
}

fn restored_is_the_same(copy: impl FnOnce(&Path, &Path)) {
    let server = filled();
    let before = lists(&server);
    assert!(before.iter().all(|list| list.len() == 20));
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("restored");
    copy(&server.spool, &target);
    assert_eq!(lists(&server), before);
    let restored = Server::on(&target);
    assert_eq!(lists(&restored), before);
    for id in ["m00", "latest"] {
        assert_eq!(
            restored.message("alice", id),
            rehosted(&server, &restored, id)
        );
    }
    // Without the sidecars everything is the same but `seen`.
    drop(restored);
    for mailbox in fs::read_dir(&target).unwrap() {
        let _ = fs::remove_file(mailbox.unwrap().path().join("index.json"));
    }
    assert_eq!(lists(&Server::on(&target)), unseen(before));
}

fn unseen(mut lists: Vec<Vec<Value>>) -> Vec<Vec<Value>> {
    let entries = lists.iter_mut().flatten();
    entries.for_each(|entry| entry["seen"] = false.into());
    lists
}

fn rehosted(server: &Server, other: &Server, id: &str) -> Value {
    let text = server.message("alice", id).to_string();
    serde_json::from_str(&text.replace(&server.address.to_string(), &other.address.to_string()))
        .unwrap()
}

fn succeed(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|err| panic!("{command:?}: {err}"));
    assert!(status.success(), "{command:?}");
}

#[test]
fn cp() {
    restored_is_the_same(|from, to| succeed(Command::new("cp").arg("-a").args([from, to])));
}

#[test]
fn tar() {
    restored_is_the_same(|from, to| {
        let archive = to.with_extension("tar");
        let mut pack = Command::new("tar");
        succeed(
            pack.args(["--format=posix", "-cf"])
                .arg(&archive)
                .arg("-C")
                .arg(from)
                .arg("."),
        );
        fs::create_dir(to).unwrap();
        succeed(
            Command::new("tar")
                .arg("-xf")
                .arg(&archive)
                .arg("-C")
                .arg(to),
        );
    });
}

#[test]
#[ignore = "needs rsync: scripts/test --all"]
fn rsync() {
    restored_is_the_same(|from, to| {
        let mut from = from.as_os_str().to_owned();
        from.push("/");
        succeed(Command::new("rsync").arg("-a").arg(from).arg(to));
    });
}

#[test]
fn a_restore_into_a_running_servers_spool_is_seen_at_once() {
    let server = filled();
    let before = lists(&server);
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("spool.tar");
    succeed(
        Command::new("tar")
            .args(["--format=posix", "-cf"])
            .arg(&archive)
            .arg("-C")
            .arg(&server.spool)
            .arg("."),
    );
    assert_eq!(
        server.request("DELETE", "/api/v1/mailbox/alice").status,
        200
    );
    assert!(server.ids("alice").is_empty());
    // tar puts back the directories' old mtimes as well. The server looks on while tar works, so a
    // mark may meet a sidecar that the server has written in the meantime.
    succeed(
        Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&server.spool),
    );
    assert_eq!(unseen(lists(&server)), unseen(before));
}
