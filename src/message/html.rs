//! A text rendering for mail that carries HTML alone.
//!
//! The renderer builds a tree, and HTML's rules for building trees let a small page become an
//! enormous one. So it never sees what the sender wrote, but what `Outline` makes of it: the few
//! elements that matter to a text, without attributes, closed in order and not deep. Rendering that
//! takes linear time and memory.

/// Renderings are not wrapped: whoever searches a text for a sentence should find it on one line.
const WIDTH: usize = 2_000;

/// How much HTML is rendered; a rendering longer than this serves nobody.
const INPUT_MAX: usize = 2 * 1024 * 1024;

/// Elements nested deeper than this are left out, and their text stays.
const DEPTH_MAX: usize = 16;

/// Renders HTML as text: headings, bullets, links with their targets.
pub fn to_text(html: &str) -> String {
    let mut end = html.len().min(INPUT_MAX);
    while !html.is_char_boundary(end) {
        end -= 1;
    }
    let outline = Outline::of(&html[..end]);
    let rendered = html2text::config::plain_no_decorate()
        .link_footnotes(true)
        .allow_width_overflow()
        .string_from_read(outline.as_bytes(), WIDTH);
    rendered.map(|text| tidy(&text)).unwrap_or_default()
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

/// The part of a page that a text can show, as simple HTML.
struct Outline {
    out: String,
    /// The elements that are open, outermost first.
    open: Vec<&'static str>,
    link: bool,
}

impl Outline {
    fn of(html: &str) -> String {
        let mut outline = Outline {
            out: String::with_capacity(html.len()),
            open: Vec::new(),
            link: false,
        };
        let mut rest = html;
        while let Some(at) = rest.find('<') {
            outline.out.push_str(&rest[..at]);
            rest = outline.tag(&rest[at..]);
        }
        outline.out.push_str(rest);
        outline.close_to(0);
        outline.out
    }

    /// Takes up what begins with the `<` at the start of `rest`, and returns what comes after it.
    fn tag<'a>(&mut self, rest: &'a str) -> &'a str {
        let inner = &rest[1..];
        if let Some(comment) = inner.strip_prefix("!--") {
            return comment.find("-->").map_or("", |end| &comment[end + 3..]);
        }
        let closing = inner.starts_with('/');
        let named = inner.strip_prefix('/').unwrap_or(inner);
        if !named.starts_with(|c: char| c.is_ascii_alphabetic()) {
            if inner.starts_with(['!', '?', '/']) {
                return inner.find('>').map_or("", |end| &inner[end + 1..]);
            }
            self.out.push_str("&lt;");
            return inner;
        }
        let length = named
            .bytes()
            .take_while(|b| b.is_ascii_alphanumeric())
            .count();
        let name = named[..length].to_ascii_lowercase();
        let mut attributes = Attributes(&named[length..]);
        if closing {
            self.close(&name);
            attributes.by_ref().for_each(drop);
        } else {
            self.open(&name, &mut attributes);
            attributes.by_ref().for_each(drop);
            if matches!(
                name.as_str(),
                "script" | "style" | "title" | "textarea" | "template"
            ) {
                return after_raw_text(attributes.0, &name);
            }
        }
        attributes.0
    }

    fn open(&mut self, name: &str, attributes: &mut Attributes) {
        match name {
            "br" | "hr" => {
                self.close_link();
                self.out
                    .push_str(if name == "br" { "<br>" } else { "<hr>" });
            }
            "a" => {
                self.close_link();
                if let Some((_, target)) =
                    attributes.find(|(name, _)| name.eq_ignore_ascii_case("href"))
                {
                    self.out.push_str("<a href=\"");
                    self.quoted(target);
                    self.out.push_str("\">");
                    self.link = true;
                }
            }
            "img" => {
                if let Some((_, text)) =
                    attributes.find(|(name, _)| name.eq_ignore_ascii_case("alt"))
                {
                    self.out.push_str("<img src=\"x\" alt=\"");
                    self.quoted(text);
                    self.out.push_str("\">");
                }
            }
            _ => {
                let Some(block) = block(name) else { return };
                self.close_link();
                // A paragraph or an item that was not closed ends where the next begins.
                let ends = |top: &str| top == "p" || (top == block && matches!(block, "li" | "h"));
                if self.open.last().is_some_and(|top| ends(top)) {
                    self.close_to(self.open.len() - 1);
                }
                if self.open.len() < DEPTH_MAX {
                    self.out.push_str(&format!("<{block}>"));
                    self.open.push(block);
                } else {
                    self.out.push_str("<br>");
                }
            }
        }
    }

    fn close(&mut self, name: &str) {
        if name == "a" {
            self.close_link();
        } else if let Some(block) = block(name)
            && let Some(at) = self.open.iter().rposition(|open| *open == block)
        {
            self.close_to(at);
        }
    }

    fn close_to(&mut self, depth: usize) {
        self.close_link();
        while self.open.len() > depth {
            let name = self.open.pop().unwrap_or_default();
            self.out.push_str(&format!("</{name}>"));
        }
    }

    fn close_link(&mut self) {
        if std::mem::take(&mut self.link) {
            self.out.push_str("</a>");
        }
    }

    fn quoted(&mut self, value: &str) {
        for c in value.chars().take(4_096) {
            match c {
                '"' => self.out.push_str("&quot;"),
                '<' => self.out.push_str("&lt;"),
                c => self.out.push(c),
            }
        }
    }
}

