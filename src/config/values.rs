//! The kinds of values that settings have: parsed, or refused with what would be right.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

/// Where a service listens, if it does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// Not at all.
    Off,
    /// At a host and a port; port 0 picks a free one.
    At(String),
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Listen::Off);
        }
        let sound = text.rsplit_once(':').is_some_and(|(host, port)| {
            let host_is_sound =
                !host.is_empty() && (!host.contains(':') || text.parse::<SocketAddr>().is_ok());
            host_is_sound && port.parse::<u16>().is_ok()
        });
        if sound {
            Ok(Listen::At(text.to_owned()))
        } else {
            Err("it must be HOST:PORT like 127.0.0.1:9000 or [::1]:9000 (port 0 picks a free one), or `off`".into())
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Off => f.write_str("off"),
            Listen::At(address) => f.write_str(address),
        }
    }
}

/// The public prefix of every link: scheme, host and perhaps a path, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl {
    url: String,
    path: Vec<String>,
}

impl BaseUrl {
    /// What links begin with.
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// The parts of its path, decoded.
    pub fn path(&self) -> &[String] {
        &self.path
    }
}

impl FromStr for BaseUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WANTED: &str =
            "it must be a URL like https://mail.example.com or https://example.com/mail";
        let url = text.trim_end_matches('/');
        let rest = url
            .strip_prefix("http://")
            .or_else(|| url.strip_prefix("https://"))
            .ok_or(WANTED)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let sound = |c: char| c.is_ascii_graphic() && !"\"<>\\^`{|}?#@".contains(c);
        if host.is_empty() || !rest.chars().all(sound) {
            return Err(WANTED.into());
        }
        let decode = |part: &str| {
            let text = percent_encoding::percent_decode_str(part).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_| WANTED.to_owned())
        };
        let parts = path.split('/').filter(|part| !part.is_empty());
        Ok(Self {
            url: url.to_owned(),
            path: parts.map(decode).collect::<Result<_, _>>()?,
        })
    }
}

/// An origin as browsers send it: `https://ui.example.com`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(String);

impl Origin {
    /// The origin as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Origin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<BaseUrl>() {
            Ok(url) if url.path.is_empty() => Ok(Self(url.url)),
            _ => Err(
                "it must be an origin like https://ui.example.com or http://localhost:3000".into(),
            ),
        }
    }
}

/// A length of time: `15s`, `500ms`, `2m`, `1h`, or a plain number of seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let split = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let millis = match unit {
            "ms" => 1,
            "" | "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => 0,
        };
        match number.parse::<u32>() {
            Ok(number) if millis > 0 && number > 0 => {
                Ok(Self(Duration::from_millis(u64::from(number) * millis)))
            }
            _ => Err("it must be a time like 15s, 500ms, 2m or 1h".into()),
        }
    }
}

/// A number of things, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

impl FromStr for Count {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Self(number)),
            _ => Err("it must be a whole number from 1 on".into()),
        }
    }
}

/// How the spool is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchMode {
    /// By the system's events where they can be had, else by looking now and then.
    Auto,
    /// By the system's events.
    Native,
    /// By looking now and then.
    Poll,
    /// Not at all: only requests look.
    Off,
}

impl FromStr for WatchMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(WatchMode::Auto),
            "native" => Ok(WatchMode::Native),
            "poll" => Ok(WatchMode::Poll),
            "off" => Ok(WatchMode::Off),
            _ => Err("it must be auto, native, poll or off".into()),
        }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("it must be text or json".into()),
        }
    }
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLevel(pub tracing::Level);

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(level) if text.parse::<u8>().is_err() => Ok(Self(level)),
            _ => Err("it must be error, warn, info, debug or trace".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["127.0.0.1:9000", "localhost:0", "[::1]:9000", "0.0.0.0:80"] {
            assert_eq!(good.parse(), Ok(Listen::At(good.into())));
        }
        assert_eq!("off".parse(), Ok(Listen::Off));
        for bad in [
            "",
            "9000",
            ":9000",
            "127.0.0.1",
            "127.0.0.1:99999",
            "::1:9000",
            "on",
            "h:p",
        ] {
            assert!(bad.parse::<Listen>().is_err(), "{bad}");
        }
    }

    #[test]
    fn base_urls() {
        let url: BaseUrl = "https://example.com/mail/b%20x/".parse().unwrap();
        assert_eq!(url.as_str(), "https://example.com/mail/b%20x");
        assert_eq!(url.path(), ["mail", "b x"]);
        assert!(
            "http://localhost:9000"
                .parse::<BaseUrl>()
                .unwrap()
                .path()
                .is_empty()
        );
        for bad in [
            "",
            "example.com",
            "ftp://x",
            "http://",
            "https:///x",
            "http://a b",
            "http://x/?q",
            "http://u@x",
            "http://x/%ff",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad}");
        }
    }

    #[test]
    fn spans_and_counts() {
        for (text, millis) in [
            ("15s", 15_000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h", 3_600_000),
            ("7", 7_000),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(millis))));
        }
        for bad in ["", "s", "-1s", "1.5s", "15 s", "0s", "1d", "99999999999s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        assert_eq!("12".parse(), Ok(Count(12)));
        assert!("0".parse::<Count>().is_err() && "x".parse::<Count>().is_err());
    }

    #[test]
    fn origins() {
        assert!("http://localhost:3000".parse::<Origin>().is_ok());
        assert!("http://localhost:3000/path".parse::<Origin>().is_err());
        assert!("*".parse::<Origin>().is_err());
    }
}
