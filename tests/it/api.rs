//! Every line of the API's contract, over a real socket.

use serde_json::{Value, json};

use crate::support::{Response, Server, mail, raw};

const PROBLEM: &str = "application/problem+json";

fn assert_json(response: &Response) {
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some("application/json; charset=utf-8")
    );
    assert_eq!(response.header("expires"), Some("-1"));
    assert!(response.body.ends_with(b"\n") && !response.body.ends_with(b"\n\n"));
}

fn assert_problem(response: &Response, status: u16) -> String {
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(
        response.header("content-type"),
        Some(PROBLEM),
        "{response:?}"
    );
    let problem = response.json();
    assert_eq!(problem["status"], status);
    assert_eq!(problem["type"], "about:blank");
    assert!(
        problem["title"]
            .as_str()
            .is_some_and(|title| !title.is_empty())
    );
    let detail = problem["detail"].as_str().unwrap().to_owned();
    assert!(
        !detail.contains("/tmp") && !detail.contains("spool/"),
        "a path of the server: {detail}"
    );
    detail
}

/// The keys of the object that begins at `text`, in the order in which they stand.
fn keys(text: &str) -> Vec<String> {
    let (mut depth, mut keys) = (0, Vec::new());
    let mut strings = text.char_indices().peekable();
    while let Some((at, c)) = strings.next() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            '"' => {
                let mut end = at + 1;
                let mut escaped = false;
                for (place, c) in strings.by_ref() {
                    end = place;
                    if c == '"' && !escaped {
                        break;
                    }
                    escaped = c == '\\' && !escaped;
                }
                if depth == 1 && text[end + 1..].starts_with(':') {
                    keys.push(text[at + 1..end].to_owned());
                }
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    keys
}

const SUMMARY: [&str; 9] = [
    "mailbox",
    "id",
    "from",
    "subject",
    "date",
    "size",
    "to",
    "posix-millis",
    "seen",
];

#[test]
fn a_list_has_nine_keys_in_order_and_ascends_by_the_bytes_of_the_id() {
    let server = Server::start();
    for id in ["b", "a", "B", "10", "9", "é"] {
        server.drop_message("box", id, mail(id));
    }
    let response = server.get("/api/v1/mailbox/box");
    assert_json(&response);
    assert_eq!(keys(&response.text()[1..]), SUMMARY);
    assert_eq!(server.ids("box"), ["10", "9", "B", "a", "b", "é"]);
    let first = &response.json()[0];
    assert_eq!(first.as_object().unwrap().len(), 9);
    assert_eq!(first["mailbox"], "box");
    assert_eq!(first["from"], "Ann <ann@example.com>");
    assert_eq!(first["to"], json!(["<bob@example.com>"]));
    assert_eq!(first["subject"], "10");
    assert_eq!(first["size"], mail("10").len());
    assert_eq!(first["seen"], false);
}

#[test]
fn date_is_the_files_mtime_with_nine_digits() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    let path = server.spool.join("box/a.eml");
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_794_700_572, 646_370_568);
    crate::support::set_date(&path, time);
    let message = server.message("box", "a");
    assert_eq!(message["date"], "2026-11-14T23:56:12.646370568+00:00");
    assert_eq!(message["posix-millis"], 1_794_700_572_646_i64);
    let time = std::time::UNIX_EPOCH;
    crate::support::set_date(&path, time);
    assert_eq!(
        server.message("box", "a")["date"],
        "1970-01-01T00:00:00.000000000+00:00"
    );
}

#[test]
fn an_unknown_mailbox_is_empty_and_asking_creates_nothing() {
    let server = Server::start();
    let response = server.get("/api/v1/mailbox/nobody");
    assert_json(&response);
    assert_eq!(response.body, b"[]\n");
    assert_problem(&server.get("/api/v1/mailbox/nobody/latest"), 404);
    assert_problem(&server.get("/api/v1/mailbox/nobody/x"), 404);
    assert_problem(&server.get("/api/v1/mailbox/nobody/x/source"), 404);
    assert_problem(&server.request("DELETE", "/api/v1/mailbox/nobody/x"), 404);
    assert_problem(&server.request("PATCH", "/api/v1/mailbox/nobody/x"), 404);
    assert_eq!(
        server.request("DELETE", "/api/v1/mailbox/nobody").body,
        b"\"OK\"\n"
    );
    assert_eq!(std::fs::read_dir(&server.spool).unwrap().count(), 0);
}

