//! A text rendering for mail that carries HTML alone.

/// Renderings are not wrapped: whoever searches a text for a sentence should find it on one line.
const WIDTH: usize = 2_000;

/// How much HTML is rendered; a rendering longer than this serves nobody.
const INPUT_MAX: usize = 2 * 1024 * 1024;

/// The renderer's time grows with the square of the nesting, and real mail stays far below this.
const DEPTH_MAX: usize = 1_000;

/// Renders HTML as text: headings, bullets, links with their targets.
///
/// What is nested deeper than any real mail is stripped of its tags instead.
pub fn to_text(html: &str) -> String {
    let mut end = html.len().min(INPUT_MAX);
    while !html.is_char_boundary(end) {
        end -= 1;
    }
    let html = &html[..end];
    let rendered = (depth(html) <= DEPTH_MAX).then(|| {
        html2text::config::plain_no_decorate()
            .link_footnotes(true)
            .raw_mode(true)
            .allow_width_overflow()
            .string_from_read(html.as_bytes(), WIDTH)
    });
    match rendered {
        Some(Ok(text)) => tidy(&text),
        _ => strip(html),
    }
}

/// The deepest nesting of elements that need a closing tag.
fn depth(html: &str) -> usize {
    // These close themselves or each other and so do not nest.
    const FLAT: [&str; 22] = [
        "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link",
        "meta", "option", "p", "source", "td", "th", "tr", "wbr", "track", "param",
    ];
    let (mut now, mut deepest) = (0usize, 0usize);
    for tag in html.split('<').skip(1) {
        let closing = tag.starts_with('/');
        let name = tag.trim_start_matches('/');
        let length = name.bytes().take_while(u8::is_ascii_alphanumeric).count();
        if length == 0
            || FLAT
                .iter()
                .any(|flat| name[..length].eq_ignore_ascii_case(flat))
        {
            continue;
        }
        if closing {
            now = now.saturating_sub(1);
        } else {
            now += 1;
            deepest = deepest.max(now);
        }
    }
    deepest
}

/// Shortens the rules that were drawn over the whole width and trims the ends of lines.
fn tidy(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.trim_end();
        if line.len() > 120 && line.chars().all(|c| c == '─') {
            out.push_str(&"─".repeat(40));
        } else {
            out.push_str(line);
        }
        out.push('\n');
    }
    out.trim_matches('\n').to_owned()
}

/// Leaves the tags out, in one pass.
fn strip(html: &str) -> String {
    let mut out = String::with_capacity(html.len() / 2);
    let mut rest = html;
    while let Some(open) = rest.find('<') {
        out.push_str(&rest[..open]);
        rest = match rest[open..].find('>') {
            Some(close) => &rest[open + close + 1..],
            None => "",
        };
    }
    out.push_str(rest);
    out.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::to_text;

    #[test]
    fn everyday_html_reads_well() {
        let text = to_text(
            "<html><head><style>p{}</style></head><body><h1>Hi</h1><p>Hello&nbsp;<b>you</b>, \
             see <a href='https://example.com/x'>this</a></p><ul><li>one<li>two</ul><hr></body></html>",
        );
        for piece in [
            "Hi",
            "Hello",
            "* one",
            "* two",
            "this",
            "https://example.com/x",
        ] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
        assert!(!text.contains("p{}"));
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }

    #[test]
    fn nesting_without_end_is_stripped() {
        let text = to_text(&format!("{}deep", "<div>".repeat(300_000)));
        assert_eq!(text, "deep");
    }
}
