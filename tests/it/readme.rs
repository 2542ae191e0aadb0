//! The README's tour is run as it is written.
//!
//! In the README, a block marked `console` shows commands behind `$ ` and their output. All blocks
//! are run in order, in one directory, against one server, which the first command of the tour
//! starts. Output is compared line by line after what changes from run to run (numbers, dates,
//! digests, the directory) has been made alike on both sides.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{PROGRAM, Server, run};

#[test]
#[ignore = "needs curl: scripts/test --all"]
fn the_tour_works_as_written() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let steps = steps(&text);
    assert!(
        steps.len() >= 8,
        "only {} commands in the README's tour",
        steps.len()
    );
    let dir = tempfile::tempdir().unwrap();
    let server = Server::launch(
        tempfile::tempdir().unwrap(),
        &dir.path().join("spool"),
        &[],
        |command| {
            command.current_dir(dir.path());
        },
    );
    for (command, expected) in steps {
        let here = command
            .replace("127.0.0.1:9000", &server.address.to_string())
            .replace("target/release/spoolbox", PROGRAM)
            .replace(
                "fixtures/",
                concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/"),
            );
        let mut shell = Command::new("bash");
        shell.args(["-c", &here]).current_dir(dir.path());
        let output = run(&mut shell, b"");
        let got = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(alike(&got), alike(&expected), "$ {command}\n{got}");
    }
}

/// The commands in `console` blocks, each with the output that is shown for it.
fn steps(text: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut inside = false;
    let mut continued = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
            continue;
        }
        if !inside {
            continue;
        }
        let (command, output) = match (line.strip_prefix("$ "), continued) {
            (Some(command), _) => {
                steps.push((command.to_owned(), String::new()));
                continued = command.ends_with('\\');
                continue;
            }
            (None, true) => (Some(line), None),
            (None, false) => (None, Some(line)),
        };
        let last = steps.last_mut().expect("output follows a command");
        if let Some(command) = command {
            last.0 += &format!("\n{command}");
            continued = command.ends_with('\\');
        }
        if let Some(output) = output {
            last.1 += &format!("{output}\n");
        }
    }
    steps
}

/// Makes alike what no two runs share: every run of digits or hexadecimal digits that has a digit.
fn alike(text: &str) -> Vec<String> {
    let mut out = String::new();
    let mut word = String::new();
    let flush = |word: &mut String, out: &mut String| {
        let changing = word.chars().any(|c| c.is_ascii_digit());
        out.push_str(if changing { "#" } else { word });
        word.clear();
    };
    for c in text.chars() {
        if c.is_ascii_hexdigit() {
            word.push(c);
        } else {
            flush(&mut word, &mut out);
            out.push(c);
        }
    }
    flush(&mut word, &mut out);
    out.lines()
        .map(|line| line.trim_end().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}
