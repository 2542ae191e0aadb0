//! What the server is told: defaults < file < environment < flags, checked once into [`Config`].
//!
//! Every setting stands once, in [`SETTINGS`]: its flag, its environment variable and its key in the
//! file have the same name, and `--help` and `--print-config` are made from the same list.

mod file;
mod values;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use values::{BaseUrl, Count, Listen, LogFormat, LogLevel, Origin, Span, WatchMode};

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
    /// How the spool is watched.
    pub watch: WatchMode,
    /// How often to look where there are no events.
    pub poll_interval: Duration,
    /// What clients may take.
    pub limits: Limits,
    /// Origins whose pages may change mail.
    pub allow_origin: Vec<Origin>,
    /// How much is logged.
    pub log_level: tracing::Level,
    /// How log lines are written.
    pub log_format: LogFormat,
}

/// One thing that can be set.
pub struct Setting {
    /// Its key in the file, and its flag without the dashes.
    pub key: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// What stands for its value in help texts.
    pub value: &'static str,
    /// Its value when nobody says anything; empty for none.
    pub default: &'static str,
    /// What it is for.
    pub help: &'static str,
}

macro_rules! settings {
    ($($key:literal $env:literal $value:literal $default:literal $help:literal;)*) => {
        /// Everything that can be set.
        pub const SETTINGS: &[Setting] = &[$(Setting {
            key: $key,
            env: $env,
            value: $value,
            default: $default,
            help: $help,
        }),*];
    };
}

settings! {
    "spool" "SPOOLBOX_SPOOL" "SPOOL" "./spool"
        "The spool's directory; created when it does not exist";
    "http" "SPOOLBOX_HTTP" "ADDRESS" "127.0.0.1:9000"
        "Where to answer HTTP: HOST:PORT (port 0 picks a free one), or `off`";
    "smtp" "SPOOLBOX_SMTP" "ADDRESS" "off"
        "Where to take mail by SMTP; not in this version yet, so only `off` is accepted";
    "pop3" "SPOOLBOX_POP3" "ADDRESS" "off"
        "Where to give mail out by POP3; not in this version yet, so only `off` is accepted";
    "base-url" "SPOOLBOX_BASE_URL" "URL" ""
        "The public address of the server, with or without a path, for links to attachments; without it links use the Host of each request";
    "naming" "SPOOLBOX_NAMING" "local|full|domain" "local"
        "How `Ann+shop@example.com` becomes a mailbox: local → ann, full → ann@example.com, domain → example.com. A directory of exactly the name that is asked for always wins";
    "watch" "SPOOLBOX_WATCH" "auto|native|poll|off" "auto"
        "How to follow what others do in the spool: by the system's events where they can be had (auto, native), by looking now and then (poll), or only when asked (off). Requests are always up to date";
    "poll-interval" "SPOOLBOX_POLL_INTERVAL" "TIME" "1s"
        "How often to look where there are no events";
    "allow-origin" "SPOOLBOX_ALLOW_ORIGIN" "ORIGIN" ""
        "An origin whose web pages may use the API, like http://localhost:3000; may be repeated, or separated by commas";
    "http-connections" "SPOOLBOX_HTTP_CONNECTIONS" "NUMBER" "4096"
        "Open HTTP connections in all; then the one that has been idle the longest is closed";
    "http-connections-per-address" "SPOOLBOX_HTTP_CONNECTIONS_PER_ADDRESS" "NUMBER" "2048"
        "Open HTTP connections from one address; likewise";
    "http-requests" "SPOOLBOX_HTTP_REQUESTS" "NUMBER" "512"
        "Requests at work at once; more are answered with 503";
    "http-first-byte-timeout" "SPOOLBOX_HTTP_FIRST_BYTE_TIMEOUT" "TIME" "15s"
        "How long a new connection may say nothing";
    "http-header-timeout" "SPOOLBOX_HTTP_HEADER_TIMEOUT" "TIME" "15s"
        "How long a request's headers may take";
    "http-body-timeout" "SPOOLBOX_HTTP_BODY_TIMEOUT" "TIME" "30s"
        "How long a request's body may take";
    "http-idle-timeout" "SPOOLBOX_HTTP_IDLE_TIMEOUT" "TIME" "75s"
        "How long a connection may be idle between requests";
    "http-stall-timeout" "SPOOLBOX_HTTP_STALL_TIMEOUT" "TIME" "30s"
        "How long a client may take nothing of its answer";
    "drain-timeout" "SPOOLBOX_DRAIN_TIMEOUT" "TIME" "10s"
        "How long requests in flight may take once the server was told to stop";
    "log-level" "SPOOLBOX_LOG_LEVEL" "LEVEL" "info"
        "How much to log: error, warn, info, debug or trace";
    "log-format" "SPOOLBOX_LOG_FORMAT" "text|json" "text"
        "How to log";
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody said anything.
    Default,
    /// A file, in this line.
    File(PathBuf, usize),
    /// The environment variable of this name.
    Environment(&'static str),
    /// The command line.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path, line) => write!(f, "{}:{line}", path.display()),
            Source::Environment(name) => f.write_str(name),
            Source::Flag("spool") => f.write_str("SPOOL"),
            Source::Flag(key) => write!(f, "--{key}"),
        }
    }
}

/// What was said about settings, with who said it; later words count for more.
#[derive(Debug, Default)]
pub struct Layers {
    values: HashMap<&'static str, (Vec<String>, Source)>,
}

impl Layers {
    /// Takes up a file.
    pub fn read_file(&mut self, path: &Path) -> Result<(), String> {
        for file::Line {
            key,
            values,
            number,
        } in file::read(path)?
        {
            self.values
                .insert(key, (values, Source::File(path.to_path_buf(), number)));
        }
        Ok(())
    }