/// The element that stands for a block element; the cells of a table are blocks below each other.
fn block(name: &str) -> Option<&'static str> {
    Some(match name {
        "p" => "p",
        "h1" => "h1",
        "h2" => "h2",
        "h3" => "h3",
        "h4" | "h5" | "h6" => "h4",
        "ul" | "menu" | "dir" => "ul",
        "ol" => "ol",
        "li" => "li",
        "blockquote" => "blockquote",
        "pre" => "pre",
        "div" | "section" | "article" | "header" | "footer" | "main" | "nav" | "aside"
        | "address" | "center" | "form" | "fieldset" | "table" | "tr" | "td" | "th" | "caption"
        | "dl" | "dt" | "dd" => "div",
        _ => return None,
    })
}

/// The attributes of a tag; what is left when there are no more is what follows the tag.
struct Attributes<'a>(&'a str);

impl<'a> Iterator for Attributes<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self
            .0
            .trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
        if rest.is_empty() || rest.starts_with('>') {
            self.0 = rest.strip_prefix('>').unwrap_or(rest);
            // Nothing more, also when asked again.
            return None;
        }
        let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '=' | '>' | '/');
        // The first character belongs to the name, whatever it is.
        let first = rest.chars().next().map_or(0, char::len_utf8);
        let length = first + rest[first..].find(ends).unwrap_or(rest.len() - first);
        let (name, rest) = rest.split_at(length);
        let Some(value) = rest.trim_ascii_start().strip_prefix('=') else {
            self.0 = rest;
            return Some((name, ""));
        };
        let value = value.trim_ascii_start();
        let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
        let (value, rest) = match quote {
            Some(quote) => value[1..].split_once(quote).unwrap_or((&value[1..], "")),
            None => value.split_at(
                value
                    .find(|c: char| c.is_ascii_whitespace() || c == '>')
                    .unwrap_or(value.len()),
            ),
        };
        self.0 = rest;
        Some((name, value))
    }
}

/// What comes after the end of an element whose content is no HTML.
fn after_raw_text<'a>(content: &'a str, name: &str) -> &'a str {
    for (at, _) in content.match_indices("</") {
        let end = &content[at + 2..];
        if end
            .get(..name.len())
            .is_some_and(|word| word.eq_ignore_ascii_case(name))
        {
            return end.find('>').map_or("", |close| &end[close + 1..]);
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_html_reads_well() {
        let text = to_text(
            "<!DOCTYPE html><html><head><title>no</title><style>p{}</style></head><body><h1>Hi</h1><p>Hello&nbsp;<b>you</b>, \
             see <a class=x HREF='https://example.com/x?a=1&amp;b=2'>this</a></p><ul><li>one<li>two</ul><hr>\
             <table><tr><td>left<td>right</table><img src=x alt='a dot'><!-- no --><script>no</script>5 < 6</body></html>",
        );
        for piece in [
            "Hi",
            "Hello",
            "you, see",
            "* one",
            "* two",
            "this",
            "https://example.com/x?a=1&b=2",
        ] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
        for piece in ["left\n", "right", "a dot", "5 < 6"] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
        assert!(!text.contains("p{}") && !text.contains("no"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }

    #[test]
    fn the_outline_is_closed_in_order_and_not_deep() {
        assert_eq!(
            Outline::of("<div><p>a<p>b</div>c"),
            "<div><p>a</p><p>b</p></div>c"
        );
        assert_eq!(
            Outline::of("<a href=x>y<div>z</a></b>"),
            "<a href=\"x\">y</a><div>z</div>"
        );
        assert_eq!(Outline::of("a <b c=\"><div>\" d>e</b> < f"), "a e &lt; f");
        assert_eq!(Outline::of("<div ='>x"), "<div>x</div>");
        assert_eq!(Outline::of("<p"), "<p></p>");
        assert_eq!(Outline::of("x<!-- never closed <p>"), "x");
        let outline = Outline::of(&"<ul><li>".repeat(1_000));
        let (mut depth, mut deepest) = (0, 0);
        for tag in outline
            .split('<')
            .skip(1)
            .filter(|tag| !tag.starts_with("br"))
        {
            depth = if tag.starts_with('/') {
                depth - 1
            } else {
                depth + 1
            };
            deepest = deepest.max(depth);
        }
        assert_eq!((depth, deepest), (0, DEPTH_MAX));
    }

    #[test]
    fn what_was_made_to_hurt_costs_linear_time() {
        let formatting: String = (0..400).map(|n| format!("<b id={n}>")).collect();
        let pages = [
            format!("<p>{formatting}</p>{}", "<p>x</p>".repeat(3_000)),
            "<div></x>".repeat(20_000),
            "<li><dd>".repeat(20_000),
            "<div>".repeat(60_000),
            format!(
                "<p {}>x",
                (0..40_000).map(|n| format!(" a{n}")).collect::<String>()
            ),
            "<a href=x>".repeat(20_000),
            "<blockquote>".repeat(50) + &"x<br>".repeat(40_000),
            "<".repeat(100_000),
            "</style".repeat(40_000),
            "<style>".repeat(40_000),
            "<!--".repeat(60_000),
            "<p \"".repeat(60_000),
        ];
        for page in pages {
            assert!(to_text(&page).len() < 40 * INPUT_MAX);
        }
    }
}
