//! The program from the outside: what it prints, how it fails, how it stops.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use crate::support::{NOBODY, PATIENCE, Server, eventually, is_root, mail, run, spoolbox, wait};

fn serve(args: &[&str]) -> (Option<i32>, String) {
    let output = run(spoolbox().arg("serve").args(args), b"");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn help_and_version_are_worth_reading() {
    for (args, words) in [
        (
            &["--help"][..],
            &["serve", "deliver", "Examples", "curl"][..],
        ),
        (
            &["serve", "--help"],
            &[
                "--http",
                "SPOOLBOX_HTTP",
                "127.0.0.1:9000",
                "--base-url",
                "--naming",
                "SIGTERM",
            ],
        ),
        (
            &["deliver", "--help"],
            &["sysexits", "-f", "MAILBOX-OR-ADDRESS", "SPOOLBOX_SPOOL"],
        ),
        (&["--version"], &[env!("CARGO_PKG_VERSION")]),
    ] {
        let output = run(spoolbox().args(args), b"");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for word in words {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
}

#[test]
fn every_error_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let spool = spool.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let file = file.to_str().unwrap();
    let below = format!("{file}/spool");
    let cases: [(&[&str], i32, &[&str]); 12] = [
        (&[spool, "--http", &taken], 1, &[&taken, "in use", "--http"]),
        (
            &[file, "--http", "127.0.0.1:0"],
            1,
            &["not a directory", "serve DIR"],
        ),
        (
            &[&below, "--http", "127.0.0.1:0"],
            1,
            &["cannot", &below, "serve DIR"],
        ),
        (&[spool, "--http", "nonsense"], 2, &["HOST:PORT", "off"]),
        (&[spool, "--http", "off"], 1, &["nothing to serve"]),
        (
            &[spool, "--smtp", "127.0.0.1:2500"],
            2,
            &["no SMTP yet", "deliver"],
        ),
        (&[spool, "--pop3", "127.0.0.1:1100"], 2, &["no POP3 yet"]),
        (&[spool, "--base-url", "mail.example.com"], 2, &["https://"]),
        (&[spool, "--naming", "upper"], 2, &["local, full or domain"]),
        (&[spool, "--bogus"], 2, &["--bogus", "--help"]),
        (&[spool, "--log-level", "loud"], 2, &["--log-level"]),
        (
            &[spool, "--allow-origin", "*"],
            2,
            &["https://ui.example.com"],
        ),
    ];
    for (args, code, words) in cases {
        let (got, err) = serve(args);
        assert_eq!(got, Some(code), "{args:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{args:?}: {word} in {err}");
        }
        assert!(!err.contains("panicked"), "{err}");
    }
    // Nothing was created on the way.
    assert!(!fs::exists(spool).unwrap());
}

#[test]
fn a_directory_without_permission_is_told_as_such() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let shut = dir.path().join("shut");
    fs::create_dir(&shut).unwrap();
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o000)).unwrap();
    for spool in [shut.clone(), shut.join("below")] {
        let mut command = spoolbox();
        command
            .arg("serve")
            .arg(&spool)
            .args(["--http", "127.0.0.1:0"]);
        if is_root() {
            std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
        }
        let output = run(&mut command, b"");
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(
            err.contains("ermission denied") && err.contains("serve DIR"),
            "{err}"
        );
    }
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_new_spool_holds_one_welcome_and_an_existing_one_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("a/new spool");
    let server = Server::launch(tempfile::tempdir().unwrap(), &spool, &[], |_| {});
    assert_eq!(server.spool, spool);
    let message = server.message("welcome", "latest");
    let text = message["body"]["text"].as_str().unwrap();
    for words in [
        spool.to_str().unwrap(),
        &server.address.to_string(),
        "Drop mail",
        "List",
        "Back it up",
    ] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert_eq!(server.ids("welcome").len(), 1);
    assert!(server.stop().success());
    let again = Server::on(&spool);
    assert_eq!(again.ids("welcome").len(), 1);
    let empty = Server::start();
    assert_eq!(fs::read_dir(&empty.spool).unwrap().count(), 0);
}

#[test]
fn flags_come_before_the_environment() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("from-env");
    fs::create_dir(&spool).unwrap();
    let mut command = spoolbox();
    command
        .arg("serve")
        .env("SPOOLBOX_SPOOL", &spool)
        .env("SPOOLBOX_HTTP", "nonsense")
        .env("SPOOLBOX_NAMING", "domain");
    let output = run(&mut command, b"");
    assert_eq!(output.status.code(), Some(2));
    let log = tempfile::tempdir().unwrap();
    let server = Server::launch(
        log,
        &dir.path().join("from-flag"),
        &["--naming", "full"],
        |command| {
            command
                .env("SPOOLBOX_SPOOL", &spool)
                .env("SPOOLBOX_NAMING", "domain")
                .env("SPOOLBOX_BASE_URL", "https://x.example/y");
        },
    );
    assert!(server.spool.ends_with("from-flag"));
    server.drop_message("ann@example.com", "m", mail("m"));
    assert_eq!(server.ids("ann@example.com"), ["m"]);
    assert_eq!(
        server.get("/y/api/v1/mailbox/ann@example.com").json()[0]["id"],
        "m"
    );
}

#[test]
fn both_signals_stop_the_server_and_it_exits_with_0() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let server = Server::start();
        assert_eq!(server.get("/api/v1/mailbox/x").status, 200);
        // An idle connection does not hold it up.
        let idle = TcpStream::connect(server.address).unwrap();
        server.signal(signal);
        assert!(server.end().success());
        drop(idle);
    }
}

