//! Stamps, and what they prove.
//!
//! A directory's stamp changes with every name that comes or goes in it, so a request that finds
//! the stamp of the last scan need not scan again, *unless* the directory can change without its
//! stamp changing. That happens inside one tick of the file system's clock: scan and change in the
//! same tick, and the stamps before and after are equal (git calls such entries racy). A scan is
//! therefore **final** only when it began clearly later than the stamp it saw.
//!
//! Only the ctime counts for "later": a restore sets the mtime to what it was, nobody can set a
//! ctime. The clock that is compared with it is the one that the kernel stamps files with, where
//! there is one; for file systems whose clock is another machine's, and for stamps from a future
//! that a clock step took back, the stamp has to be *watched* for longer than any tick instead.
//!
//! Everything in here is a pure function of its arguments but [`Now::read`].

use std::time::Duration;

use rustix::fs::Stat;

/// A point in time as file systems keep it: nanoseconds, and years that fit no i64 of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that, less than 10⁹.
    pub nanos: u32,
}

impl Timestamp {
    /// The number of nanoseconds since 1970.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }

    pub(crate) fn from_nanos(nanos: i128) -> Option<Self> {
        Some(Self {
            seconds: i64::try_from(nanos.div_euclid(1_000_000_000)).ok()?,
            nanos: nanos.rem_euclid(1_000_000_000) as u32,
        })
    }

    /// How much later than `earlier` this is; `None` when it is not later.
    fn since(self, earlier: Self) -> Option<Duration> {
        let nanos = u64::try_from(self.as_nanos() - earlier.as_nanos());
        match nanos {
            Ok(nanos) => Some(Duration::from_nanos(nanos)),
            Err(_) => (self > earlier).then_some(Duration::MAX),
        }
    }

    fn distance(self, other: Self) -> Duration {
        self.since(other)
            .or_else(|| other.since(self))
            .unwrap_or_default()
    }
}

/// What a file looked like when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    pub size: u64,
    pub mtime: Timestamp,
    pub inode: u64,
    /// Known only of files that this process has seen: the sidecar does not hold it.
    pub ctime: Option<Timestamp>,
}

impl FileStamp {
    // The fields' types differ between platforms.
    #[allow(clippy::unnecessary_cast)]
    pub fn of(stat: &Stat) -> Self {
        Self {
            size: stat.st_size as u64,
            mtime: Timestamp {
                seconds: stat.st_mtime as i64,
                nanos: stat.st_mtime_nsec as u32,
            },
            inode: stat.st_ino as u64,
            ctime: Some(Timestamp {
                seconds: stat.st_ctime as i64,
                nanos: stat.st_ctime_nsec as u32,
            }),
        }
    }

    /// The stamp without the ctime, which a rename changes.
    pub fn across_renames(self) -> Self {
        Self {
            ctime: None,
            ..self
        }
    }

    /// Whether both are stamps of the same file with the same content.
    pub fn agrees(&self, other: &Self) -> bool {
        let ctimes = self.ctime.zip(other.ctime);
        (self.size, self.mtime, self.inode) == (other.size, other.mtime, other.inode)
            && ctimes.is_none_or(|(one, two)| one == two)
    }

    /// Whether the file may yet be written to without its stamp changing.
    pub fn is_racy(&self, now: Timestamp, clock: FsClock) -> bool {
        now.distance(self.mtime) < tick(self.mtime, clock)
    }
}

/// What a directory looked like when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirStamp {
    pub device: u64,
    pub inode: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

impl DirStamp {
    #[allow(clippy::unnecessary_cast)]
    pub fn of(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            mtime: Timestamp {
                seconds: stat.st_mtime as i64,
                nanos: stat.st_mtime_nsec as u32,
            },
            ctime: Timestamp {
                seconds: stat.st_ctime as i64,
                nanos: stat.st_ctime_nsec as u32,
            },
        }
    }
}

