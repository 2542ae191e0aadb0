//! What the server is told, checked once.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::http::Limits;
use crate::policy::Naming;

/// A server's settings, each of which is known to make sense.
#[derive(Debug, Clone)]
pub struct Config {
    /// The spool's directory, which is created when it does not exist.
    pub spool: PathBuf,
    /// Where to answer HTTP.
    pub http: Listen,
    /// The public address of the server, for links.
    pub base_url: Option<BaseUrl>,
    /// How addresses become mailboxes.
    pub naming: Naming,
    /// What clients may take.
    pub limits: Limits,
    /// Origins whose pages may change mail.
    pub allow_origin: Vec<Origin>,
}

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
    fn origins() {
        assert!("http://localhost:3000".parse::<Origin>().is_ok());
        assert!("http://localhost:3000/path".parse::<Origin>().is_err());
        assert!("*".parse::<Origin>().is_err());
    }
}
