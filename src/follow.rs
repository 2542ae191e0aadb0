//! Keeps the index up to date with what others do, also where nobody asks.
//!
//! By events where the system gives them, else by looking now and then; and behind the events a slow
//! look at everything, because no system of events is perfect. None of this is needed for a request
//! to be right: requests look for themselves. It is what makes sidecars and listeners follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::config::WatchMode;
use crate::names::MailboxName;
use crate::spool::Spool;
use crate::watch::{Hints, Messages, WatchError, Watcher};

/// How often everything is looked at behind the events.
const RECONCILE_EVERY: Duration = Duration::from_secs(300);

/// Looking takes at most one part in this many of a processor's time…
const SHARE: u32 = 50;

/// …and following the events of one mailbox one part in this many.
const SHARE_OF_EVENTS: u32 = 20;

/// But a burst must not keep its mailbox waiting for longer than this, if it can be helped.
const REST_MAX: Duration = Duration::from_millis(400);

/// How often the watcher is asked whether it is still in the right place.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How the spool is being followed.
#[derive(Debug, Clone)]
pub struct Status {
    /// `native`, `poll` or `off`.
    pub mode: &'static str,
    /// Nothing is wrong at the moment.
    pub healthy: bool,
    /// Why it is not the best mode, or what is wrong.
    pub reason: Option<String>,
    /// When everything was last looked at.
    pub reconciled: Option<SystemTime>,
}

/// The one who follows.
#[derive(Debug, Clone)]
pub struct Follower {
    spool: Spool,
    mode: WatchMode,
    interval: Duration,
    status: Arc<Mutex<Status>>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    /// Follows nothing yet.
    pub fn new(spool: Spool, mode: WatchMode, interval: Duration) -> Self {
        Self {
            spool,
            mode,
            interval,
            status: Arc::new(Mutex::new(Status {
                mode: if mode == WatchMode::Off {
                    "off"
                } else {
                    "starting"
                },
                healthy: true,
                reason: None,
                reconciled: None,
            })),
            stop: Arc::default(),
        }
    }

    /// How it goes.
    pub fn status(&self) -> Status {
        self.lock().clone()
    }

    /// Tells [`run`](Self::run) to return, soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Follows the spool until told to stop; for a thread of its own.
    pub fn run(&self) {
        if self.mode == WatchMode::Off {
            // What came while no server ran is indexed all the same.
            self.reconcile();
            return;
        }
        if let Some(reason) = self.why_not_native() {
            return self.poll(reason);
        }
        while !self.is_stopped() {
            match self.native() {
                // The spool was moved away or made anew: begin again when it is there.
                Ok(()) => {}
                Err(WatchError::OutOfWatches) => {
                    return self.poll(Some(WatchError::OutOfWatches.to_string()));
                }
                Err(err) if !self.spool.path().is_dir() => {
                    self.ail(format!("the spool is not there: {err}"));
                    self.rest(HEARTBEAT.min(self.interval));
                }
                Err(err) => return self.poll(Some(err.to_string())),
            }
        }
    }

    /// Whether to poll from the start, and the reason if that is not what was asked for.
    fn why_not_native(&self) -> Option<Option<String>> {
        match self.mode {
            WatchMode::Poll => Some(None),
            WatchMode::Auto if !self.spool.is_local() => Some(Some(
                "the spool is not on a file system of this machine, where changes made elsewhere raise no events \
                 (--watch native insists)"
                    .into(),
            )),
            _ => None,
        }
    }

    /// Follows events until told to stop, or until the spool's directory is another.
    fn native(&self) -> Result<(), WatchError> {
        // Watch first, look second: what happens in between is seen twice rather than never.
        let mut watcher = Watcher::new(self.spool.path())?;
        watcher.follow(&self.spool.mailboxes().unwrap_or_default(), false)?;
        self.enter("native", None);
        let mut reconcile_at = Instant::now();
        let mut pending = Hints::default();
        let mut resting: HashMap<MailboxName, Instant> = HashMap::new();
        while !self.is_stopped() {
            if watcher.is_lost() {
                tracing::info!("the spool's directory is another now: beginning anew");
                return Ok(());
            }
            if pending.lost || pending.everything || Instant::now() >= reconcile_at {
                match self.spool.mailboxes() {
                    Ok(names) => {
                        watcher.follow(&names, pending.lost)?;
                        pending = Hints::default();
                        resting.clear();
                        let cost = self.reconcile();
                        reconcile_at = Instant::now() + RECONCILE_EVERY.max(cost * 2 * SHARE);
                    }
                    // What was hinted at is looked at when it can be.
                    Err(err) => self.ail(err.with_reason()),
                }
            }
            if !pending.directories.is_empty() {
                let directories = std::mem::take(&mut pending.directories);
                watcher.doubt(&directories);
                watcher.renew(directories.iter().cloned())?;
                for name in directories {
                    resting.remove(&name);
                    pending
                        .mailboxes
                        .entry(name)
                        .or_insert(Messages::Some(BTreeSet::new()));
                }
            }
            self.look_at(&mut pending, &mut resting);
            let next = pending
                .mailboxes
                .keys()
                .filter_map(|name| resting.get(name))
                .min();
            let patience =
                next.map_or(HEARTBEAT, |at| at.saturating_duration_since(Instant::now()));
            pending.merge(watcher.wait(patience.min(HEARTBEAT)));
        }
        Ok(())
    }