/// Whose clock stamps the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsClock {
    /// This kernel's.
    Local,
    /// Another machine's, or unknown.
    Foreign,
}

impl FsClock {
    #[cfg(target_os = "linux")]
    #[allow(clippy::unnecessary_cast)]
    pub fn of(stat: &rustix::fs::StatFs) -> Self {
        // ext2–4, xfs, btrfs, f2fs, bcachefs, zfs, tmpfs, ramfs, overlayfs
        const LOCAL: [u64; 9] = [
            0xef53,
            0x5846_5342,
            0x9123_683e,
            0xf2f5_2010,
            0xca45_1a4e,
            0x2fc1_2fc1,
            0x0102_1994,
            0x8584_58f6,
            0x794c_7630,
        ];
        if LOCAL.contains(&(stat.f_type as u64 & 0xffff_ffff)) {
            FsClock::Local
        } else {
            FsClock::Foreign
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &rustix::fs::StatFs) -> Self {
        FsClock::Foreign
    }
}

/// The time by the clock that stamps local files, and by one that never steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    pub wall: Timestamp,
    pub steady: Duration,
}

impl Now {
    pub fn read() -> Self {
        use rustix::time::{ClockId, clock_gettime};
        // The coarse clock is the very one that local file systems take their stamps from; the
        // fine one runs ahead of it, by much when the machine is busy.
        #[cfg(target_os = "linux")]
        let wall = clock_gettime(ClockId::RealtimeCoarse);
        #[cfg(not(target_os = "linux"))]
        let wall = clock_gettime(ClockId::Realtime);
        let steady = clock_gettime(ClockId::Monotonic);
        Self {
            wall: Timestamp {
                seconds: wall.tv_sec,
                nanos: wall.tv_nsec as u32,
            },
            steady: Duration::new(steady.tv_sec as u64, steady.tv_nsec as u32),
        }
    }
}

impl Timestamp {
    /// The time by the finest clock there is.
    pub(crate) fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Self {
            seconds: now.tv_sec,
            nanos: now.tv_nsec as u32,
        }
    }
}

/// A finished look at a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scan {
    /// The stamp that the directory had before its names were read.
    stamp: DirStamp,
    /// When the scan began: before the stamp was taken.
    began: Now,
    /// When this stamp was first seen.
    first_seen: Duration,
    clock: FsClock,
}

impl Scan {
    /// Describes a scan that began at `began` and found the directory with `stamp`; `before` is the
    /// scan before it.
    pub fn new(stamp: DirStamp, began: Now, clock: FsClock, before: Option<&Scan>) -> Self {
        let first_seen = match before {
            Some(scan) if scan.stamp == stamp => scan.first_seen,
            _ => began.steady,
        };
        Self {
            stamp,
            began,
            first_seen,
            clock,
        }
    }

    /// Whether a directory that shows `stamp` at `now` holds exactly what this scan saw. A clock that
    /// has stepped back since may come to the stamp's tick again, and so proves nothing.
    pub fn covers(&self, stamp: DirStamp, now: Now) -> bool {
        self.stamp == stamp
            && self.is_final()
            && !self.is_overtaken(now)
            && now.wall >= self.began.wall
    }

    /// Whether every change after this scan must change the stamp.
    fn is_final(&self) -> bool {
        let tick = tick(self.stamp.ctime, self.clock);
        let later = self
            .began
            .wall
            .since(self.stamp.ctime)
            .is_some_and(|age| age >= tick);
        let watched = self.began.steady.saturating_sub(self.first_seen) >= FOREIGN_TICK;
        (later && self.clock == FsClock::Local) || watched
    }

    /// Whether the clock has come to a stamp that lay in the future when the scan was made: then a
    /// change may get that very stamp again.
    fn is_overtaken(&self, now: Now) -> bool {
        let ahead = self.stamp.ctime.since(now.wall);
        self.began.wall < self.stamp.ctime && ahead.is_none_or(|ahead| ahead < FOREIGN_TICK)
    }

