//! `spoolbox check`: the check-up of a spool, for people and for programs.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::Result;
use crate::spool::{Finding, FindingKind, Spool};

/// What came out of a check-up.
#[derive(Debug, Default)]
pub struct Report {
    mailboxes: usize,
    messages: usize,
    findings: Vec<(Finding, bool)>,
}

impl Report {
    /// Whether nothing is left that can be mended, and everything could be read. What is no mail, and
    /// mail that came damaged, is named but is not the spool's fault.
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|(finding, mended)| {
            *mended || matches!(finding.kind, FindingKind::Stray | FindingKind::Damaged)
        })
    }

    /// Checks a spool, and mends what can be mended if asked to.
    pub fn of(spool: &Spool, fix: bool, show_progress: bool) -> Result<Self> {
        let mut report = Self::default();
        let names = spool.mailboxes()?;
        let progress = Progress::new(show_progress, names.len());
        report.findings.extend(
            spool
                .check_root()?
                .into_iter()
                .map(|finding| (finding, false)),
        );
        for name in &names {
            let mut check_up = spool.check_mailbox(name, &|count| progress.messages(count))?;
            let mendable =
                |findings: &[Finding]| findings.iter().any(|finding| finding.kind.can_be_mended());
            if fix && mendable(&check_up.findings) {
                let before = std::mem::take(&mut check_up.findings);
                let mended = spool.mend_mailbox(name);
                if let Err(err) = &mended {
                    tracing::error!("cannot mend {name}: {}", err.with_reason());
                }
                check_up = spool.check_mailbox(name, &|_| {})?;
                let gone = before.into_iter().filter(|finding| {
                    finding.kind.can_be_mended()
                        && !check_up
                            .findings
                            .iter()
                            .any(|left| left.name == finding.name)
                });
                report.findings.extend(gone.map(|finding| (finding, true)));
            }
            report.mailboxes += 1;
            report.messages += check_up.messages;
            report.findings.extend(
                check_up
                    .findings
                    .into_iter()
                    .map(|finding| (finding, false)),
            );
            progress.mailbox();
        }
        progress.end();
        Ok(report)
    }

    /// For people: a line for each finding, and one at the end.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (finding, mended) in &self.findings {
            let place = match (&finding.mailbox, finding.name.as_str()) {
                (Some(mailbox), "") => mailbox.to_string(),
                (Some(mailbox), name) => format!("{mailbox}/{name}"),
                (None, name) => name.to_owned(),
            };
            // A name may hold anything, also what a terminal would obey.
            let place: String = place
                .chars()
                .map(|c| if c.is_control() { '\u{fffd}' } else { c })
                .collect();
            let mended = if *mended { " (mended)" } else { "" };
            out += &format!(
                "{}: {place}: {}{mended}\n",
                word(finding.kind),
                finding.detail
            );
        }
        let found = match self.findings.len() {
            0 => "all is well".to_owned(),
            1 => "1 finding".to_owned(),
            more => format!("{more} findings"),
        };
        out + &format!(
            "{} messages in {} mailboxes: {found}\n",
            self.messages, self.mailboxes
        )
    }

    /// For programs.
    pub fn json(&self, spool: &Spool) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            spool: String,
            mailboxes: usize,
            messages: usize,
            ok: bool,
            findings: Vec<JsonFinding<'a>>,
        }
        #[derive(Serialize)]
        struct JsonFinding<'a> {
            kind: &'static str,
            mailbox: Option<&'a str>,
            name: &'a str,
            detail: &'a str,
            mended: bool,
        }
        let findings = self.findings.iter().map(|(finding, mended)| JsonFinding {
            kind: word(finding.kind),
            mailbox: finding.mailbox.as_ref().map(|mailbox| mailbox.as_str()),
            name: &finding.name,
            detail: &finding.detail,
            mended: *mended,
        });
        let json = Json {
            spool: spool.path().display().to_string(),
            mailboxes: self.mailboxes,
            messages: self.messages,
            ok: self.is_well(),
            findings: findings.collect(),
        };
        serde_json::to_string(&json).expect("strings and numbers always serialise into memory")
            + "\n"
    }
}

fn word(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Index => "index",
        FindingKind::Debris => "debris",
        FindingKind::Stray => "stray",
        FindingKind::Unreadable => "unreadable",
        FindingKind::Damaged => "damaged",
    }
}

/// A line on a terminal that says how far it is, when it takes long enough to be asked.
struct Progress {
    shown: bool,
    total: usize,
    mailboxes: AtomicUsize,
    messages: AtomicUsize,
    drawn: Mutex<Instant>,
}

impl Progress {
    fn new(wanted: bool, total: usize) -> Self {
        Self {
            shown: wanted && std::io::stderr().is_terminal(),
            total,
            mailboxes: AtomicUsize::new(0),
            messages: AtomicUsize::new(0),
            drawn: Mutex::new(Instant::now()),
        }
    }

    fn messages(&self, count: usize) {
        self.messages.fetch_add(count, Ordering::Relaxed);
        self.draw();
    }

    fn mailbox(&self) {
        self.mailboxes.fetch_add(1, Ordering::Relaxed);
        self.draw();
    }

    fn draw(&self) {
        if !self.shown {
            return;
        }
        let Ok(mut drawn) = self.drawn.try_lock() else {
            return;
        };
        if drawn.elapsed() < Duration::from_millis(200) {
            return;
        }
        *drawn = Instant::now();
        let (done, messages) = (
            self.mailboxes.load(Ordering::Relaxed),
            self.messages.load(Ordering::Relaxed),
        );
        let filled = (done * 30).checked_div(self.total).unwrap_or(0);
        let bar: String = (0..30)
            .map(|at| if at < filled { '█' } else { '░' })
            .collect();
        let _ = write!(
            std::io::stderr(),
            "\r{bar} {done} of {} mailboxes, {messages} messages\x1b[K",
            self.total
        );
    }

    fn end(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
