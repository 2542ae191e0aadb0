//! What things cost, counted in what is done and not in seconds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{PROGRAM, Server, eventually, mail, run};

const MANY: usize = 100_000;

fn fill(spool: &Path, mailbox: &str, count: usize) {
    let path = spool.join(mailbox);
    fs::create_dir_all(&path).unwrap();
    for n in 0..count {
        fs::write(
            path.join(format!("m{n:06}.eml")),
            mail(&format!("message {n}")),
        )
        .unwrap();
    }
}

#[test]
fn a_hundred_thousand_messages_are_listed_after_a_restart_without_being_read() {
    let spool = tempfile::tempdir().unwrap();
    fill(spool.path(), "box", MANY);
    let server = Server::on(spool.path());
    let list = server.list("box");
    assert_eq!(list.len(), MANY);
    assert_eq!(list[77_777]["subject"], "message 77777");
    assert!(server.stop().success());
    // Were a file read again, the list would say what the file says, and not what the sidecar says.
    let sidecar = spool.path().join("box/index.json");
    let text = fs::read_to_string(&sidecar).unwrap();
    assert_eq!(text.lines().count(), MANY + 2);
    fs::write(
        &sidecar,
        text.replace("\"subject\":\"message ", "\"subject\":\"remembered "),
    )
    .unwrap();
    // Clearly younger than every message: otherwise those of its own age are read again, to be sure.
    let later = std::time::SystemTime::now() + Duration::from_secs(3_600);
    crate::support::set_date(&sidecar, later);
    let server = Server::on(spool.path());
    for _ in 0..2 {
        let list = server.list("box");
        assert_eq!(list.len(), MANY);
        assert!(
            list.iter()
                .all(|entry| entry["subject"].as_str().unwrap().starts_with("remembered"))
        );
    }
    // A drop is read, and nothing else.
    server.drop_message("box", "new", mail("fresh"));
    let list = server.list("box");
    assert_eq!(list.len(), MANY + 1);
    let read: Vec<_> = list
        .iter()
        .filter(|e| !e["subject"].as_str().unwrap().starts_with("remembered"))
        .collect();
    assert_eq!(read.len(), 1);
    assert_eq!(server.message("box", "latest")["id"], "new");
    assert_eq!(server.message("box", "m050000")["subject"], "message 50000");
}

#[test]
#[ignore = "needs strace: scripts/test --all"]
fn requests_cost_the_same_in_a_mailbox_of_ten_and_of_a_hundred_thousand() {
    let spool = tempfile::tempdir().unwrap();
    fill(spool.path(), "small", 10);
    fill(spool.path(), "large", MANY);
    let server = Server::on(spool.path());
    assert_eq!(server.list("large").len(), MANY);
    assert_eq!(server.list("small").len(), 10);
    // Both settle, and their sidecars are written.
    for name in ["small", "large"] {
        eventually(Duration::from_secs(60), || {
            match spool.path().join(name).join("index.json").exists() {
                true => Ok(()),
                false => Err(name),
            }
        });
    }
    assert!(server.stop().success());

    for name in ["small", "large"] {
        let first = format!("/api/v1/mailbox/{name}/m000005");
        let list = format!("/api/v1/mailbox/{name}");
        let calls = traced(spool.path(), name, &list, 100);
        let count = |name: &str| calls.get(name).copied().unwrap_or(0);
        assert_eq!(
            count("getdents64"),
            0,
            "{name}: an unchanged list reads no directory: {calls:?}"
        );
        // One stat each; the server looks around a few times meanwhile.
        assert!(
            (100..130).contains(&count("newfstatat")),
            "{name}: {calls:?}"
        );
        assert!(
            count("openat") < 30,
            "{name}: an unchanged list opens nothing: {calls:?}"
        );
        let calls = traced(spool.path(), name, &first, 100);
        let count = |name: &str| calls.get(name).copied().unwrap_or(0);
        assert_eq!(count("getdents64"), 0, "{name}: {calls:?}");
        // The spool, the mailbox and the message.
        let opened = count("open") + count("openat");
        assert!((300..340).contains(&opened), "{name}: {calls:?}");
    }
}

