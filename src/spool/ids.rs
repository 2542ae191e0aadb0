//! The ids that the server makes.

use std::fmt;

use chrono::{DateTime, NaiveDateTime};

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
            .map(Self::next)
            .fold(first, Self::max)
    }

    /// The lowest id of a second.
    pub fn second(seconds: i64) -> Self {
        Self { seconds, number: 0 }
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
        assert_eq!(full.next().to_string(), "20270101T000000-0001");
        assert!(full.next().to_string() > full.to_string());
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
}
