//! Temporary files: their names, and when one is debris.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The name of a delivery in progress: `.spoolbox-<host>-<pid>-<n>.tmp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TempName {
    host: String,
    pid: u32,
    number: u64,
}

/// After this time a temporary file is debris, whoever made it.
const ABANDONED: Duration = Duration::from_secs(36 * 3600);

/// A writer takes its file's lock right after creating it; until then it may look abandoned.
const UNLOCKED: Duration = Duration::from_secs(60);

impl TempName {
    const PREFIX: &'static str = ".spoolbox-";
    const SUFFIX: &'static str = ".tmp";

    /// A name that no other delivery uses.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            host: host().to_owned(),
            pid: std::process::id(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Recognises names of exactly our form, and no others.
    pub fn parse(name: &str) -> Option<Self> {
        let inner = name
            .strip_prefix(Self::PREFIX)?
            .strip_suffix(Self::SUFFIX)?;
        let (rest, number) = inner.rsplit_once('-')?;
        let (host, pid) = rest.rsplit_once('-')?;
        let parsed = Self {
            host: host.to_owned(),
            pid: pid.parse().ok()?,
            number: number.parse().ok()?,
        };
        (!host.is_empty() && parsed.to_string() == name).then_some(parsed)
    }

    /// Whether a file of this name, `age` old, was left behind by a process that is gone. `locked`
    /// tells whether somebody holds its lock.
    pub fn is_debris(&self, age: Duration, locked: bool) -> bool {
        if age >= ABANDONED {
            return true;
        }
        self.host == host() && !locked && (age >= UNLOCKED || !self.is_running())
    }

    fn is_running(&self) -> bool {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        // A process that may not be signalled is there all the same.
        pid.is_some_and(|pid| {
            rustix::process::test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
        })
    }
}

impl fmt::Display for TempName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, number } = self;
        write!(f, "{}{host}-{pid}-{number}{}", Self::PREFIX, Self::SUFFIX)
    }
}

/// This machine's name, with nothing in it that could be mistaken in a file name.
fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let node = rustix::system::uname();
        let safe = |c: char| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '_'
            }
        };
        let name: String = node
            .nodename()
            .to_string_lossy()
            .chars()
            .map(safe)
            .take(64)
            .collect();
        if name.is_empty() {
            "localhost".into()
        } else {
            name
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_form_is_a_temporary_name() {
        let name = TempName::next();
        assert_eq!(TempName::parse(&name.to_string()), Some(name));
        assert!(TempName::parse(".spoolbox-a-host-1-2.tmp").is_some());
        for name in [
            ".spoolbox-h-1-2.tmp.eml",
            ".spoolbox-h-1.tmp",
            ".spoolbox--1-2.tmp",
            ".spoolbox-h-01-2.tmp",
            ".spoolbox-h-x-2.tmp",
            "spoolbox-h-1-2.tmp",
            ".tmp",
        ] {
            assert_eq!(TempName::parse(name), None, "{name}");
        }
    }

    #[test]
    fn debris_is_what_nobody_works_on() {
        let soon = Duration::from_secs(1);
        let own = TempName::next();
        assert!(!own.is_debris(soon, true));
        assert!(!own.is_debris(soon, false));
        // The same pid in an earlier life of a container.
        assert!(own.is_debris(UNLOCKED, false));
        assert!(!own.is_debris(UNLOCKED, true));
        let gone = TempName {
            pid: 0x3fff_fff0,
            ..own.clone()
        };
        assert!(gone.is_debris(soon, false));
        assert!(!gone.is_debris(soon, true));
        let elsewhere = TempName {
            host: "elsewhere.example".into(),
            ..gone
        };
        assert!(!elsewhere.is_debris(UNLOCKED, false));
        assert!(elsewhere.is_debris(ABANDONED, true));
    }
}
