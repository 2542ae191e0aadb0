//! RFC 2047 encoded words (`=?utf-8?q?caf=C3=A9?=`) in header values, in linear time.

use std::borrow::Cow;

use super::transfer;

/// Replaces the encoded words of a value by what they say.
///
/// White space between two words belongs to the encoding and goes; words of one charset that
/// follow each other are decoded together, because senders split them inside a character.
pub fn decode(value: &str) -> Cow<'_, str> {
    if !value.contains("=?") {
        return Cow::Borrowed(value);
    }
    let mut out = String::with_capacity(value.len());
    let mut run: Option<Run> = None;
    let mut closes = Closes { value, next: 0 };
    let mut rest = value;
    while let Some(at) = rest.find("=?") {
        let (plain, tail) = rest.split_at(at);
        let Some((word, after)) = Word::parse(tail, &mut closes) else {
            flush(&mut run, &mut out);
            out.push_str(plain);
            out.push_str("=?");
            rest = &tail[2..];
            continue;
        };
        if run.is_none() || !plain.trim().is_empty() {
            flush(&mut run, &mut out);
            out.push_str(plain);
        }
        match &mut run {
            Some(run) if run.charset.eq_ignore_ascii_case(word.charset) => {
                run.bytes.extend(word.bytes())
            }
            _ => {
                flush(&mut run, &mut out);
                run = Some(Run {
                    charset: word.charset,
                    bytes: word.bytes(),
                });
            }
        }
        rest = after;
    }
    flush(&mut run, &mut out);
    out.push_str(rest);
    Cow::Owned(out)
}

/// Adjacent words of one charset.
struct Run<'a> {
    charset: &'a str,
    bytes: Vec<u8>,
}

fn flush(run: &mut Option<Run>, out: &mut String) {
    if let Some(run) = run.take() {
        out.push_str(&transfer::text(&run.bytes, Some(run.charset)));
    }
}

struct Word<'a> {
    charset: &'a str,
    base64: bool,
    text: &'a str,
}

impl<'a> Word<'a> {
    /// Reads the word at the start of `tail`, which begins with `=?`, and returns what follows it.
    fn parse(tail: &'a str, closes: &mut Closes) -> Option<(Self, &'a str)> {
        let (charset, encoded) = tail[2..].split_once('?')?;
        if charset.is_empty() || charset.contains(char::is_whitespace) {
            return None;
        }
        let (encoding, text) = encoded.split_once('?')?;
        let base64 = match encoding {
            "b" | "B" => true,
            "q" | "Q" => false,
            _ => return None,
        };
        let close = closes.first_in(text)?;
        let word = Word {
            // RFC 2231 lets a language follow the charset.
            charset: charset.split('*').next().unwrap_or(charset),
            base64,
            text: &text[..close],
        };
        Some((word, &text[close + 2..]))
    }

    fn bytes(&self) -> Vec<u8> {
        if self.base64 {
            transfer::base64(self.text.as_bytes())
        } else {
            transfer::q_encoding(self.text.as_bytes())
        }
    }
}

/// Where words end. Found once each, however many words begin before an end that is far away.
struct Closes<'a> {
    value: &'a str,
    /// The first `?=` at or after what was last asked about.
    next: usize,
}

impl Closes<'_> {
    /// The first `?=` in `text`, which is an end of the value.
    fn first_in(&mut self, text: &str) -> Option<usize> {
        let start = self.value.len() - text.len();
        if self.next < start || !self.value[self.next..].starts_with("?=") {
            let from = self.next.max(start);
            self.next = self.value[from..]
                .find("?=")
                .map_or(self.value.len(), |at| from + at);
        }
        (self.next < self.value.len()).then(|| self.next - start)
    }
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn words_and_what_stands_around_them() {
        let cases = [
            ("plain", "plain"),
            ("=?utf-8?q?caf=C3=A9?=", "café"),
            ("=?UTF-8?B?Y2Fmw6k=?= now", "café now"),
            ("a =?utf-8?q?b?= c", "a b c"),
            ("=?utf-8?q?a?= =?utf-8?q?b?=", "ab"),
            ("=?utf-8?q?a_?=\t=?iso-8859-1?q?=E9?=", "a é"),
            ("=?utf-8?q?=C3?= =?utf-8?q?=A9?=", "é"),
            ("=?utf-8*en?q?x?=", "x"),
            ("=?utf-8?q??=", ""),
            ("=?utf-8?q?with space?=", "with space"),
            ("=?no-such?q?=C3=A9?=", "é"),
            ("=?utf-8?x?a?=", "=?utf-8?x?a?="),
            ("a =? b =?utf-8?q?", "a =? b =?utf-8?q?"),
            ("=?=?utf-8?q?a?=", "=?a"),
        ];
        for (given, expected) in cases {
            assert_eq!(decode(given), expected, "{given}");
        }
    }

    #[test]
    fn what_was_made_to_hurt_costs_linear_time() {
        // Quadratic work on these would run for minutes.
        for piece in ["=?", "=?a?q?", "=?a?q?x", "=?utf-8?q?x?= ", "?=", "=?a"] {
            let value = piece.repeat(2_000_000 / piece.len());
            assert!(decode(&value).len() <= value.len() * 3);
        }
    }
}
