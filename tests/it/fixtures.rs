//! Everyday messages, each with the JSON that it must give, with LF and with CRLF.
//!
//! `fixtures/x.eml` is written with LF; `fixtures/x.json` holds what a client sees of it, without
//! what depends on the moment and the place (mailbox, id, date, size, links). With
//! `SPOOLBOX_BLESS=1` the JSON files are written anew, to be read and judged by a person.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::Server;

#[test]
fn every_fixture_gives_its_json_with_either_line_end() {
    let server = Server::start();
    let mut tried = 0;
    for path in messages() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let unix = fs::read(&path).unwrap();
        assert!(!unix.contains(&b'\r'), "{name} must be written with LF");
        let dos = unix
            .split(|&b| b == b'\n')
            .collect::<Vec<_>>()
            .join(&b"\r\n"[..]);
        let expected = path.with_extension("json");
        let seen = show(&server, &name, &unix);
        let seen_crlf = show(&server, &format!("{name}-crlf"), &dos);
        if std::env::var_os("SPOOLBOX_BLESS").is_some() {
            let both = serde_json::to_string_pretty(&with_both_digests(&seen, &seen_crlf)).unwrap();
            fs::write(&expected, both + "\n").unwrap();
        }
        let expected: Value = serde_json::from_slice(&fs::read(&expected).unwrap()).unwrap();
        assert_eq!(seen, for_line_end(expected.clone(), false), "{name}");
        assert_eq!(seen_crlf, for_line_end(expected, true), "{name} with CRLF");
        tried += 2;
    }
    assert!(tried >= 40, "only {tried} messages were tried");
}

fn messages() -> Vec<PathBuf> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "eml"));
    paths.sort();
    paths
}

/// Drops a message and returns what a client sees of it.
fn show(server: &Server, id: &str, content: &[u8]) -> Value {
    server.drop_message("fixtures", id, content);
    let message = server.message("fixtures", id);
    assert_eq!(message["size"], content.len());
    let list = server.list("fixtures");
    let listed = list.iter().find(|entry| entry["id"] == id).unwrap();
    for key in ["from", "to", "subject", "size", "date"] {
        assert_eq!(
            listed[key], message[key],
            "{id}: list and message differ in {key}"
        );
    }
    essence(&message)
}

fn essence(message: &Value) -> Value {
    let attachments = message["attachments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attachment| {
            json!({
                "filename": attachment["filename"],
                "content-type": attachment["content-type"],
                "md5": attachment["md5"],
            })
        });
    json!({
        "from": message["from"],
        "to": message["to"],
        "subject": message["subject"],
        "body": message["body"],
        "header": message["header"],
        "attachments": attachments.collect::<Vec<_>>(),
    })
}

/// The bytes of an attachment that is not encoded have the message's own line ends; its digest with
/// CRLF stands beside the other.
fn for_line_end(mut expected: Value, crlf: bool) -> Value {
    for attachment in expected["attachments"].as_array_mut().unwrap() {
        let attachment = attachment.as_object_mut().unwrap();
        if let Some(other) = attachment.remove("md5-crlf")
            && crlf
        {
            attachment.insert("md5".into(), other);
        }
    }
    expected
}

fn with_both_digests(seen: &Value, seen_crlf: &Value) -> Value {
    let mut both = seen.clone();
    let pairs = both["attachments"].as_array_mut().unwrap().iter_mut();
    for (one, other) in pairs.zip(seen_crlf["attachments"].as_array().unwrap()) {
        if one["md5"] != other["md5"] {
            one["md5-crlf"] = other["md5"].clone();
        }
    }
    both
}
