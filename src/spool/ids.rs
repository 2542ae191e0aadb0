//! The ids that the server makes.
//!
//! The number behind the second is its ten-thousandths, so that ids ascend with time whoever makes
//! them: processes that share a spool need not know of each other, and an id that was freed by a
//! deletion is in the past. Where two fall together, the second takes the next free number.

use std::fmt;

use chrono::{DateTime, NaiveDateTime};

use super::freshness::Timestamp;

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
    pub fn after(now: Timestamp, floors: impl IntoIterator<Item = ServerId>) -> Self {
        floors
            .into_iter()
            // A floor at the end of time, planted or not, must not stop the mail.
            .filter(|floor| floor.seconds < Self::SECONDS_MAX)
            .map(Self::next)
            .fold(Self::at(now), Self::max)
    }

    /// The id that belongs to a moment.
    pub fn at(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds.clamp(0, Self::SECONDS_MAX),
            number: (time.nanos / 100_000) as u16,
        }
    }

    /// The id after this one; a second that is full borrows the next.
    pub fn next(self) -> Self {
        if self.number < Self::NUMBER_MAX {
            Self {
                number: self.number + 1,
                ..self
            }
        } else {
            Self {
                seconds: self.seconds.saturating_add(1),
                number: 1,
            }
        }
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = DateTime::from_timestamp(self.seconds, 0).unwrap_or_default();
        write!(f, "{}-{:04}", time.format(Self::FORMAT), self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, millis: u32) -> Timestamp {
        Timestamp {
            seconds: 1_794_700_800 + seconds,
            nanos: millis * 1_000_000,
        }
    }

    #[test]
    fn ids_ascend_even_when_the_clock_steps_back() {
        let first = ServerId::after(at(0, 250), []);
        assert_eq!(first.to_string(), "20261115T000000-2500");
        assert_eq!(
            ServerId::after(at(0, 250), [first]).to_string(),
            "20261115T000000-2501"
        );
        let second = ServerId::after(at(-3600, 0), [first]);
        assert_eq!(second.to_string(), "20261115T000000-2501");
        let third = ServerId::after(at(1, 0), [first, second]);
        assert_eq!(third.to_string(), "20261115T000001-0000");
        let floor = ServerId::at(at(9, 999));
        assert_eq!(
            ServerId::after(at(0, 0), [floor]).to_string(),
            "20261115T000009-9991"
        );
    }

    #[test]
    fn a_full_second_borrows_the_next() {
        let full = ServerId::parse("20261231T235959-9999").unwrap();
        assert_eq!(full.next().to_string(), "20270101T000000-0001");
        assert!(full.next().to_string() > full.to_string());
    }

    #[test]
    fn ids_from_the_end_of_time_do_not_stop_the_mail() {
        let last = ServerId::parse("99991231T235959-9999").unwrap();
        assert_eq!(
            ServerId::after(at(0, 1), [last]).to_string(),
            "20261115T000000-0010"
        );
        let dawn = Timestamp {
            seconds: i64::MIN,
            nanos: 0,
        };
        assert_eq!(
            ServerId::after(dawn, [ServerId::at(dawn)]).to_string(),
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
}