    /// Takes up a value from the environment or the command line.
    pub fn set(&mut self, key: &'static str, values: Vec<String>, source: Source) {
        let split = |value: String| value.split(',').map(str::to_owned).collect::<Vec<_>>();
        let values = if key == "allow-origin" {
            values.into_iter().flat_map(split).collect()
        } else {
            values
        };
        self.values.insert(key, (values, source));
    }

    /// Checks everything.
    pub fn check(&self) -> Result<Config, String> {
        for (key, service) in [("smtp", "SMTP"), ("pop3", "POP3")] {
            if self.one::<Listen>(key)? != Listen::Off {
                let (value, source) = self.text(key);
                return Err(format!(
                    "{value} cannot be served ({source}): this version has no {service} yet. Leave {key} off; \
                     mail comes in as files, or by `spoolbox deliver`",
                    value = value.join(",")
                ));
            }
        }
        let span = |key| self.one::<Span>(key).map(|span| span.0);
        let count = |key| self.one::<Count>(key).map(|count| count.0);
        Ok(Config {
            spool: PathBuf::from(self.one::<String>("spool")?),
            http: self.one("http")?,
            base_url: self.several("base-url")?.pop(),
            naming: self.one("naming")?,
            watch: self.one("watch")?,
            poll_interval: span("poll-interval")?,
            limits: Limits {
                connections: count("http-connections")?,
                connections_per_address: count("http-connections-per-address")?,
                requests: count("http-requests")?,
                first_byte: span("http-first-byte-timeout")?,
                headers: span("http-header-timeout")?,
                body: span("http-body-timeout")?,
                idle: span("http-idle-timeout")?,
                stalled: span("http-stall-timeout")?,
                drain: span("drain-timeout")?,
            },
            allow_origin: self.several("allow-origin")?,
            log_level: self.one::<LogLevel>("log-level")?.0,
            log_format: self.one("log-format")?,
        })
    }

    /// The effective values as a file, each with where it came from.
    pub fn print(&self) -> String {
        let mut out = String::new();
        for setting in SETTINGS {
            let (values, source) = self.text(setting.key);
            let quoted: Vec<String> = values.iter().map(|value| file::quoted(value)).collect();
            let line = match (setting.key, quoted.as_slice()) {
                ("allow-origin", values) => format!("{} = [{}]", setting.key, values.join(", ")),
                (key, []) => format!("# {key} is not set"),
                (key, [value, ..]) => format!("{key} = {value}"),
            };
            out.push_str(&format!("{line:<48} # {source}\n"));
        }
        out
    }

    fn text(&self, key: &str) -> (Vec<String>, Source) {
        self.values.get(key).cloned().unwrap_or_else(|| {
            let default = SETTINGS
                .iter()
                .find(|setting| setting.key == key)
                .map_or("", |setting| setting.default);
            let values = if default.is_empty() {
                Vec::new()
            } else {
                vec![default.to_owned()]
            };
            (values, Source::Default)
        })
    }

    fn several<T: FromStr>(&self, key: &str) -> Result<Vec<T>, String>
    where
        T::Err: fmt::Display,
    {
        let (values, source) = self.text(key);
        let parse = |value: &String| {
            value.parse().map_err(|err| match &source {
                Source::File(..) => format!("{source}: {key} = {value:?} is not right: {err}"),
                _ => format!("{source} {value:?} is not right: {err}"),
            })
        };
        values.iter().map(parse).collect()
    }

    fn one<T: FromStr>(&self, key: &str) -> Result<T, String>
    where
        T::Err: fmt::Display,
    {
        let last = self.several(key)?.pop();
        last.ok_or_else(|| format!("{key} has no value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_make_sense_and_are_the_limits_own() {
        let config = Layers::default().check().unwrap();
        assert_eq!(config.limits, Limits::default());
        assert_eq!(config.http, Listen::At("127.0.0.1:9000".into()));
        assert!(config.base_url.is_none() && config.allow_origin.is_empty());
    }

    #[test]
    fn names_follow_one_rule() {
        for setting in SETTINGS {
            let env = format!("SPOOLBOX_{}", setting.key.to_uppercase().replace('-', "_"));
            assert_eq!(setting.env, env);
        }
    }

    #[test]
    fn what_is_printed_can_be_read_again_and_says_where_it_came_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        std::fs::write(&path, "# mine\nnaming = \"full\"\nhttp-requests = 7\n").unwrap();
        let mut layers = Layers::default();
        layers.read_file(&path).unwrap();
        layers.set(
            "naming",
            vec!["domain".into()],
            Source::Environment("SPOOLBOX_NAMING"),
        );
        layers.set(
            "allow-origin",
            vec!["http://a,http://b".into()],
            Source::Flag("allow-origin"),
        );
        let text = layers.print();
        let has = |words: &[&str]| {
            text.lines()
                .any(|line| words.iter().all(|word| line.contains(word)))
        };
        assert!(has(&["naming = \"domain\"", "# SPOOLBOX_NAMING"]), "{text}");
        assert!(has(&["http-requests = 7", "a.toml:3"]), "{text}");
        assert!(
            has(&[
                "allow-origin = [\"http://a\", \"http://b\"]",
                "# --allow-origin"
            ]),
            "{text}"
        );
        assert!(has(&["# base-url is not set", "# default"]), "{text}");
        let again = dir.path().join("b.toml");
        std::fs::write(&again, &text).unwrap();
        let mut layers = Layers::default();
        layers.read_file(&again).unwrap();
        let config = layers.check().unwrap();
        assert_eq!(
            (
                config.naming,
                config.limits.requests,
                config.allow_origin.len()
            ),
            (Naming::Domain, 7, 2)
        );
    }
}