    /// The directory that was looked at.
    pub fn inode(&self) -> (u64, u64) {
        (self.stamp.device, self.stamp.inode)
    }
}

/// Longer than any tick and any whole-second stamp of a file system we know nothing about.
const FOREIGN_TICK: Duration = Duration::from_millis(2_500);

/// Longer than a kernel's tick (10 ms at most).
const LOCAL_TICK: Duration = Duration::from_millis(20);

/// How long the file system's clock may stand still, judged by a stamp it gave.
fn tick(stamp: Timestamp, clock: FsClock) -> Duration {
    match clock {
        FsClock::Local if stamp.nanos != 0 => LOCAL_TICK,
        // Whole seconds, or even ones only.
        FsClock::Local | FsClock::Foreign => FOREIGN_TICK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_790_000_000;

    fn at(seconds: i64, millis: i64) -> Timestamp {
        // The odd nanosecond keeps stamps from looking like whole seconds.
        Timestamp::from_nanos(
            (i128::from(START + seconds) * 1000 + i128::from(millis)) * 1_000_000 + 7,
        )
        .unwrap()
    }

    fn now(seconds: i64, millis: i64) -> Now {
        Now {
            wall: at(seconds, millis),
            steady: Duration::from_millis((1_000_000 + seconds * 1000 + millis) as u64),
        }
    }

    fn stamp(ctime: Timestamp) -> DirStamp {
        DirStamp {
            device: 1,
            inode: 2,
            mtime: ctime,
            ctime,
        }
    }

    fn scan(ctime: Timestamp, began: Now, clock: FsClock) -> Scan {
        Scan::new(stamp(ctime), began, clock, None)
    }

    #[test]
    fn a_scan_in_the_tick_of_the_stamp_proves_nothing() {
        for millis in [0, 4, 10, 19] {
            let scan = scan(at(0, 0), now(0, millis), FsClock::Local);
            assert!(!scan.covers(stamp(at(0, 0)), now(60, 0)), "{millis} ms");
        }
        let scan = scan(at(0, 0), now(0, 21), FsClock::Local);
        assert!(scan.covers(stamp(at(0, 0)), now(0, 22)));
    }

    #[test]
    fn another_stamp_is_never_covered() {
        let scan = scan(at(0, 0), now(10, 0), FsClock::Local);
        assert!(!scan.covers(stamp(at(11, 0)), now(11, 0)));
        let moved = DirStamp {
            inode: 3,
            ..stamp(at(0, 0))
        };
        assert!(!scan.covers(moved, now(11, 0)));
    }

    #[test]
    fn a_restored_mtime_does_not_hide_a_change() {
        let old = DirStamp {
            mtime: at(-9999, 0),
            ..stamp(at(0, 0))
        };
        // An old mtime does not make a young ctime trustworthy.
        let young = Scan::new(old, now(0, 5), FsClock::Local, None);
        assert!(!young.covers(old, now(1, 0)));
        let scan = Scan::new(old, now(1, 0), FsClock::Local, None);
        assert!(scan.covers(old, now(2, 0)));
        let restored = DirStamp {
            ctime: at(3, 0),
            ..old
        };
        assert!(!scan.covers(restored, now(4, 0)));
        // Nor does a future mtime make an old ctime untrustworthy.
        let future = DirStamp {
            mtime: at(99_999, 0),
            ..stamp(at(0, 0))
        };
        assert!(Scan::new(future, now(1, 0), FsClock::Local, None).covers(future, now(2, 0)));
    }

    #[test]
    fn whole_second_clocks_need_seconds() {
        let coarse = Timestamp {
            seconds: START,
            nanos: 0,
        };
        assert!(!scan(coarse, now(0, 900), FsClock::Local).covers(stamp(coarse), now(9, 0)));
        assert!(!scan(coarse, now(2, 0), FsClock::Local).covers(stamp(coarse), now(9, 0)));
        assert!(scan(coarse, now(3, 0), FsClock::Local).covers(stamp(coarse), now(9, 0)));
    }

    #[test]
    fn a_foreign_clock_must_be_watched() {
        // Our clock may be hours ahead: the age that it gives a stamp means nothing.
        let first = scan(at(-9999, 0), now(0, 0), FsClock::Foreign);
        assert!(!first.covers(stamp(at(-9999, 0)), now(0, 1)));
        let second = Scan::new(
            stamp(at(-9999, 0)),
            now(2, 0),
            FsClock::Foreign,
            Some(&first),
        );
        assert!(!second.covers(stamp(at(-9999, 0)), now(2, 1)));
        let third = Scan::new(
            stamp(at(-9999, 0)),
            now(2, 600),
            FsClock::Foreign,
            Some(&second),
        );
        assert!(third.covers(stamp(at(-9999, 0)), now(2, 700)));
        // A change starts the watch anew.
        let fourth = Scan::new(
            stamp(at(-9990, 0)),
            now(9, 0),
            FsClock::Foreign,
            Some(&third),
        );
        assert!(!fourth.covers(stamp(at(-9990, 0)), now(9, 1)));
    }

    #[test]
    fn a_clock_that_stepped_back_is_watched_until_it_comes_to_the_stamp_again() {
        let future = stamp(at(3600, 0));
        let first = Scan::new(future, now(0, 0), FsClock::Local, None);
        assert!(!first.covers(future, now(1, 0)));
        let watched = Scan::new(future, now(3, 0), FsClock::Local, Some(&first));
        assert!(watched.covers(future, now(4, 0)));
        assert!(!watched.covers(future, now(3599, 0)));
        assert!(!watched.covers(future, now(3600, 1)));
        assert!(!watched.covers(future, now(9999, 0)));
        let after = Scan::new(future, now(3601, 0), FsClock::Local, Some(&watched));
        assert!(after.covers(future, now(9999, 0)));
    }

    #[test]
    fn a_clock_that_stepped_forward_proves_as_much_as_before() {
        let scan = scan(at(0, 0), now(3600, 0), FsClock::Local);
        assert!(scan.covers(stamp(at(0, 0)), now(3601, 0)));
        assert!(!scan.covers(stamp(at(3600, 1)), now(3601, 0)));
    }

    #[test]
    fn a_clock_that_steps_back_behind_a_scan_takes_its_word_back() {
        let scan = scan(at(0, 0), now(10, 0), FsClock::Local);
        assert!(scan.covers(stamp(at(0, 0)), now(11, 0)));
        assert!(!scan.covers(stamp(at(0, 0)), now(9, 0)));
    }

    #[test]
    fn absurd_times_do_not_overflow() {
        let end = Timestamp {
            seconds: i64::MAX,
            nanos: 999_999_999,
        };
        let dawn = Timestamp {
            seconds: i64::MIN,
            nanos: 0,
        };
        for time in [end, dawn] {
            assert_eq!(Timestamp::from_nanos(time.as_nanos()), Some(time));
            let scan = scan(time, now(0, 0), FsClock::Local);
            scan.covers(stamp(time), now(1, 0));
        }
        assert_eq!(end.since(dawn), Some(Duration::MAX));
    }

    #[test]
    fn a_file_written_in_this_tick_is_racy() {
        let file = FileStamp {
            size: 1,
            mtime: at(0, 0),
            inode: 1,
            ctime: None,
        };
        assert!(file.is_racy(at(0, 5), FsClock::Local));
        assert!(!file.is_racy(at(0, 25), FsClock::Local));
        assert!(file.is_racy(at(1, 0), FsClock::Foreign));
        // A date that was set by hand, far ahead, is no race.
        assert!(!file.is_racy(at(-3600, 0), FsClock::Local));
    }
}
