//! The MIME tree: which leaves are the body, and which are attachments.

use std::collections::BTreeMap;

use mailparse::body::Body;
use mailparse::{DispositionType, ParsedMail};

use super::{transfer, words};

/// More encoded words than any real mail has; mailparse needs quadratic time for them.
const WORDS_MAX: usize = 2_000;

/// More delimiter lines than any real mail has; each part costs mailparse some 200 bytes.
const DELIMITERS_MAX: usize = 100_000;

/// A longer name helps nobody, and would not fit into a file system.
const FILENAME_MAX: usize = 255;

/// A part that is not shown as the body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attachment {
    /// The name that the sender gave it, without any path; empty when there is none.
    pub filename: String,
    /// The media type alone, in lower case: `application/pdf`.
    pub content_type: String,
    /// The charset that was declared for it.
    pub charset: Option<String>,
    /// The decoded bytes.
    pub data: Vec<u8>,
}

impl Attachment {
    /// The MD5 digest of the decoded bytes, in hexadecimal: what `md5sum` says of a download.
    pub fn md5(&self) -> String {
        format!("{:x}", md5::compute(&self.data))
    }
}

/// The leaves of a message, sorted by what becomes of them.
#[derive(Debug, Default)]
pub struct Parts {
    pub text: Vec<String>,
    pub html: Vec<String>,
    pub attachments: Vec<Attachment>,
}

impl Parts {
    /// What is left of a message that cannot be taken apart: its text as it stands.
    pub fn raw(body: &[u8]) -> Self {
        Self {
            text: vec![unix_lines(&transfer::text(body, None))],
            ..Self::default()
        }
    }
}

/// Takes the tree apart, or says that this message is beyond it.
pub fn walk(raw: &[u8]) -> Option<Parts> {
    let mut parts = Parts::default();
    collect(&tree(raw)?, &mut parts);
    Some(parts)
}

/// Whether the tree can be taken apart.
pub fn is_sound(raw: &[u8]) -> bool {
    tree(raw).is_some()
}

fn tree(raw: &[u8]) -> Option<ParsedMail<'_>> {
    if memchr::memmem::find_iter(raw, "=?").count() > WORDS_MAX
        || memchr::memmem::find_iter(raw, "\n--").count() > DELIMITERS_MAX
    {
        return None;
    }
    mailparse::parse_mail(raw).ok()
}

fn collect(part: &ParsedMail, parts: &mut Parts) {
    for child in &part.subparts {
        collect(child, parts);
    }
    if !part.subparts.is_empty() {
        return;
    }
    let disposition = part.get_content_disposition();
    let charset = part
        .ctype
        .params
        .get("charset")
        .map(|label| label.trim().to_owned());
    let media_type = part.ctype.mimetype.trim().to_ascii_lowercase();
    let filename = filename(&disposition.params, "filename")
        .or_else(|| filename(&part.ctype.params, "name"))
        .unwrap_or_default();
    let shown = filename.is_empty() && disposition.disposition != DispositionType::Attachment;
    match media_type.as_str() {
        // A container in which no part was found is shown as the text that it is.
        container if container.starts_with("multipart/") => parts
            .text
            .extend(Some(text_of(part, None)).filter(|text| !text.trim().is_empty())),
        "text/plain" | "" if shown => parts.text.push(text_of(part, charset.as_deref())),
        "text/html" if shown => parts.html.push(text_of(part, charset.as_deref())),
        _ => parts.attachments.push(Attachment {
            filename,
            content_type: if media_type.is_empty() {
                "application/octet-stream".into()
            } else {
                media_type
            },
            charset,
            data: data_of(part),
        }),
    }
}

fn text_of(part: &ParsedMail, charset: Option<&str>) -> String {
    unix_lines(&transfer::text(&data_of(part), charset))
}

