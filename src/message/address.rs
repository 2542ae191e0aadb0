//! Addresses as a person reads them: `Name <a@b>` or `<a@b>`, decoded.

use mailparse::{MailAddr, SingleInfo};

use super::words;

/// The addresses of a header value; the members of a group stand for the group.
pub fn list(value: &str) -> Vec<String> {
    let Ok(parsed) = mailparse::addrparse(value) else {
        // It is no address list, but where there is an @, a person can still make sense of it.
        let text = words::decode(value).trim().to_owned();
        return if text.contains('@') {
            vec![text]
        } else {
            Vec::new()
        };
    };
    let mut out = Vec::new();
    for address in parsed.into_inner() {
        match address {
            MailAddr::Single(single) => out.extend(display(single)),
            MailAddr::Group(group) => out.extend(group.addrs.into_iter().filter_map(display)),
        }
    }
    out
}

fn display(single: SingleInfo) -> Option<String> {
    let address = single.addr.trim();
    let name = single
        .display_name
        .as_deref()
        .map(words::decode)
        .unwrap_or_default();
    let name = name.trim();
    match (name.is_empty(), address.is_empty()) {
        (true, true) => None,
        (true, false) => Some(format!("<{}>", words::decode(address))),
        (false, true) => Some(name.to_owned()),
        (false, false) => Some(format!("{name} <{address}>")),
    }
}

#[cfg(test)]
mod tests {
    use super::list;

    #[test]
    fn addresses_as_people_write_them() {
        let cases: [(&str, &[&str]); 9] = [
            ("a@b.example", &["<a@b.example>"]),
            ("<a@b.example>", &["<a@b.example>"]),
            ("Ann <a@b.example>", &["Ann <a@b.example>"]),
            (
                "\"Doe, Jane\" <j@b.example>, x@y.example",
                &["Doe, Jane <j@b.example>", "<x@y.example>"],
            ),
            (
                "=?utf-8?q?J=C3=B6rg=2C_B=2E?= <j@b.example>",
                &["Jörg, B. <j@b.example>"],
            ),
            ("Jörg <j@b.example>", &["Jörg <j@b.example>"]),
            (
                "Team: a@b.example, Bo <b@b.example>;",
                &["<a@b.example>", "Bo <b@b.example>"],
            ),
            ("undisclosed-recipients:;", &[]),
            ("<>", &[]),
        ];
        for (given, expected) in cases {
            assert_eq!(list(given), expected, "{given}");
        }
    }
}
