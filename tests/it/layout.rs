//! The walls between the modules, which no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(below: &Path) -> Vec<PathBuf> {
    if below.is_file() {
        return vec![below.to_owned()];
    }
    let entries = fs::read_dir(below).unwrap_or_else(|err| panic!("{}: {err}", below.display()));
    entries
        .flat_map(|entry| sources(&entry.unwrap().path()))
        .collect()
}

/// Fails when code (not comments, not tests) in one of the places mentions one of the words.
fn must_not_mention(places: &[&str], words: &[&str]) {
    let mut looked_at = 0;
    for place in places {
        for path in sources(
            &Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("src")
                .join(place),
        ) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            for (number, line) in code.lines().enumerate() {
                let code = line.split("//").next().unwrap();
                for word in words {
                    assert!(
                        !code.contains(word),
                        "{}:{}: {word}",
                        path.display(),
                        number + 1
                    );
                }
            }
            looked_at += 1;
        }
    }
    assert!(looked_at >= places.len());
}

#[test]
fn the_library_knows_nothing_of_the_server() {
    let outside = [
        "tokio",
        "warp",
        "hyper",
        "clap",
        "anyhow",
        "std::env",
        "std::net",
        "crate::config",
        "crate::http",
        "crate::policy",
    ];
    must_not_mention(&["spool", "message", "names.rs", "error.rs"], &outside);
    must_not_mention(&["message"], &["crate::", "std::fs", "rustix"]);
    must_not_mention(
        &["names.rs"],
        &["crate::spool", "crate::message", "std::fs", "rustix"],
    );
}

#[test]
fn only_the_spool_touches_the_mail_directory() {
    must_not_mention(
        &["http", "policy.rs", "task.rs"],
        &["rustix", "std::fs::read", "std::fs::write", "File::open"],
    );
    must_not_mention(&["cli.rs", "main.rs"], &["rustix", "std::fs"]);
}

#[test]
fn each_json_has_one_home() {
    must_not_mention(
        &[
            "cli.rs",
            "config",
            "server.rs",
            "policy.rs",
            "message",
            "http/api.rs",
            "http/error.rs",
            "http/route.rs",
            "http/attachment.rs",
        ],
        &["serde_json"],
    );
    for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/spool")) {
        if !file.ends_with("sidecar.rs") {
            let place = file
                .strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
                .unwrap();
            must_not_mention(&[place.to_str().unwrap()], &["serde"]);
        }
    }
}

#[test]
fn nothing_is_removed_recursively() {
    must_not_mention(&["."], &["remove_dir_all"]);
}
