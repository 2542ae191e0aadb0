//! Attachments: their links work, their bytes agree with their digests, and browsers stay safe.

use serde_json::Value;

use crate::support::{Response, Server};

const MAIL: &str = "From: a@example.com\nSubject: attached\nMIME-Version: 1.0\n\
Content-Type: multipart/mixed; boundary=\"edge\"\n\n\
--edge\nContent-Type: text/plain; charset=utf-8\n\nSee below.\n\
--edge\nContent-Type: application/pdf\nContent-Transfer-Encoding: base64\n\
Content-Disposition: attachment; filename*=UTF-8''r%C3%A9sum%C3%A9%20100%25%20%231.pdf\n\nJVBERi0xLjQK\n\
--edge\nContent-Type: text/html; charset=utf-8; name=\"evil.html\"\nContent-Disposition: attachment\n\n<script>alert(1)</script>\n\
--edge\nContent-Type: image/png\nContent-ID: <pic>\nContent-Transfer-Encoding: base64\n\niVBORw0KGgo=\n\
--edge\nContent-Type: text/plain; name=\"../../etc/pass\\\"wd\"\nContent-Disposition: attachment\n\nroot\n\
--edge--\n";

fn get_link(server: &Server, link: &Value) -> Response {
    let base = format!("http://{}", server.address);
    let path = link
        .as_str()
        .unwrap()
        .strip_prefix(&base)
        .unwrap_or_else(|| panic!("{link} is not on {base}"));
    server.get(path)
}

#[test]
fn links_work_and_digests_agree() {
    let server = Server::start();
    let mailbox = "b%C3%B6b%20x";
    server.drop_message("böb x", "an id ü", MAIL);
    let message = server.message(mailbox, "an%20id%20%C3%BC");
    let attachments = message["attachments"].as_array().unwrap();
    assert_eq!(attachments.len(), 4);
    let text = server.get("/api/v1/mailbox/b%C3%B6b%20x/an%20id%20%C3%BC");
    let places: Vec<_> = [
        "filename",
        "content-type",
        "download-link",
        "view-link",
        "md5",
    ]
    .iter()
    .map(|key| text.text().find(&format!("\"{key}\":")).unwrap())
    .collect();
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(attachments[0].as_object().unwrap().len(), 5);
    let expected: [(&str, &str, &[u8]); 4] = [
        ("résumé 100% #1.pdf", "application/pdf", b"%PDF-1.4\n"),
        ("evil.html", "text/html", b"<script>alert(1)</script>"),
        ("", "image/png", b"\x89PNG\r\n\x1a\n"),
        ("pass\"wd", "text/plain", b"root"),
    ];
    for (attachment, (filename, media_type, bytes)) in attachments.iter().zip(expected) {
        assert_eq!(attachment["filename"], filename);
        assert_eq!(attachment["content-type"], media_type);
        let download = get_link(&server, &attachment["download-link"]);
        assert_eq!(download.status, 200);
        assert_eq!(download.body, bytes);
        assert_eq!(attachment["md5"], format!("{:x}", md5::compute(bytes)));
        assert_eq!(download.header("expires"), Some("-1"));
        assert_eq!(download.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(
            download.header("content-type"),
            Some("application/octet-stream")
        );
        assert!(
            download
                .header("content-disposition")
                .unwrap()
                .starts_with("attachment; filename=")
        );
        let view = get_link(&server, &attachment["view-link"]);
        assert_eq!(view.body, bytes);
        assert!(view.header("content-type").unwrap().starts_with(media_type));
        assert!(
            view.header("content-disposition")
                .unwrap()
                .starts_with("inline; filename=")
        );
    }
    let links: Vec<_> = attachments
        .iter()
        .map(|a| a["download-link"].as_str().unwrap())
        .collect();
    assert!(links[0].ends_with(
        "/mailbox/dattach/b%C3%B6b%20x/an%20id%20%C3%BC/0/r%C3%A9sum%C3%A9%20100%25%20%231.pdf"
    ));
    assert!(links[2].ends_with("/2/part-2.png"));
    let view = get_link(&server, &attachments[1]["view-link"]);
    assert!(
        view.header("content-security-policy")
            .unwrap()
            .starts_with("sandbox")
    );
    let pdf = get_link(&server, &attachments[0]["download-link"]);
    assert!(
        pdf.header("content-disposition")
            .unwrap()
            .contains("filename*=UTF-8''r%C3%A9sum%C3%A9%20100%25%20%231.pdf")
    );
}

#[test]
fn the_last_segment_is_ignored_and_numbers_are_checked() {
    let server = Server::start();
    server.drop_message("box", "m", MAIL);
    assert_eq!(
        server.get("/mailbox/dattach/box/m/0/anything%FF").status,
        200
    );
    let head = server.request("HEAD", "/mailbox/vattach/box/m/0/x");
    assert_eq!(
        (head.status, head.header("content-length"), head.body.len()),
        (200, Some("9"), 0)
    );
    for number in ["4", "-1", "%2B1", "x", "99999999999999999999", "0x0"] {
        let response = server.get(&format!("/mailbox/dattach/box/m/{number}/x"));
        assert_eq!(response.status, 404, "{number}");
        assert_eq!(
            response.header("content-type"),
            Some("application/problem+json")
        );
    }
    assert_eq!(server.get("/mailbox/dattach/box/nope/0/x").status, 404);
    assert_eq!(server.get("/mailbox/dattach/box/..%2Fm/0/x").status, 400);
}

#[test]
fn latest_is_resolved_in_links() {
    let server = Server::start();
    server.drop_message("box", "m", MAIL);
    let message = server.message("box", "latest");
    assert!(
        message["attachments"][0]["view-link"]
            .as_str()
            .unwrap()
            .contains("/vattach/box/m/0/")
    );
}

#[test]
fn links_begin_with_the_base_url_or_the_requests_host() {
    let link = |server: &Server, headers: &[(&str, &str)]| {
        let response = server.send("GET", "/api/v1/mailbox/box/m", headers, b"");
        response.json()["attachments"][2]["download-link"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let server = Server::start();
    server.drop_message("box", "m", MAIL);
    let host = [("Host", "mail.example:81")];
    assert_eq!(
        link(&server, &host),
        "http://mail.example:81/mailbox/dattach/box/m/2/part-2.png"
    );
    let odd = link(&server, &[("Host", "x\"><script>")]);
    assert_eq!(
        odd,
        format!(
            "http://{}/mailbox/dattach/box/m/2/part-2.png",
            server.address
        )
    );

    let server = Server::start_with(&["--base-url", "https://example.com/mail/"]);
    server.drop_message("box", "m", MAIL);
    assert_eq!(
        link(&server, &host),
        "https://example.com/mail/mailbox/dattach/box/m/2/part-2.png"
    );
    // Every route answers at / and under the path, whether a proxy strips it or not.
    for prefix in ["", "/mail"] {
        assert_eq!(
            server
                .get(&format!("{prefix}/mailbox/dattach/box/m/0/x"))
                .status,
            200
        );
        assert_eq!(
            server.get(&format!("{prefix}/api/v1/mailbox/box/m")).status,
            200
        );
        assert_eq!(
            server.get(&format!("{prefix}/api/v1/mailbox/box")).json()[0]["id"],
            "m"
        );
        assert_eq!(
            server
                .get(&format!("{prefix}/api/v1/mailbox/box/m/source"))
                .body,
            MAIL.as_bytes()
        );
    }
    assert_eq!(server.get("/other/api/v1/mailbox/box").status, 404);
}
