//! The header section: found, split, unfolded; nothing here can fail.

use std::borrow::Cow;
use std::collections::HashMap;

/// No more of a header section than this is looked at. What lies behind it is body neither.
pub const HEAD_MAX: usize = 1024 * 1024;

/// The header fields of a message in the order in which they stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    fields: Vec<Field>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    name: String,
    value: String,
}

impl Headers {
    /// Reads the header section at the start of `raw` and tells where the body begins.
    ///
    /// A line that is neither a field nor a continuation is passed over: one bad line must not
    /// cost the reader the rest.
    pub fn parse(raw: &[u8]) -> (Self, usize) {
        let mut fields: Vec<Field> = Vec::new();
        let mut pending: Option<(&[u8], Vec<u8>)> = None;
        let mut at = 0;
        while at < raw.len() {
            let end = memchr::memchr(b'\n', &raw[at..]).map_or(raw.len(), |n| at + n + 1);
            let start = std::mem::replace(&mut at, end);
            if trim_line_end(&raw[start..end]).is_empty() {
                break;
            }
            let line = trim_line_end(&raw[start.min(HEAD_MAX)..end.min(HEAD_MAX)]);
            if line.is_empty() {
                continue;
            }
            if matches!(line[0], b' ' | b'\t') {
                if let Some((_, value)) = &mut pending {
                    fold(value, line);
                }
                continue;
            }
            fields.extend(pending.take().map(|(name, value)| Field::new(name, &value)));
            // An mbox separator and the like have a space before the first colon.
            if let Some(colon) = memchr::memchr(b':', line) {
                let name = line[..colon].trim_ascii_end();
                if !name.is_empty() && !name.iter().any(|b| b.is_ascii_whitespace()) {
                    pending = Some((name, line[colon + 1..].trim_ascii().to_vec()));
                }
            }
        }
        fields.extend(pending.map(|(name, value)| Field::new(name, &value)));
        (Self { fields }, at)
    }

    /// Whether there is no field at all.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// The first value of this name, unfolded but not decoded.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value.as_str())
    }

    /// Every name with all its values, in the order in which each first occurs.
    pub fn grouped(&self) -> Vec<(&str, Vec<&str>)> {
        let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut place: HashMap<&str, usize> = HashMap::new();
        for field in &self.fields {
            let at = *place.entry(&field.name).or_insert_with(|| {
                groups.push((&field.name, Vec::new()));
                groups.len() - 1
            });
            groups[at].1.push(&field.value);
        }
        groups
    }
}

impl Field {
    fn new(name: &[u8], value: &[u8]) -> Self {
        Self {
            name: canonical(&text(name)),
            value: text(value).into_owned(),
        }
    }
}

/// Appends a continuation line: the line break and the white space around it become one space.
fn fold(value: &mut Vec<u8>, line: &[u8]) {
    let more = line.trim_ascii();
    if !more.is_empty() {
        if !value.is_empty() {
            value.push(b' ');
        }
        value.extend_from_slice(more);
    }
}

fn trim_line_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// UTF-8 where it is valid, else Latin-1, byte for character.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|&b| char::from(b)).collect()),
    }
}

/// `MESSAGE-id` → `Message-Id`: the form under which names that differ in case meet.
fn canonical(name: &str) -> String {
    let mut start = true;
    name.chars()
        .map(|c| {
            let c = if start {
                c.to_ascii_uppercase()
            } else {
                c.to_ascii_lowercase()
            };
            start = c == '-';
            c
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grouped(raw: &str) -> Vec<(String, Vec<String>)> {
        let (headers, _) = Headers::parse(raw.as_bytes());
        let own = |(name, values): (&str, Vec<&str>)| {
            (
                name.to_owned(),
                values.into_iter().map(str::to_owned).collect(),
            )
        };
        headers.grouped().into_iter().map(own).collect()
    }

    #[test]
    fn names_are_canonical_and_occurrences_keep_their_order() {
        let got = grouped("received: a\nMIME-VERSION: 1.0\nReceived: b\nx-foo-BAR: c\n\n");
        assert_eq!(got[0], ("Received".into(), vec!["a".into(), "b".into()]));
        assert_eq!(got[1].0, "Mime-Version");
        assert_eq!(got[2].0, "X-Foo-Bar");
    }

    #[test]
    fn a_fold_is_one_space_and_words_stay_encoded() {
        let got = grouped("Subject: =?utf-8?q?a?= \r\n\t  =?utf-8?q?b?=\r\n \r\n");
        assert_eq!(got[0].1, ["=?utf-8?q?a?= =?utf-8?q?b?="]);
    }

    #[test]
    fn eight_bit_values_are_utf8_or_latin1() {
        let (headers, _) = Headers::parse(b"A: \xc3\xa9\nB: \xe9\n");
        assert_eq!(headers.first("a"), Some("é"));
        assert_eq!(headers.first("b"), Some("é"));
    }

    #[test]
    fn bad_lines_are_passed_over_and_the_body_is_found() {
        let raw =
            b"From alice Mon Nov 16\nno colon here\nSubject: x\nbad name: y\n continued\n\nbody";
        let (headers, body) = Headers::parse(raw);
        assert_eq!(&raw[body..], b"body");
        assert_eq!(headers.grouped(), vec![("Subject", vec!["x"])]);
        assert_eq!(Headers::parse(b"").1, 0);
        // A section without end costs no more than its limit, and the body is still found.
        let endless = [&b"Subject: y\n"[..], &b"a:b\n".repeat(1_000_000), b"\nbody"].concat();
        let (headers, body) = Headers::parse(&endless);
        assert_eq!(&endless[body..], b"body");
        assert!(headers.fields.len() < HEAD_MAX / 4 + 1);
        assert_eq!(headers, Headers::parse(&endless[..HEAD_MAX]).0);
        assert_eq!(
            Headers::parse(b"Subject: only").0.first("subject"),
            Some("only")
        );
    }
}