/// The decoded bytes; base64 that mailparse refuses is decoded as far as it goes.
fn data_of(part: &ParsedMail) -> Vec<u8> {
    part.get_body_raw()
        .unwrap_or_else(|_| match part.get_body_encoded() {
            Body::Base64(body) => transfer::base64(body.get_raw()),
            Body::QuotedPrintable(body) => body.get_raw().to_vec(),
            Body::SevenBit(body) | Body::EightBit(body) => body.get_raw().to_vec(),
            Body::Binary(body) => body.get_raw().to_vec(),
        })
}

/// A file's name out of its parameters: decoded, and without anything that a path or a terminal
/// could take amiss.
fn filename(params: &BTreeMap<String, String>, key: &str) -> Option<String> {
    // The extended form is the better one, and mailparse leaves it as it is when both are there.
    let extended = params.get(&format!("{key}*")).and_then(|value| {
        let mut pieces = value.splitn(3, '\'');
        let (charset, _, encoded) = (pieces.next()?, pieces.next()?, pieces.next()?);
        Some(transfer::text(&transfer::percent(encoded), Some(charset)).into_owned())
    });
    let plain = || {
        params
            .get(key)
            .map(|value| words::decode(value).into_owned())
    };
    let name = extended.or_else(plain)?;
    let name: String = name
        .rsplit(['/', '\\'])
        .next()
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    let name = shorten(name.trim());
    (!name.is_empty() && name != "." && name != "..").then_some(name)
}

/// Cuts a name to size and keeps its ending.
fn shorten(name: &str) -> String {
    if name.len() <= FILENAME_MAX {
        return name.to_owned();
    }
    let ending = name
        .rfind('.')
        .map(|dot| &name[dot..])
        .filter(|ending| ending.len() <= 16);
    let ending = ending.unwrap_or_default();
    let mut end = FILENAME_MAX - ending.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{ending}", &name[..end])
}

/// Line ends of every kind as `\n`.
fn unix_lines(text: &str) -> String {
    if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n")
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pairs: &[(&str, &str)]) -> Option<String> {
        let own = |&(k, v): &(&str, &str)| (k.to_owned(), v.to_owned());
        filename(&pairs.iter().map(own).collect(), "filename")
    }

    #[test]
    fn names_lose_paths_and_control_characters() {
        assert_eq!(
            name(&[("filename", "../../etc/passwd")]).as_deref(),
            Some("passwd")
        );
        assert_eq!(
            name(&[("filename", "C:\\tmp\\a b.txt")]).as_deref(),
            Some("a b.txt")
        );
        assert_eq!(
            name(&[("filename", "a\r\nX: y\0.txt")]).as_deref(),
            Some("aX: y.txt")
        );
        assert_eq!(name(&[("filename", "..")]), None);
        assert_eq!(name(&[("filename", "dir/")]), None);
        assert_eq!(name(&[]), None);
    }

    #[test]
    fn both_forms_and_encoded_words() {
        let both = [("filename", "e.txt"), ("filename*", "utf-8''%C3%A9.txt")];
        assert_eq!(name(&both).as_deref(), Some("é.txt"));
        assert_eq!(
            name(&[("filename", "=?utf-8?q?=C3=A9=2Etxt?=")]).as_deref(),
            Some("é.txt")
        );
    }

    #[test]
    fn long_names_keep_their_ending() {
        let long = name(&[("filename", &format!("{}.pdf", "é".repeat(6_000)))]).unwrap();
        assert!(long.len() <= 255 && long.ends_with(".pdf"));
    }

    #[test]
    fn dirty_base64_keeps_what_decodes() {
        let raw = b"Content-Type: image/png; name=x.png\nContent-Transfer-Encoding: base64\n\naGVsbG8*=\n-- \nfooter\n";
        let parts = walk(raw).unwrap();
        assert_eq!(parts.attachments[0].data, b"hello");
    }

    #[test]
    fn what_was_made_to_hurt_is_shown_raw() {
        let level = |n| format!("Content-Type: multipart/mixed; boundary=b{n}x\n\n--b{n}x\n");
        let nested: String = (0..200).map(level).collect();
        assert!(walk(nested.as_bytes()).is_none());
        assert!(walk("Subject: =?a?q?b?=\n".repeat(3_000).as_bytes()).is_none());
    }
}