#[test]
fn a_message_has_the_summary_then_body_header_attachments() {
    let server = Server::start();
    let raw = "Received: one\r\nreceived: two\r\nMESSAGE-ID: <x@y>\r\nmime-version: 1.0\r\nX-FOO: =?utf-8?q?=C3=A9?=\r\n\
        From: =?utf-8?q?J=C3=B6rg?= <j@example.com>\r\nTo: \"Doe, Jane\" <jane@example.com>, bob@example.com\r\n\
        Subject: =?utf-8?q?caf=C3=A9?=\r\n =?utf-8?q?_au_lait?=\r\nX-Latin: caf\u{e9}\r\n\r\nHello\r\n";
    let latin: Vec<u8> = raw.chars().map(|c| c as u8).collect();
    server.drop_message("box", "a", &latin);
    let response = server.get("/api/v1/mailbox/box/a");
    assert_json(&response);
    let expected: Vec<_> = SUMMARY
        .into_iter()
        .chain(["body", "header", "attachments"])
        .collect();
    assert_eq!(keys(response.text()), expected);
    let message = response.json();
    assert_eq!(message["from"], "Jörg <j@example.com>");
    assert_eq!(
        message["to"],
        json!(["Doe, Jane <jane@example.com>", "<bob@example.com>"])
    );
    assert_eq!(message["subject"], "café au lait");
    assert_eq!(message["body"], json!({"text": "Hello\n", "html": ""}));
    assert_eq!(message["attachments"], json!([]));
    assert_eq!(
        message["header"],
        json!({
            "Received": ["one", "two"],
            "Message-Id": ["<x@y>"],
            "Mime-Version": ["1.0"],
            "X-Foo": ["=?utf-8?q?=C3=A9?="],
            "From": ["=?utf-8?q?J=C3=B6rg?= <j@example.com>"],
            "To": ["\"Doe, Jane\" <jane@example.com>, bob@example.com"],
            "Subject": ["=?utf-8?q?caf=C3=A9?= =?utf-8?q?_au_lait?="],
            "X-Latin": ["café"],
        })
    );
    let list = server.list("box");
    for key in SUMMARY {
        assert_eq!(list[0][key], message[key], "{key}");
    }
}

#[test]
fn the_source_is_the_files_exact_bytes() {
    let server = Server::start();
    let mut odd = b"Subject: odd\r\n\nbare\rcr \0 \xff\xfe\n.\r\n.\n".to_vec();
    let mut large = mail("large").into_bytes();
    large.extend((0..3_000_000u32).map(|n| (n % 251) as u8));
    odd.extend_from_slice(b"no newline at the end");
    for (id, content) in [("odd", &odd), ("large", &large), ("empty", &Vec::new())] {
        server.drop_message("box", id, content);
        let response = server.get(&format!("/api/v1/mailbox/box/{id}/source"));
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("text/plain"));
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(response.header("expires"), Some("-1"));
        assert_eq!(
            response.header("content-length"),
            Some(content.len().to_string().as_str())
        );
        assert!(response.body == *content, "{id}");
    }
    assert_eq!(server.get("/api/v1/mailbox/box/latest/source").body, b"");
}

#[test]
fn latest_goes_by_date_and_then_by_id() {
    let server = Server::start();
    let at = |id: &str, seconds: u64, nanos: u32| {
        server.drop_message("box", id, mail(id));
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, nanos);
        let path = server.spool.join(format!("box/{id}.eml"));
        crate::support::set_date(path, time);
    };
    // Set before the server looks: dates of files it knows are another test's matter.
    at("z", 1_000, 0);
    at("m", 2_000, 1);
    at("a", 2_000, 2);
    at("b", 2_000, 2);
    let response = server.get("/api/v1/mailbox/box/latest");
    assert_eq!(response.json()["id"], "b");
    assert_eq!(
        server.get("/api/v1/mailbox/box/latest/source").body,
        mail("b").as_bytes()
    );
    assert_eq!(
        server.request("DELETE", "/api/v1/mailbox/box/b").status,
        200
    );
    assert_eq!(server.message("box", "latest")["id"], "a");
    assert_problem(&server.request("DELETE", "/api/v1/mailbox/box/latest"), 404);
    assert_eq!(server.ids("box"), ["a", "m", "z"]);
}

