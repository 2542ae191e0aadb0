//! Attachments on the wire: their links, and the headers that keep a browser safe with them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use warp::http::{HeaderMap, HeaderValue, header};
use warp::reply::Response;

use crate::message::Attachment;
use crate::names::{MailboxName, MessageId};

/// What to do with an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Download,
    View,
}

/// Everything but RFC 3986's unreserved characters, and RFC 5987's with them.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// An absolute link to attachment `number`.
pub fn link(
    base: &str,
    purpose: Purpose,
    mailbox: &MailboxName,
    id: &MessageId,
    number: usize,
    attachment: &Attachment,
) -> String {
    let escape = |text| utf8_percent_encode(text, ESCAPED);
    let route = match purpose {
        Purpose::Download => "dattach",
        Purpose::View => "vattach",
    };
    format!(
        "{base}/mailbox/{route}/{}/{}/{number}/{}",
        escape(mailbox.as_str()),
        escape(id.as_str()),
        escape(&name(number, attachment)),
    )
}

/// The answer that carries an attachment.
pub fn response(number: usize, attachment: Attachment, purpose: Purpose) -> Response {
    let media_type = safe_type(&attachment.content_type);
    let (disposition, content_type) = match purpose {
        Purpose::Download => ("attachment", "application/octet-stream".to_owned()),
        Purpose::View => (
            "inline",
            with_charset(media_type, attachment.charset.as_deref()),
        ),
    };
    let mut headers = HeaderMap::new();
    let name = name(number, &attachment);
    let disposition = format!(
        "{disposition}; filename=\"{}\"; filename*=UTF-8''{}",
        ascii(&name),
        utf8_percent_encode(&name, ESCAPED),
    );
    // Both are ASCII without control characters by now; were they not, the download would be plain
    // bytes rather than something that renders.
    let value =
        |text: &str, safe| HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(safe));
    headers.insert(
        header::CONTENT_TYPE,
        value(&content_type, "application/octet-stream"),
    );
    headers.insert(
        header::CONTENT_DISPOSITION,
        value(&disposition, "attachment"),
    );
    headers.insert(header::EXPIRES, HeaderValue::from_static("-1"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    // A PDF viewer does not run in a sandbox, and a PDF cannot act on the page's origin.
    if media_type != "application/pdf" || purpose == Purpose::Download {
        headers.insert(
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static(
                "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'",
            ),
        );
    }
    let mut response = Response::new(attachment.data.into());
    *response.headers_mut() = headers;
    response
}

/// The file's name for links and downloads: never empty.
fn name(number: usize, attachment: &Attachment) -> String {
    if attachment.filename.is_empty() {
        format!("part-{number}.{}", extension(&attachment.content_type))
    } else {
        attachment.filename.clone()
    }
}

fn extension(media_type: &str) -> &'static str {
    match media_type {
        "application/gzip" => "gz",
        "application/json" => "json",
        "application/msword" => "doc",
        "application/pdf" => "pdf",
        "application/pgp-signature" => "asc",
        "application/pkcs7-signature" | "application/x-pkcs7-signature" => "p7s",
        "application/vnd.ms-excel" => "xls",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" => "xlsx",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document" => "docx",
        "application/xml" | "text/xml" => "xml",
        "application/zip" => "zip",
        "audio/mpeg" => "mp3",
        "image/gif" => "gif",
        "image/jpeg" | "image/jpg" => "jpg",
        "image/png" => "png",
        "image/svg+xml" => "svg",
        "image/tiff" => "tif",
        "image/webp" => "webp",
        "message/rfc822" => "eml",
        "text/calendar" => "ics",
        "text/css" => "css",
        "text/csv" => "csv",
        "text/html" => "html",
        "text/vcard" | "text/x-vcard" => "vcf",
        "video/mp4" => "mp4",
        text if text.starts_with("text/") || text == "message/delivery-status" => "txt",
        _ => "bin",
    }
}

/// The sender's word for the type where it is one, else plain bytes.
fn safe_type(media_type: &str) -> &str {
    match media_type.split_once('/') {
        Some((kind, subtype)) if is_token(kind) && is_token(subtype) => media_type,
        _ => "application/octet-stream",
    }
}

fn with_charset(media_type: &str, charset: Option<&str>) -> String {
    match charset.filter(|charset| media_type.starts_with("text/") && is_token(charset)) {
        Some(charset) => format!("{media_type}; charset={charset}"),
        None => media_type.to_owned(),
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
}

/// For clients that do not read `filename*`.
fn ascii(name: &str) -> String {
    let safe = |c: char| match c {
        '"' | '\\' | '%' => '_',
        ' '..='~' => c,
        _ => '_',
    };
    name.chars().map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(filename: &str, content_type: &str) -> Attachment {
        Attachment {
            filename: filename.into(),
            content_type: content_type.into(),
            charset: Some("utf-8".into()),
            data: b"data".to_vec(),
        }
    }

    fn header(response: &Response, name: header::HeaderName) -> &str {
        response.headers()[name].to_str().unwrap()
    }

    #[test]
    fn links_escape_every_segment_once() {
        let mailbox = MailboxName::parse("böb@x y").unwrap();
        let id = MessageId::parse("a%20b").unwrap();
        let made = link(
            "https://h/mail",
            Purpose::Download,
            &mailbox,
            &id,
            3,
            &attachment("é a#?.txt", "text/plain"),
        );
        assert_eq!(
            made,
            "https://h/mail/mailbox/dattach/b%C3%B6b%40x%20y/a%2520b/3/%C3%A9%20a%23%3F.txt"
        );
        let made = link(
            "",
            Purpose::View,
            &mailbox,
            &id,
            0,
            &attachment("", "image/png"),
        );
        assert!(made.ends_with("/0/part-0.png"), "{made}");
    }

    #[test]
    fn hostile_names_and_types_stay_in_their_header() {
        let bad = attachment("a\"; filename=x.html\\é\u{7f}.txt", "text/html\r\nX: y");
        let response = response(0, bad, Purpose::View);
        assert_eq!(
            header(&response, header::CONTENT_TYPE),
            "application/octet-stream"
        );
        let disposition = header(&response, header::CONTENT_DISPOSITION);
        assert!(
            disposition.starts_with(
                "inline; filename=\"a_; filename=x.html___.txt\"; filename*=UTF-8''a%22"
            )
        );
        assert_eq!(header(&response, header::X_CONTENT_TYPE_OPTIONS), "nosniff");
    }

    #[test]
    fn what_can_act_is_put_into_a_sandbox() {
        for kind in [
            "text/html",
            "image/svg+xml",
            "application/xml",
            "application/xhtml+xml",
            "x/y",
        ] {
            let view = response(0, attachment("x", kind), Purpose::View);
            assert!(
                header(&view, header::CONTENT_SECURITY_POLICY).starts_with("sandbox"),
                "{kind}"
            );
        }
        let html = response(0, attachment("x", "text/html"), Purpose::View);
        assert_eq!(
            header(&html, header::CONTENT_TYPE),
            "text/html; charset=utf-8"
        );
        let download = response(0, attachment("x", "text/html"), Purpose::Download);
        assert_eq!(
            header(&download, header::CONTENT_TYPE),
            "application/octet-stream"
        );
        assert!(header(&download, header::CONTENT_DISPOSITION).starts_with("attachment;"));
    }
}
