//! `spoolbox check`: it names everything that is not as it should be, and mends what can be mended.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::Value;

use crate::support::{NOBODY, Server, drop_message, is_root, mail, run, spoolbox};

fn check(spool: &Path, args: &[&str]) -> (i32, Value) {
    let output = run(
        spoolbox().arg("check").arg(spool).arg("--json").args(args),
        b"",
    );
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|err| panic!("{err}: {text} {:?}", output.stderr));
    (output.status.code().unwrap(), value)
}

fn finding<'a>(report: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    let findings = report["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|finding| finding["kind"] == kind && finding["name"] == name)
}

/// A spool that a server has indexed.
fn indexed(spool: &Path) {
    for mailbox in [
        "good", "gone", "damaged", "outdated", "missing", "debris", "strays",
    ] {
        for id in ["a", "b"] {
            drop_message(spool, mailbox, id, mail(id));
        }
    }
    let server = Server::on(spool);
    for mailbox in [
        "good", "gone", "damaged", "outdated", "missing", "debris", "strays",
    ] {
        assert_eq!(server.ids(mailbox).len(), 2);
    }
    assert!(server.stop().success());
}

#[test]
fn a_good_spool_is_well() {
    let dir = tempfile::tempdir().unwrap();
    indexed(dir.path());
    let (code, report) = check(dir.path(), &[]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(
        (&report["mailboxes"], &report["messages"]),
        (&7.into(), &14.into())
    );
    assert_eq!(
        (&report["ok"], &report["findings"]),
        (&true.into(), &Value::Array(Vec::new()))
    );
    let output = run(spoolbox().arg("check").arg(dir.path()), b"");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "14 messages in 7 mailboxes: all is well\n"
    );
}

#[test]
fn every_damage_is_named_and_what_can_be_is_mended() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path();
    indexed(spool);
    fs::remove_file(spool.join("gone/a.eml")).unwrap();
    fs::write(spool.join("damaged/index.json"), "noise").unwrap();
    fs::write(spool.join("outdated/a.eml"), mail("rewritten, and longer")).unwrap();
    drop_message(spool, "outdated", "new", mail("new"));
    fs::remove_file(spool.join("missing/index.json")).unwrap();
    let ancient = ".spoolbox-elsewhere.example-1-1.tmp";
    fs::write(spool.join("debris").join(ancient), "half").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(200_000);
    crate::support::set_date(spool.join("debris").join(ancient), old);
    let strays = spool.join("strays");
    for name in [
        "UPPER.EML",
        "inbox.mbox",
        "latest.eml",
        "notes.txt",
        ".spoolbox-elsewhere.example-1-2.tmp.old",
    ] {
        fs::write(strays.join(name), "x").unwrap();
    }
    fs::create_dir(strays.join("cur")).unwrap();
    symlink("a.eml", strays.join("link.eml")).unwrap();
    fs::write(strays.join(std::ffi::OsStr::from_bytes(b"\xff.eml")), "x").unwrap();
    fs::write(strays.join("empty.eml"), "").unwrap();
    fs::write(strays.join("zeros.eml"), [0; 1000]).unwrap();
    fs::write(spool.join("loose.eml"), mail("loose")).unwrap();
    symlink("good", spool.join("link")).unwrap();

    let (code, report) = check(spool, &[]);
    assert_eq!(code, 1, "{report}");
    assert_eq!(report["ok"], false);
    let index = |mailbox: &str| {
        let findings = report["findings"].as_array().unwrap();
        let found = findings
            .iter()
            .find(|f| f["kind"] == "index" && f["mailbox"] == mailbox);
        found.map(|finding| finding["detail"].as_str().unwrap().to_owned())
    };
    assert_eq!(index("good"), None);
    assert!(index("gone").unwrap().contains("has 1 that are gone"));
    assert!(index("damaged").unwrap().contains("damaged"));
    let outdated = index("outdated").unwrap();
    assert!(
        outdated.contains("misses 1") && outdated.contains("1 that changed"),
        "{outdated}"
    );
    assert!(index("missing").unwrap().contains("there is none"));
    assert!(finding(&report, "debris", ancient).is_some());
    for (name, remedy) in [
        ("UPPER.EML", "lower case"),
        ("inbox.mbox", "split it"),
        ("latest.eml", "rename it"),
        ("notes.txt", "rename it"),
        ("cur", "Maildir"),
        ("link.eml", "symbolic link"),
        ("\u{fffd}.eml", "UTF-8"),
        (".spoolbox-elsewhere.example-1-2.tmp.old", "dot"),
        ("loose.eml", "only directories"),
        ("link", "symbolic link"),
    ] {
        let stray = finding(&report, "stray", name).unwrap_or_else(|| panic!("{name} in {report}"));
        assert!(
            stray["detail"].as_str().unwrap().contains(remedy),
            "{stray}"
        );
    }
    assert!(finding(&report, "damaged", "empty.eml").is_some());
    assert!(finding(&report, "damaged", "zeros.eml").is_some());
    // Nothing was changed.
    assert_eq!(check(spool, &[]), (1, report));

    let (code, report) = check(spool, &["--fix"]);
    assert_eq!(code, 0, "{report}");
    let mended = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["mended"] == true)
        .count();
    assert_eq!(
        mended, 6,
        "four indexes, the strays' own, and the debris: {report}"
    );
    let (code, report) = check(spool, &[]);
    assert_eq!(code, 0, "{report}");
    for kind in ["index", "debris"] {
        let left = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .any(|finding| finding["kind"] == kind);
        assert!(!left, "{report}");
    }
    assert!(
        spool.join("strays/UPPER.EML").exists() && !spool.join("debris").join(ancient).exists()
    );
    let server = Server::on(spool);
    assert_eq!(server.ids("outdated"), ["a", "b", "new"]);
}

#[test]
fn what_cannot_be_read_is_named_and_is_not_well() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let spool = dir.path().join("spool");
    drop_message(&spool, "box", "locked", mail("locked"));
    drop_message(&spool, "shut", "a", mail("a"));
    fs::set_permissions(
        spool.join("box/locked.eml"),
        fs::Permissions::from_mode(0o000),
    )
    .unwrap();
    fs::set_permissions(spool.join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = spoolbox();
    command.arg("check").arg(&spool);
    if is_root() {
        std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
    }
    let output = run(&mut command, b"");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for words in [
        "unreadable: box/locked.eml: ",
        "unreadable: shut: ",
        "permissions",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    fs::set_permissions(spool.join("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_spool_that_is_none_is_told_as_such() {
    let output = run(spoolbox().args(["check", "/no/such/spool"]), b"");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such/spool"));
    let output = run(spoolbox().args(["check", "--bogus"]), b"");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_hundred_thousand_messages_are_checked_in_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("box");
    fs::create_dir(&path).unwrap();
    for n in 0..100_000 {
        fs::write(path.join(format!("m{n:06}.eml")), "Subject: x\n\nbody\n").unwrap();
    }
    let (code, report) = check(dir.path(), &["--fix"]);
    assert_eq!((code, &report["messages"]), (0, &100_000.into()));
    assert_eq!(
        check(dir.path(), &[]).1["findings"],
        Value::Array(Vec::new())
    );
}