#[test]
fn patch_marks_and_unmarks() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    server.drop_message("box", "b", mail("b"));
    let patch = |id: &str, body: &str| {
        let path = format!("/api/v1/mailbox/box/{id}");
        server.send("PATCH", &path, &[], body.as_bytes())
    };
    let seen = |id: &str| server.message("box", id)["seen"].as_bool().unwrap();
    let ok = patch("a", "{\"seen\":true}");
    assert_json(&ok);
    assert_eq!(ok.body, b"\"OK\"\n");
    assert!(seen("a") && !seen("b"));
    assert_eq!(server.list("box")[0]["seen"], true);
    assert_eq!(patch("a", "{}").status, 200);
    assert!(seen("a"));
    assert_eq!(patch("a", "{\"seen\": false}").status, 200);
    assert!(!seen("a"));
    assert_eq!(patch("a", "").status, 200);
    assert!(seen("a"));
    let latest = server.message("box", "latest")["id"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(patch("latest", "{\"seen\":true}").status, 200);
    assert!(seen(&latest));
    for bad in ["{", "[]", "{\"seen\":1}", "nonsense", "{\"seen\":true} x"] {
        let detail = assert_problem(&patch("b", bad), 400);
        assert!(detail.contains("{\"seen\": true}"), "{detail}");
    }
    assert_problem(&patch("nope", "{}"), 404);
    assert_problem(&patch("nope", "{\"seen\":true}"), 404);
    assert_problem(&patch("a", &" ".repeat(100_000)), 413);
}

#[test]
fn reading_a_message_does_not_mark_it() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    server.message("box", "a");
    server.get("/api/v1/mailbox/box/a/source");
    assert_eq!(server.message("box", "a")["seen"], false);
}

#[test]
fn delete_and_purge_answer_five_bytes() {
    let server = Server::start();
    for id in ["a", "b", "c"] {
        server.drop_message("box", id, mail(id));
    }
    let deleted = server.request("DELETE", "/api/v1/mailbox/box/b");
    assert_json(&deleted);
    assert_eq!(deleted.body, b"\"OK\"\n");
    assert!(!server.spool.join("box/b.eml").exists());
    assert_problem(&server.request("DELETE", "/api/v1/mailbox/box/b"), 404);
    assert_eq!(server.ids("box"), ["a", "c"]);
    let purged = server.request("DELETE", "/api/v1/mailbox/box");
    assert_json(&purged);
    assert_eq!(purged.body, b"\"OK\"\n");
    assert_eq!(server.list("box"), Vec::<Value>::new());
    assert_eq!(
        server.request("DELETE", "/api/v1/mailbox/box").body,
        b"\"OK\"\n"
    );
}

#[test]
fn head_is_get_without_a_body() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    let big = [mail("big").into_bytes(), vec![b'x'; 1_000_000]].concat();
    server.drop_message("box", "big", big);
    for path in [
        "/api/v1/mailbox/box",
        "/api/v1/mailbox/box/a",
        "/api/v1/mailbox/box/a/source",
        "/api/v1/mailbox/box/big/source",
        "/api/v1/mailbox/unknown",
        "/api/v1/mailbox/box/unknown",
    ] {
        let get = server.get(path);
        let head = server.request("HEAD", path);
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(head.body, b"", "{path}");
        for name in ["content-type", "content-length", "expires"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
        assert_eq!(
            get.header("content-length"),
            Some(get.body.len().to_string().as_str())
        );
    }
}

