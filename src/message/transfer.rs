//! Bytes out of their transfer encodings, keeping whatever decodes, and text out of bytes.

use std::borrow::Cow;

use encoding_rs::{Encoding, WINDOWS_1252};

/// Decodes base64 the forgiving way: what is not in the alphabet is passed over, padding ends the
/// data, and a tail that is too short for a byte is dropped.
pub fn base64(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len() / 4 * 3 + 3);
    let mut bits: u32 = 0;
    let mut held = 0;
    for &byte in input {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' => break,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    out
}

/// Decodes the `Q` encoding of a header word; what is not an escape stands for itself.
pub fn q_encoding(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut at = 0;
    while at < input.len() {
        match (input[at], input.get(at + 1..at + 3).and_then(hex_byte)) {
            (b'=', Some(byte)) => {
                out.push(byte);
                at += 3;
                continue;
            }
            (b'_', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    out
}

/// Decodes `%41` escapes; what is not an escape stands for itself.
pub fn percent(input: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(input).collect()
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    Some(digit(pair[0])? << 4 | digit(pair[1])?)
}

/// Reads bytes in the charset they were declared to be in. Without a declaration, or with one that
/// says nothing (`us-ascii` around 8-bit bytes, an unknown name), valid UTF-8 is UTF-8 and
/// anything else Windows-1252.
pub fn text<'a>(bytes: &'a [u8], charset: Option<&str>) -> Cow<'a, str> {
    let label = charset.map(str::trim).unwrap_or_default();
    let declared = match Encoding::for_label(label.as_bytes()) {
        _ if label.eq_ignore_ascii_case("us-ascii") || label.eq_ignore_ascii_case("ascii") => None,
        other => other,
    };
    match (declared, std::str::from_utf8(bytes)) {
        (Some(encoding), _) => encoding.decode(bytes).0,
        (None, Ok(text)) => Cow::Borrowed(text),
        (None, Err(_)) => WINDOWS_1252.decode_without_bom_handling(bytes).0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_keeps_what_decodes() {
        assert_eq!(base64(b"aGVsbG8="), b"hello");
        assert_eq!(base64(b"aGVs\r\n bG8"), b"hello");
        assert_eq!(base64(b"aGVsbG8=\n-- \nfooter"), b"hello");
        assert_eq!(base64(b"aGVsb"), b"hel");
        assert_eq!(base64(b"!"), b"");
    }

    #[test]
    fn q_keeps_what_is_no_escape() {
        assert_eq!(q_encoding(b"a_b=C3=a9=zz="), "a b\u{e9}=zz=".as_bytes());
    }

    #[test]
    fn charsets() {
        assert_eq!(text(b"\xe9", Some("iso-8859-1")), "é");
        assert_eq!(text("é".as_bytes(), None), "é");
        assert_eq!(text(b"\x93x\x94", None), "“x”");
        assert_eq!(text("é".as_bytes(), Some("us-ascii")), "é");
        assert_eq!(text("é".as_bytes(), Some("no-such-charset")), "é");
        assert_eq!(text(b"\x82\xa0", Some("Shift_JIS")), "あ");
    }
}
