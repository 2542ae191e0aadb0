//! Mail that was made to hurt: it is listed, answered and given back, and hides nothing.

use crate::support::{Server, mail};

fn hostile() -> Vec<(&'static str, Vec<u8>)> {
    let multipart =
        |n: usize| format!("Content-Type: multipart/mixed; boundary=b{n}x\n\n--b{n}x\n");
    let parts = |n: usize| format!("{}{}", multipart(0), "\n--b0x\n\nx".repeat(n));
    vec![
        ("empty", Vec::new()),
        ("newline", b"\n".to_vec()),
        ("nul", b"Subject: a\0b\nFrom: \0@\0\n\n\0\0".to_vec()),
        (
            "noise",
            (0..100_000u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
                .collect(),
        ),
        (
            "deep",
            (0..10_000).map(multipart).collect::<String>().into_bytes(),
        ),
        ("many-parts", parts(50_000).into_bytes()),
        ("too-many-parts", parts(300_000).into_bytes()),
        (
            "words",
            format!("Subject: {}\n\nx", "=?".repeat(500_000)).into_bytes(),
        ),
        (
            "more-words",
            format!("Subject: {}\n\nx", "=?utf-8?q?a?= ".repeat(70_000)).into_bytes(),
        ),
        (
            "words-in-type",
            format!("Content-Type: {}\n\nx", "=?".repeat(100_000)).into_bytes(),
        ),
        (
            "long-header",
            format!("Subject: {}\n\nx", "y".repeat(5_000_000)).into_bytes(),
        ),
        (
            "folds",
            format!("Subject: x{}\n\nx", "\n y".repeat(300_000)).into_bytes(),
        ),
        ("headers", "X: y\n".repeat(100_000).into_bytes()),
        (
            "addresses",
            format!("To: {}z@z\n\nx", "a@b, ".repeat(100_000)).into_bytes(),
        ),
        (
            "parameters",
            format!("Content-Type: text/plain{}\n\nx", "; a=b".repeat(20_000)).into_bytes(),
        ),
        (
            "long-line",
            [b"Subject: x\n\n".to_vec(), vec![b'z'; 10_000_000]].concat(),
        ),
        (
            "divs",
            format!("Content-Type: text/html\n\n{}", "<div>".repeat(300_000)).into_bytes(),
        ),
        (
            "base64",
            format!(
                "Content-Transfer-Encoding: base64\n\n{}",
                "%%%".repeat(1_000)
            )
            .into_bytes(),
        ),
        ("header-only", b"Subject: x".to_vec()),
        ("leading-space", b" Subject: x\nFrom: a@b\n\nbody".to_vec()),
        (
            "no-boundary",
            b"Content-Type: multipart/mixed\n\nbody".to_vec(),
        ),
        (
            "lost-boundary",
            b"Content-Type: multipart/mixed; boundary=never\n\nbody".to_vec(),
        ),
    ]
}

#[test]
fn every_one_is_listed_answered_and_given_back() {
    let server = Server::start();
    server.drop_message("box", "good", mail("good"));
    let messages = hostile();
    for (id, content) in &messages {
        server.drop_message("box", id, content);
    }
    assert_eq!(server.ids("box").len(), messages.len() + 1);
    for (id, content) in &messages {
        let message = server.message("box", id);
        assert_eq!(message["size"], content.len(), "{id}");
        let source = server.get(&format!("/api/v1/mailbox/box/{id}/source"));
        assert!(source.body == *content, "{id}");
    }
    assert_eq!(
        server.message("box", "good")["body"]["text"],
        "This is good.\n"
    );
    assert_eq!(server.message("box", "no-boundary")["body"]["text"], "body");
    let log = server.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}

#[test]
fn asking_for_what_is_not_there_leaves_nothing_behind() {
    let server = Server::start();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<usize>()
            .unwrap()
    };
    let ask = |from: usize, count: usize| {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(server.address).unwrap();
        stream
            .set_read_timeout(Some(crate::support::PATIENCE))
            .unwrap();
        let mut answer = [0; 4096];
        for n in from..from + count {
            let name = format!("{}-{n}", "unknown".repeat(20));
            let request = format!("GET /api/v1/mailbox/{name} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let got = stream.read(&mut answer).unwrap();
            assert!(answer[..got].starts_with(b"HTTP/1.1 200"));
        }
    };
    ask(0, 2_000);
    let before = memory();
    ask(2_000, 20_000);
    // Each name is longer than 140 bytes: were they kept, this would be megabytes.
    let grown = memory().saturating_sub(before);
    assert!(grown < 2_000, "grew by {grown} kB");
}