#[test]
fn wrong_methods_are_told_the_right_ones() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    for (path, allowed) in [
        ("/api/v1/mailbox/box", "GET, HEAD, DELETE"),
        ("/api/v1/mailbox/box/a", "GET, HEAD, PATCH, DELETE"),
        ("/api/v1/mailbox/box/a/source", "GET, HEAD"),
        ("/mailbox/dattach/box/a/0/x", "GET, HEAD"),
        ("/mailbox/vattach/box/a/0/x", "GET, HEAD"),
    ] {
        for method in ["POST", "PUT", "OPTIONS", "BREW"] {
            let response = server.request(method, path);
            assert_problem(&response, 405);
            assert_eq!(response.header("allow"), Some(allowed), "{method} {path}");
        }
    }
    assert_eq!(server.ids("box"), ["a"]);
}

#[test]
fn unknown_paths_are_problems_too() {
    let server = Server::start();
    for path in [
        "/",
        "/api/v1/mailbox",
        "/api/v1/mailbox/",
        "/api/v1/mailbox/a/b/c",
        "/nope",
        "//api/v1/mailbox/a",
    ] {
        assert_problem(&server.get(path), 404);
    }
    let absolute = format!(
        "GET http://{}/api/v1/mailbox/a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        server.address
    );
    assert_eq!(raw(server.address, absolute.as_bytes()).body, b"[]\n");
    assert_eq!(server.get("/api/v1/mailbox/a?x=y").body, b"[]\n");
}

#[test]
fn pages_of_other_origins_may_read_nothing_new_and_change_nothing() {
    let server = Server::start_with(&["--allow-origin", "http://ui.example:3000"]);
    server.drop_message("box", "a", mail("a"));
    let own = format!("http://{}", server.address);
    let send = |method: &str, headers: &[(&str, &str)]| {
        server.send(method, "/api/v1/mailbox/box/a", headers, b"")
    };
    for foreign in [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        for method in ["PATCH", "DELETE"] {
            let detail = assert_problem(&send(method, &[foreign]), 403);
            assert!(detail.contains("--allow-origin"));
        }
        let odd = server.send("DELETE", "/%61pi/v1/mailbox/box/a", &[foreign], b"");
        assert_problem(&odd, 403);
        assert_eq!(send("GET", &[foreign]).status, 200);
        assert_eq!(
            send("GET", &[foreign]).header("access-control-allow-origin"),
            None
        );
    }
    assert_eq!(send("PATCH", &[("Origin", &own)]).status, 200);
    assert_eq!(
        send("PATCH", &[("Sec-Fetch-Site", "same-origin")]).status,
        200
    );
    let ui = ("Origin", "http://ui.example:3000");
    let permitted = send("PATCH", &[ui]);
    assert_eq!(permitted.status, 200);
    assert_eq!(permitted.header("access-control-allow-origin"), Some(ui.1));
    let preflight = send(
        "OPTIONS",
        &[ui, ("Access-Control-Request-Method", "DELETE")],
    );
    assert_eq!(preflight.status, 204);
    assert!(
        preflight
            .header("access-control-allow-methods")
            .unwrap()
            .contains("DELETE")
    );
    assert_eq!(
        send(
            "OPTIONS",
            &[
                ("Origin", "http://evil.example"),
                ("Access-Control-Request-Method", "DELETE")
            ]
        )
        .status,
        405
    );
    assert_eq!(send("DELETE", &[("Host", "any.name.will.do")]).status, 200);
}

#[test]
fn a_spool_that_cannot_be_reached_is_503_until_it_is_back() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    assert_eq!(server.ids("box"), ["a"]);
    let away = server.spool.with_file_name("away");
    std::fs::rename(&server.spool, &away).unwrap();
    for (method, path) in [
        ("GET", "/api/v1/mailbox/box"),
        ("GET", "/api/v1/mailbox/never-asked"),
        ("GET", "/api/v1/mailbox/box/a"),
        ("DELETE", "/api/v1/mailbox/box/a"),
        ("DELETE", "/api/v1/mailbox/box"),
    ] {
        let response = server.request(method, path);
        assert_problem(&response, 503);
        assert!(response.header("retry-after").is_some());
    }
    std::fs::rename(&away, &server.spool).unwrap();
    assert_eq!(server.ids("box"), ["a"]);
}