/// Counts the file system calls that concern `mailbox` while `path` is requested `times` times of a
/// server that has answered it before and come to rest.
fn traced(spool: &Path, mailbox: &str, path: &str, times: usize) -> BTreeMap<String, usize> {
    let server = Server::on(spool);
    // Long enough for the scan to be final, and for the server to have looked around.
    for _ in 0..3 {
        assert_eq!(server.get(path).status, 200);
        std::thread::sleep(Duration::from_millis(1_500));
    }
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("strace");
    let mut strace = Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-y",
            "-e",
            "trace=getdents64,?open,openat,newfstatat,statx",
            "-p",
        ])
        .arg(server.pid().to_string())
        .arg("-o")
        .arg(&log)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Attached when a request shows up in the log.
    eventually(Duration::from_secs(20), || {
        server.get("/api/v1/mailbox/attached-yet");
        match fs::read_to_string(&log).is_ok_and(|text| text.contains("attached-yet")) {
            true => Ok(()),
            false => Err("strace is not attached"),
        }
    });
    let marker = |name: &str| drop(server.get(&format!("/api/v1/mailbox/{name}")));
    marker("begin-here");
    for _ in 0..times {
        assert_eq!(server.get(path).status, 200);
    }
    marker("end-here");
    eventually(Duration::from_secs(20), || {
        match fs::read_to_string(&log).unwrap().contains("end-here") {
            true => Ok(()),
            false => Err("strace is behind"),
        }
    });
    let pid = rustix::process::Pid::from_child(&strace);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    strace.wait().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let from = text.find("begin-here").unwrap();
    let to = text.rfind("end-here").unwrap();
    count_calls(&text[from..to], spool, mailbox)
}

/// The calls on the spool and on the mailbox; a look at a single message's stamp is not counted,
/// since that is what looking around does, as often as there are messages.
fn count_calls(text: &str, spool: &Path, mailbox: &str) -> BTreeMap<String, usize> {
    let own = spool.join(mailbox);
    let own = own.to_str().unwrap();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let Some((call, rest)) = line.split_once('(') else {
            continue;
        };
        let name = call.rsplit(' ').next().unwrap();
        let about_stamps = name == "newfstatat" && !rest.contains(&format!("\"{own}\""));
        if rest.contains("-here") || about_stamps {
            continue;
        }
        if rest.contains(spool.to_str().unwrap()) {
            *counts.entry(name.to_owned()).or_insert(0) += 1;
        }
    }
    counts
}

#[test]
#[ignore = "needs strace: scripts/test --all"]
fn the_hundred_thousand_and_first_delivery_does_what_the_first_did() {
    let spool = tempfile::tempdir().unwrap();
    fill(spool.path(), "large", MANY);
    fs::create_dir(spool.path().join("small")).unwrap();
    let calls = |mailbox: &str| {
        let log = spool.path().join(format!(".strace-{mailbox}"));
        let mut command = Command::new("strace");
        command
            .args(["-f", "-qq", "-c", "-U", "name,calls", "-o"])
            .arg(&log)
            .arg(PROGRAM);
        command
            .args(["deliver", "--spool"])
            .arg(spool.path())
            .arg(mailbox);
        let output = run(&mut command, mail("one more").as_bytes());
        assert!(output.status.success(), "{output:?}");
        let mut counts = BTreeMap::new();
        for line in fs::read_to_string(&log).unwrap().lines() {
            let mut words = line.split_whitespace();
            if let (Some(name), Some(Ok(count))) =
                (words.next(), words.next().map(str::parse::<u32>))
            {
                counts.insert(name.to_owned(), count);
            }
        }
        assert!(
            counts.contains_key("linkat") && counts.contains_key("fsync"),
            "{counts:?}"
        );
        for noise in ["total", "futex", "brk", "mmap", "munmap"] {
            counts.remove(noise);
        }
        counts
    };
    assert_eq!(calls("large"), calls("small"));
}

#[test]
#[ignore = "needs strace: scripts/test --all"]
fn a_delivery_is_durable_step_by_step() {
    let spool = tempfile::tempdir().unwrap();
    let log = spool.path().join(".strace");
    let mut command = Command::new("strace");
    command
        .args([
            "-f",
            "-qq",
            "-y",
            "-e",
            "trace=fsync,linkat,unlinkat,mkdirat,write",
            "-o",
        ])
        .arg(&log)
        .arg(PROGRAM);
    command
        .args(["deliver", "--spool"])
        .arg(spool.path())
        .arg("box");
    let output = run(&mut command, mail("durable").as_bytes());
    assert!(output.status.success(), "{output:?}");
    let text = fs::read_to_string(&log).unwrap();
    let root = format!("<{}>", spool.path().display());
    let mailbox = format!("<{}>", spool.path().join("box").display());
    let steps = [
        ("mkdirat(", "box"),
        ("write(", ".tmp>"),
        ("fsync(", ".tmp>"),
        ("linkat(", ".eml"),
        ("unlinkat(", ".tmp"),
        ("fsync(", mailbox.as_str()),
        ("fsync(", root.as_str()),
        ("write(1<", "T"),
    ];
    let mut lines = text.lines();
    for (call, about) in steps {
        let found = lines.any(|line| line.contains(call) && line.contains(about));
        assert!(
            found,
            "{call} {about} is missing, or comes too early, in\n{text}"
        );
    }
}
