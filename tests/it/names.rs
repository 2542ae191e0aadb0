//! Names from clients: decoded once, resolved by one rule, and never a way out of the spool.

use std::fs;

use crate::support::{Server, mail};

#[test]
fn names_that_cannot_be_one_are_refused_and_leave_no_trace() {
    let server = Server::start();
    server.drop_message("box", "a", mail("a"));
    fs::write(server.spool.with_file_name("secret.eml"), mail("secret")).unwrap();
    let long = "x".repeat(300);
    let bad = [
        "..",
        "%2e%2e",
        ".",
        ".hidden",
        "a%2Fb",
        "a%5Cb",
        "..%2fspool",
        "%00",
        "a%00b",
        "a%0Ab",
        "a%0Db",
        "%7F",
        "a%1Bb",
        "%20a",
        "a%20",
        "%ff",
        "%C3%28",
        "%zz",
        "%",
        "%4",
        long.as_str(),
        "%2B",
        "%40example.com",
    ];
    for name in bad {
        for (method, path) in [
            ("GET", format!("/api/v1/mailbox/{name}")),
            ("DELETE", format!("/api/v1/mailbox/{name}")),
            ("GET", format!("/api/v1/mailbox/{name}/a")),
            ("GET", format!("/api/v1/mailbox/{name}/a/source")),
            ("GET", format!("/mailbox/dattach/{name}/a/0/x")),
        ] {
            let response = server.request(method, &path);
            assert_eq!(response.status, 400, "{method} {path}: {response:?}");
            assert_eq!(
                response.header("content-type"),
                Some("application/problem+json")
            );
        }
    }
    for id in bad
        .into_iter()
        .filter(|id| !["%2B", "%40example.com"].contains(id))
    {
        for (method, suffix) in [
            ("GET", ""),
            ("GET", "/source"),
            ("DELETE", ""),
            ("PATCH", ""),
        ] {
            let path = format!("/api/v1/mailbox/box/{id}{suffix}");
            assert_eq!(server.request(method, &path).status, 400, "{method} {path}");
        }
    }
    assert_eq!(
        server.get("/api/v1/mailbox/box/..%2F..%2Fsecret").status,
        400
    );
    assert_eq!(server.ids("box"), ["a"]);
    assert_eq!(fs::read_dir(&server.spool).unwrap().count(), 1);
    // Doubly encoded is a name like any other, and nobody's.
    assert_eq!(server.get("/api/v1/mailbox/%252e%252e").body, b"[]\n");
}

#[test]
fn names_of_every_script_work() {
    let server = Server::start();
    for (name, encoded) in [
        ("böb", "b%C3%B6b"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("a b", "a%20b"),
        ("50%", "50%25"),
        ("q?#", "q%3F%23"),
    ] {
        server.drop_message(name, "id", mail(name));
        let list = server.list(encoded);
        assert_eq!(list[0]["mailbox"], name);
        assert_eq!(list[0]["subject"], name);
    }
    let longest = "x".repeat(255);
    server.drop_message(&longest, "y", mail("long"));
    fs::rename(
        server.spool.join(&longest).join("y.eml"),
        server
            .spool
            .join(&longest)
            .join(format!("{}.eml", "y".repeat(251))),
    )
    .unwrap();
    assert_eq!(server.ids(&longest), ["y".repeat(251)]);
}

#[test]
fn addresses_mean_mailboxes() {
    let server = Server::start();
    server.drop_message("three", "m", mail("m"));
    for given in [
        "three",
        "THREE",
        "three+tag",
        "three%2Btag",
        "three@example.com",
        "three%40x",
        "%22three%22",
    ] {
        assert_eq!(server.list(given)[0]["mailbox"], "three", "{given}");
        assert_eq!(server.message(given, "m")["mailbox"], "three", "{given}");
    }
    // A directory of exactly the name that was given wins.
    server.drop_message("Three@example.com", "exact", mail("exact"));
    assert_eq!(server.ids("Three%40example.com"), ["exact"]);
    assert_eq!(server.ids("three@example.com"), ["m"]);
    assert_eq!(
        server
            .request("DELETE", "/api/v1/mailbox/Three@example.com")
            .status,
        200
    );
    assert_eq!(server.ids("three"), ["m"]);

    let full = Server::start_with(&["--naming", "full"]);
    full.drop_message("ann@example.com", "m", mail("m"));
    assert_eq!(full.ids("Ann%2Bshop@Example.com"), ["m"]);
    assert!(full.ids("ann").is_empty());
    let domain = Server::start_with(&["--naming", "domain"]);
    domain.drop_message("example.com", "m", mail("m"));
    assert_eq!(domain.ids("ann@example.com"), ["m"]);
    assert_eq!(domain.ids("example.com"), ["m"]);
}