    /// Looks at what is hinted at. A large mailbox in which much happens is looked at less often, so
    /// that following it does not cost more than what happens there; its hints stay pending.
    fn look_at(&self, pending: &mut Hints, resting: &mut HashMap<MailboxName, Instant>) {
        let now = Instant::now();
        resting.retain(|_, until| *until > now);
        let hinted = std::mem::take(&mut pending.mailboxes);
        let (later, soon): (BTreeMap<_, _>, BTreeMap<_, _>) = hinted
            .into_iter()
            .partition(|(name, _)| resting.contains_key(name));
        pending.mailboxes = later;
        for (name, messages) in soon {
            let started = Instant::now();
            let mailbox = self.spool.mailbox(&name);
            let looked = mailbox
                .follow(messages == Messages::All)
                .and_then(|()| match &messages {
                    Messages::Some(ids) => ids.iter().try_for_each(|id| mailbox.follow_message(id)),
                    Messages::All => Ok(()),
                });
            let cost = started.elapsed();
            let mut rest = (cost * SHARE_OF_EVENTS).min(REST_MAX.max(cost));
            if let Err(err) = looked {
                tracing::debug!(mailbox = %name, "cannot look: {}", err.with_reason());
                pending.mailboxes.insert(name.clone(), messages);
                rest = HEARTBEAT;
            }
            resting.insert(name, Instant::now() + rest);
        }
    }

    /// Looks now and then, until told to stop.
    fn poll(&self, reason: Option<String>) {
        if let Some(reason) = &reason {
            tracing::warn!(
                "looking at the spool every {:?} instead of watching it: {reason}",
                self.interval
            );
        }
        self.enter("poll", reason);
        let mut files_due = Instant::now();
        while !self.is_stopped() {
            let files = Instant::now() >= files_due;
            let cost = if files {
                self.reconcile()
            } else {
                self.look_at_all(false)
            };
            let pause = self.interval.max(cost * SHARE);
            if files {
                // Looking at the files takes longer than at the directories; it may come less often.
                files_due = Instant::now() + pause;
            }
            self.rest(if files { self.interval } else { pause });
        }
    }

    /// Looks at every directory and every file.
    fn reconcile(&self) -> Duration {
        let cost = self.look_at_all(true);
        self.lock().reconciled = Some(SystemTime::now());
        cost
    }

    /// Looks at every mailbox, and tells how long it took. One that cannot be read does not keep the
    /// others from being looked at.
    fn look_at_all(&self, files: bool) -> Duration {
        let started = Instant::now();
        let looked = self.spool.mailboxes().and_then(|names| {
            let mut failure = Ok(());
            for name in names {
                if self.is_stopped() {
                    break;
                }
                failure = failure.and(self.spool.mailbox(&name).follow(files));
            }
            failure
        });
        match looked {
            Ok(()) => self.recover(),
            Err(err) => self.ail(err.with_reason()),
        }
        started.elapsed()
    }

    fn enter(&self, mode: &'static str, reason: Option<String>) {
        let mut status = self.lock();
        status.mode = mode;
        status.reason = reason;
        status.healthy = true;
    }

    /// Notes what is wrong, and says so once.
    fn ail(&self, what: String) {
        let mut status = self.lock();
        if status.healthy {
            tracing::warn!("cannot follow the spool: {what}");
        }
        status.healthy = false;
        status.reason = Some(what);
    }

    fn recover(&self) {
        let mut status = self.lock();
        if !status.healthy {
            tracing::info!("the spool can be followed again");
            status.healthy = true;
            status.reason = None;
        }
    }

    /// Waits, but not longer than it takes to be told to stop.
    fn rest(&self, time: Duration) {
        let until = Instant::now() + time;
        while !self.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(200)));
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
