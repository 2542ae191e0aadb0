//! The settings file: TOML, one key per setting, refused with file and line.

use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::SETTINGS;

/// A setting as a file has it.
pub struct Line {
    pub key: &'static str,
    pub values: Vec<String>,
    pub number: usize,
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Vec<Line>, String> {
    let text = std::fs::read_to_string(path).map_err(|err| {
        format!(
            "cannot read {}: {err} (it is named by --config or SPOOLBOX_CONFIG)",
            path.display()
        )
    })?;
    let line_at = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
    let fail = |line: usize, why: String| format!("{}:{line}: {why}", path.display());
    let table = DeTable::parse(&text).map_err(|err| {
        let line = err.span().map_or(1, |span| line_at(span.start));
        fail(line, format!("this is not TOML: {}", err.message()))
    })?;
    let mut found = Vec::new();
    for (key, value) in table.into_inner() {
        let line = line_at(key.span().start);
        let name = key.get_ref().to_string();
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key == name) else {
            return Err(fail(line, unknown(&name)));
        };
        let values = match value.get_ref() {
            DeValue::Array(several) if setting.key == "allow-origin" => several
                .iter()
                .map(|one| plain(one.get_ref()))
                .collect::<Option<Vec<_>>>(),
            one => plain(one).map(|one| vec![one]),
        };
        let Some(values) = values else {
            return Err(fail(
                line,
                format!(
                    "{name} must be written like {name} = {}",
                    example(setting.default)
                ),
            ));
        };
        found.push(Line {
            key: setting.key,
            values,
            number: line,
        });
    }
    Ok(found)
}

/// A value as TOML.
pub fn quoted(value: &str) -> String {
    if !value.is_empty()
        && value.len() < 18
        && value.bytes().all(|b| b.is_ascii_digit())
        && !value.starts_with('0')
    {
        return value.to_owned();
    }
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn plain(value: &DeValue) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

fn example(default: &str) -> String {
    quoted(if default.is_empty() { "…" } else { default })
}

fn unknown(name: &str) -> String {
    let nearest = SETTINGS
        .iter()
        .map(|setting| (distance(name, setting.key), setting.key))
        .min();
    match nearest {
        Some((distance, key)) if distance <= 3 => {
            format!("there is no setting {name:?}; did you mean {key:?}?")
        }
        _ => {
            let keys: Vec<_> = SETTINGS.iter().map(|setting| setting.key).collect();
            format!(
                "there is no setting {name:?}; there are {}",
                keys.join(", ")
            )
        }
    }
}

/// How many letters have to be changed to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, c) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (place, o) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(c != *o);
            diagonal = row[place + 1];
            row[place + 1] = replaced.min(diagonal + 1).min(row[place] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, text).unwrap();
        let err = read(&path).err().unwrap();
        err.strip_prefix(dir.path().to_str().unwrap())
            .unwrap()
            .to_owned()
    }

    #[test]
    fn faults_are_told_with_their_place() {
        assert_eq!(
            refused("\nhtpp = \"x\"\n"),
            "/c.toml:2: there is no setting \"htpp\"; did you mean \"http\"?"
        );
        assert!(
            refused("a = 1\nzzzzzzzzzzzz = 2").starts_with("/c.toml:1: there is no setting \"a\"")
        );
        assert!(refused("http = \"a\"\n\nnaming = ").starts_with("/c.toml:3: this is not TOML"));
        assert!(
            refused("http = [\"a\"]")
                .starts_with("/c.toml:1: http must be written like http = \"127.0.0.1:9000\"")
        );
        assert!(refused("[http]\na = 1").starts_with("/c.toml:1: http must be"));
        assert!(refused("naming = \"local\"\nnaming = \"full\"").contains(":2: this is not TOML"));
    }

    #[test]
    fn words_have_distances() {
        assert_eq!(distance("http", "http"), 0);
        assert_eq!(distance("htpp", "http"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("watsh-mode", "watch"), 6);
    }
}