#[test]
fn logs_can_be_json() {
    let server = Server::start_with(&["--log-format", "json"]);
    server.drop_message("box", "a", mail("a"));
    fs::write(server.spool.join("box/stray.txt"), "x").unwrap();
    assert_eq!(server.ids("box"), ["a"]);
    let log = server.log();
    let line = log.lines().find(|line| line.contains("stray.txt")).unwrap();
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(value["level"], "WARN");
    assert_eq!(value["fields"]["mailbox"], "box");
}

#[test]
fn a_closed_stdout_does_not_stop_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let spool = dir.path().join("spool");
    let mut child = spoolbox()
        .arg("serve")
        .arg(&spool)
        .args(["--http", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    // The sidecar comes well after the lines that nobody reads.
    eventually(PATIENCE, || {
        match spool.join("welcome/index.json").exists() {
            true => Ok(()),
            false => Err("no welcome"),
        }
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(wait(&mut child).success());
}

#[test]
fn a_file_comes_before_the_defaults_and_behind_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("spoolbox.toml");
    let text =
        "naming = \"full\"\nbase-url = \"https://x.example/from-file\"\nlog-level = \"warn\"\n";
    fs::write(&config, text).unwrap();
    let print = |command: &mut Command| {
        let output = run(command.args(["serve", "--print-config"]), b"");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let printed = print(
        spoolbox()
            .env("SPOOLBOX_CONFIG", &config)
            .env("SPOOLBOX_LOG_LEVEL", "error"),
    );
    let line = |key: &str| {
        let mut lines = printed.lines();
        lines
            .find(|line| line.starts_with(&format!("{key} =")))
            .unwrap_or_else(|| panic!("{key} in {printed}"))
    };
    assert!(
        line("naming").starts_with("naming = \"full\"")
            && line("naming").contains("spoolbox.toml:1")
    );
    assert!(line("base-url").contains("from-file") && line("base-url").contains("spoolbox.toml:2"));
    assert!(
        line("log-level").contains("\"error\"") && line("log-level").contains("SPOOLBOX_LOG_LEVEL")
    );
    assert!(line("http").contains("# default"));
    assert!(!fs::exists(dir.path().join("spool")).unwrap());
    // What was printed is a file that says the same.
    let again = dir.path().join("again.toml");
    fs::write(&again, &printed).unwrap();
    let second = print(
        spoolbox()
            .args(["serve", "--config", again.to_str().unwrap()])
            .args(["--http", "127.0.0.1:1"]),
    );
    assert!(second.contains("http = \"127.0.0.1:1\"") && second.contains("# --http"));
    let server = Server::start_with(&["--config", config.to_str().unwrap()]);
    server.drop_message("ann@example.com", "m", mail("m"));
    assert_eq!(server.ids("Ann+x@example.com"), ["m"]);
    assert_eq!(
        server
            .get("/from-file/api/v1/mailbox/ann@example.com")
            .json()[0]["id"],
        "m"
    );
}

#[test]
fn a_bad_file_is_refused_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("c.toml");
    let name = config.to_str().unwrap();
    for (text, words) in [
        (
            "\nhtpp = \"x\"\n",
            &["c.toml:2", "\"htpp\"", "\"http\""][..],
        ),
        ("# x\n\nhttp = \"nonsense\"\n", &["c.toml:3", "HOST:PORT"]),
        ("http-idle-timeout = \"soon\"", &["c.toml:1", "15s"]),
        ("http-connections = 0", &["c.toml:1", "from 1 on"]),
        ("watch = true", &["c.toml:1", "auto, native, poll or off"]),
        ("smtp = \"127.0.0.1:25\"", &["c.toml:1", "no SMTP yet"]),
        ("http = ", &["c.toml:1", "not TOML"]),
    ] {
        fs::write(&config, text).unwrap();
        let (code, err) = serve(&["--config", name]);
        assert_eq!(code, Some(2), "{text}: {err}");
        for word in words {
            assert!(err.contains(word), "{text}: {word} in {err}");
        }
    }
    let (code, err) = serve(&["--config", "/no/such/file.toml"]);
    assert_eq!(code, Some(2));
    assert!(
        err.contains("/no/such/file.toml") && err.contains("--config"),
        "{err}"
    );
}

#[test]
fn the_status_tells_what_there_is() {
    let server = Server::start();
    for n in 0..3 {
        server.drop_message(&format!("box{n}"), "m", mail("m"));
        assert_eq!(server.ids(&format!("box{n}")).len(), 1);
    }
    let response = server.get("/api/v1/status");
    assert_eq!(
        response.header("content-type"),
        Some("application/json; charset=utf-8")
    );
    let status = response.json();
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["spool"], server.spool.to_str().unwrap());
    assert_eq!(
        (&status["mailboxes"], &status["messages"]),
        (&3.into(), &3.into())
    );
    assert_eq!(status["bytes"], 3 * mail("m").len());
    assert_eq!(status["watcher"]["healthy"], true);
    assert!(status["uptime-seconds"].is_u64());
    for path in ["/livez", "/readyz"] {
        let response = server.get(path);
        assert_eq!((response.status, response.text()), (200, "ok\n"));
        assert_eq!(server.request("POST", path).status, 405);
    }
    let away = server.spool.with_file_name("away");
    fs::rename(&server.spool, &away).unwrap();
    assert_eq!(server.get("/livez").status, 200);
    let ready = server.get("/readyz");
    assert_eq!(
        (ready.status, ready.header("content-type")),
        (503, Some("application/problem+json"))
    );
    fs::rename(&away, &server.spool).unwrap();
    assert_eq!(server.get("/readyz").status, 200);
}
