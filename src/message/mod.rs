//! Bytes → [`Summary`] or [`Message`]: pure, and total.
//!
//! Whatever stands in a file, there is an answer: what cannot be taken apart as MIME is shown as
//! its headers and its raw text. Nothing here touches the disk, and nothing returns an error.
//!
//! The pieces: `header` finds and splits the header section, `words` reads RFC 2047, `address`
//! makes addresses readable, `transfer` undoes encodings and charsets, `part` walks the MIME tree
//! and decides what is body and what is attachment, `html` renders HTML as text.

mod address;
mod header;
mod html;
mod part;
mod transfer;
mod words;

pub(crate) use header::HEAD_MAX;
pub use header::Headers;
pub use part::Attachment;

/// More recipients than this are not listed; nobody reads them, and an index holds every one.
const RECIPIENTS_MAX: usize = 2_000;

/// What a list shows of a message: read from its header section alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// `Name <a@b>` or `<a@b>`; empty when the message does not tell.
    pub from: String,
    /// Each recipient, in the same form.
    pub to: Vec<String>,
    /// The subject, decoded.
    pub subject: String,
}

impl Summary {
    /// Reads the summary from a message, of which no more than the header section is looked at.
    pub fn parse(raw: &[u8]) -> Self {
        Self::of(&Headers::parse(raw).0)
    }

    fn of(headers: &Headers) -> Self {
        Self {
            from: sender(headers),
            to: recipients(headers),
            subject: headers
                .first("Subject")
                .map(|value| words::decode(value).trim().to_owned())
                .unwrap_or_default(),
        }
    }
}

fn sender(headers: &Headers) -> String {
    ["From", "Return-Path"]
        .into_iter()
        .find_map(|name| addresses(headers, name).into_iter().next())
        .unwrap_or_default()
}

/// A To header that names a group without members is an answer: nobody.
fn recipients(headers: &Headers) -> Vec<String> {
    let mut to = addresses(headers, "To");
    to.truncate(RECIPIENTS_MAX);
    to.shrink_to_fit();
    if to.is_empty()
        && !headers
            .first("To")
            .is_some_and(|value| value.trim_end().ends_with(';'))
    {
        return addresses(headers, "Delivered-To");
    }
    to
}

fn addresses(headers: &Headers, name: &str) -> Vec<String> {
    let value = headers.first(name).unwrap_or_default();
    guarded(|| address::list(value)).unwrap_or_default()
}

/// A message taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// What a list shows of it.
    pub summary: Summary,
    /// Its header fields, unfolded and undecoded.
    pub headers: Headers,
    /// The text to read, with `\n` at line ends; rendered from the HTML when there is HTML alone.
    pub text: String,
    /// The HTML to show, with `\n` at line ends.
    pub html: String,
    /// Everything else, in document order.
    pub attachments: Vec<Attachment>,
}

impl Message {
    /// Takes a message apart. Every sequence of bytes is one.
    ///
    /// ```
    /// use spoolbox::Message;
    ///
    /// let message = Message::parse(b"From: Ann <ann@example.com>\nSubject: =?utf-8?q?caf=C3=A9?=\n\nHello!\n");
    /// assert_eq!(message.summary.from, "Ann <ann@example.com>");
    /// assert_eq!(message.summary.subject, "café");
    /// assert_eq!(message.text, "Hello!\n");
    /// ```
    pub fn parse(raw: &[u8]) -> Self {
        let (headers, body) = Headers::parse(raw);
        let parts = guarded(|| part::walk(raw))
            .flatten()
            .unwrap_or_else(|| part::Parts::raw(&raw[body..]));
        let html = parts.html.join("\n");
        let text = if parts.text.is_empty() && !parts.html.is_empty() {
            guarded(|| html::to_text(&html)).unwrap_or_default()
        } else {
            parts.text.join("\n")
        };
        Self {
            summary: Summary::of(&headers),
            headers,
            text,
            html,
            attachments: parts.attachments,
        }
    }
}

/// Why a message is not shown as its sender meant it, if there is a reason.
pub fn damage(raw: &[u8]) -> Option<&'static str> {
    if raw.is_empty() {
        return Some("the file is empty");
    }
    if Headers::parse(raw).0.is_empty() {
        return Some("it has no header fields: is it a message?");
    }
    let taken_apart = guarded(|| part::is_sound(raw)).unwrap_or(false);
    (!taken_apart).then_some("its parts cannot be told apart: it is shown as raw text")
}

/// Runs code that works on a stranger's bytes. A panic in a parser is that message's misfortune,
/// never the server's.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_addresses_fall_back_to_the_envelope() {
        let raw = b"Return-Path: <env@example.com>\nDelivered-To: box@example.com\nSubject: x\n\n";
        let summary = Summary::parse(raw);
        assert_eq!(summary.from, "<env@example.com>");
        assert_eq!(summary.to, ["<box@example.com>"]);
        assert_eq!(Summary::parse(b""), Summary::default());
        assert_eq!(Summary::parse(b"Return-Path: <>\n\n").from, "");
    }

    #[test]
    fn undisclosed_recipients_are_nobody() {
        let raw = b"Delivered-To: box@example.com\nTo: undisclosed-recipients:;\n\n";
        assert!(Summary::parse(raw).to.is_empty());
    }

    #[test]
    fn every_prefix_of_a_message_is_a_message() {
        let raw = b"From: a@b.example\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\n\
            Content-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\n\
            PGI+aGk8L2I+\r\n--x\r\nContent-Disposition: attachment; filename*=utf-8''%C3%A9.bin\r\n\r\nx\r\n--x--\r\n";
        for end in 0..=raw.len() {
            Message::parse(&raw[..end]);
        }
        let message = Message::parse(raw);
        assert_eq!(message.html, "<b>hi</b>");
        assert_eq!(message.text, "hi");
        assert_eq!(message.attachments[0].filename, "é.bin");
    }
}
