//! A message on its way in: temporary file, fsync, exclusive link, fsync of the directory.
//!
//! The message exists from the link on. A crash before it leaves a temporary file that a later
//! refresh removes; a crash after it leaves a complete message, with or without the temporary name.
//! What a crash can lose is only what was never reported as stored.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime};

use super::dir::Dir;
use super::mailbox::Mailbox;
use crate::error::{IoContext, Result};
use crate::names::MessageId;

/// A message that is being written into a mailbox.
///
/// Write its bytes, then [`commit`](Delivery::commit). Dropping it before that aborts the delivery
/// and leaves nothing behind.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use std::io::Write;
/// use spoolbox::{MailboxName, Options, Spool};
///
/// let spool = Spool::open(dir.path(), Options::default())?;
/// let mailbox = spool.mailbox(&MailboxName::parse("alice")?);
/// let mut delivery = mailbox.deliver()?;
/// delivery.write_all(b"Subject: hello\n\nHi Alice\n")?;
/// let id = delivery.commit()?;
/// assert_eq!(mailbox.message(&id)?.1.summary.subject, "hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Delivery {
    mailbox: Mailbox,
    dir: Dir,
    file: File,
    temp: TempName,
    /// When the directory was last changed before this delivery began.
    floor: ServerId,
    /// The mailbox's directory was made for this delivery.
    made: bool,
    prepared: bool,
    published: bool,
}

impl Delivery {
    pub(super) fn start(mailbox: Mailbox) -> Result<Self> {
        // Another delivery that failed may remove the directory between our steps: then again.
        let mut tries = 0;
        loop {
            let (dir, made) = mailbox.open_or_make()?;
            let floor = ServerId::second(dir.stamp()?.mtime.seconds);
            let temp = TempName::next();
            match dir.create(&temp.to_string()) {
                Ok(file) => {
                    // Shows other processes that somebody is at work on it.
                    super::dir::lock_file(&file);
                    return Ok(Self {
                        mailbox,
                        dir,
                        file,
                        temp,
                        floor,
                        made,
                        prepared: false,
                        published: false,
                    });
                }
                Err(err)
                    if tries < 8
                        && err
                            .io()
                            .is_some_and(|e| e.kind() == io::ErrorKind::NotFound) =>
                {
                    tries += 1
                }
                Err(err) => {
                    if made {
                        mailbox.unmake();
                    }
                    return Err(err);
                }
            }
        }
    }

    /// Makes the bytes durable, so that what is left to [`commit`](Self::commit) is quick and
    /// hardly fails. Calling it is optional.
    pub fn prepare(&mut self) -> Result<()> {
        if !self.prepared {
            self.file
                .sync_all()
                .during("sync", self.dir.path().join(self.temp.to_string()))?;
            self.prepared = true;
        }
        Ok(())
    }

    /// Publishes the message under a new id. When this returns, the message is on disk; when it
    /// fails, nothing of it is left.
    pub fn commit(mut self) -> Result<MessageId> {
        self.prepare()?;
        let id = self
            .mailbox
            .publish(&self.dir, &self.temp.to_string(), &self.file, self.floor)?;
        self.published = true;
        Ok(id)
    }
}

impl Write for Delivery {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.prepared = false;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.published {
            let _ = self.dir.unlink(&self.temp.to_string());
            if self.made {
                self.mailbox.unmake();
            }
        }
    }
}

/// The ids that the server makes: `YYYYMMDDThhmmss-NNNN`, in UTC, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerId {
    seconds: i64,
    number: u16,
}

impl ServerId {
    const FORMAT: &'static str = "%Y%m%dT%H%M%S";
    const NUMBER_MAX: u16 = 9_999;
    /// 9999-12-31T23:59:59: a later year would not fit the form.
    const SECONDS_MAX: i64 = 253_402_300_799;

    pub fn parse(id: &str) -> Option<Self> {
        let place = |(at, byte): (usize, u8)| match at {
            8 => byte == b'T',
            15 => byte == b'-',
            _ => byte.is_ascii_digit(),
        };
        if id.len() != 20 || !id.bytes().enumerate().all(place) {
            return None;
        }
        let (time, number) = id.split_once('-')?;
        let time = NaiveDateTime::parse_from_str(time, Self::FORMAT).ok()?;
        Some(Self {
            seconds: time.and_utc().timestamp(),
            number: number.parse().ok()?,
        })
    }

    /// The id for a message that arrives at `now`, after all that came before: `floors` are the ids
    /// and times that must stay behind it even when the clock stepped back.
    pub fn after(now: i64, floors: impl IntoIterator<Item = ServerId>) -> Self {
        let first = Self {
            seconds: now.clamp(0, Self::SECONDS_MAX),
            number: 1,
        };
        floors
            .into_iter()
            // A floor at the end of time, planted or not, must not stop the mail.
            .filter(|floor| floor.seconds < Self::SECONDS_MAX)
            .map(|floor| floor.plus(1))
            .fold(first, Self::max)
    }

    /// The lowest id of a second.
    pub fn second(seconds: i64) -> Self {
        Self { seconds, number: 0 }
    }

    /// An id `step` further on; a second that is full borrows the next.
    pub fn plus(self, step: u16) -> Self {
        match self.number.checked_add(step) {
            Some(number) if number <= Self::NUMBER_MAX => Self { number, ..self },
            _ => Self {
                seconds: self.seconds.saturating_add(1),
                number: 1,
            },
        }
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp(self.seconds, 0).unwrap_or_default();
        write!(f, "{}-{:04}", time.format(Self::FORMAT), self.number)
    }
}

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

    const NOON: i64 = 1_794_700_800;

    #[test]
    fn ids_ascend_even_when_the_clock_steps_back() {
        let first = ServerId::after(NOON, []);
        assert_eq!(first.to_string(), "20261115T000000-0001");
        let second = ServerId::after(NOON - 3600, [first]);
        assert_eq!(second.to_string(), "20261115T000000-0002");
        let third = ServerId::after(NOON + 1, [first, second]);
        assert_eq!(third.to_string(), "20261115T000001-0001");
        assert_eq!(
            ServerId::after(NOON, [ServerId::second(NOON + 9)]).to_string(),
            "20261115T000009-0001"
        );
    }

    #[test]
    fn a_full_second_borrows_the_next() {
        let full = ServerId::parse("20261231T235959-9999").unwrap();
        assert_eq!(full.plus(1).to_string(), "20270101T000000-0001");
        assert!(full.plus(1).to_string() > full.to_string());
        assert_eq!(full.plus(60_000).to_string(), "20270101T000000-0001");
    }

    #[test]
    fn ids_from_the_end_of_time_do_not_stop_the_mail() {
        let last = ServerId::parse("99991231T235959-9999").unwrap();
        assert_eq!(
            ServerId::after(NOON, [last]).to_string(),
            "20261115T000000-0001"
        );
        assert_eq!(
            ServerId::after(i64::MIN, [ServerId::second(i64::MIN)]).to_string(),
            "19700101T000000-0001"
        );
    }

    #[test]
    fn only_the_exact_form_is_a_server_id() {
        assert!(ServerId::parse("20261114T235612-0001").is_some());
        for id in [
            "welcome",
            "20261114T235612-001",
            "20261114T235612-00001",
            "20261314T235612-0001",
            "2026111éT35612-0001",
            "+0261114T235612-0001",
            "",
        ] {
            assert_eq!(ServerId::parse(id), None, "{id}");
        }
    }

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
