//! Times as touch(1) takes them: a stamp of digits (`-t`), and those dates of GNU's `-d` that mean
//! the same everywhere. Times without a zone are the host's local time.

use adit::Timestamp;

/// `[[CC]YY]MMDDhhmm[.ss]`; None: it is none. Without a year it is this one; two digits of 69 and
/// more are of the last century.
pub(crate) fn stamp(text: &str, now: Timestamp) -> Option<Timestamp> {
    let (digits, second) = match text.split_once('.') {
        Some((digits, second)) if second.len() == 2 => (digits, number(second)?),
        Some(_) => return None,
        None => (text, 0),
    };
    let (year, rest) = match (digits.len(), digits.is_ascii()) {
        (8, true) => (local(now.seconds)?.tm_year + 1900, digits),
        (10, true) => match number(&digits[..2])? {
            year if year >= 69 => (1900 + year, &digits[2..]),
            year => (2000 + year, &digits[2..]),
        },
        (12, true) => (number(&digits[..4])?, &digits[4..]),
        _ => return None,
    };
    let pair = |at: usize| number(&rest[at..at + 2]);
    let given = DateParts {
        date: Some((year, pair(0)?, pair(2)?)),
        time: Some((pair(4)?, pair(6)?, second, 0)),
        ..DateParts::default()
    };
    given.moment(now)
}

/// `2026-11-28`, `2026-11-28 03:48[:06[.5]]`, also with a `T` between the two and with a zone (`Z`,
/// `UTC`, `+01:00`); `03:48` today; `now`, `today`, `yesterday`, `tomorrow`; `2 days ago`,
/// `+3 hours`, also behind a date; `@SECONDS` since 1970. None: it is none of these.
pub(crate) fn date(text: &str, now: Timestamp) -> Option<Timestamp> {
    if let Some(seconds) = text.trim().strip_prefix('@') {
        return since_1970(seconds);
    }
    let mut given = DateParts::default();
    let mut words = text.split_whitespace().peekable();
    words.peek()?;
    while let Some(word) = words.next() {
        if given.take_word(word).is_some() {
            continue;
        }
        let (count, unit) = match word.parse::<i32>() {
            Ok(count) => (count, words.next()?),
            Err(_) => (1, word),
        };
        let sign = match words.next_if(|word| word.eq_ignore_ascii_case("ago")) {
            Some(_) => -1,
            None => 1,
        };
        given.take_offset(count.checked_mul(sign)?, unit)?;
    }
    given.moment(now)
}

/// The parts of a date that were given.
#[derive(Default)]
struct DateParts {
    /// Year, month, day.
    date: Option<(i32, i32, i32)>,
    /// Hour, minute, second, nanosecond.
    time: Option<(i32, i32, i32, u32)>,
    /// Seconds east of Greenwich.
    zone: Option<i64>,
    months: i32,
    days: i32,
    seconds: i64,
}

impl DateParts {
    /// Takes a word that is no offset of units; None: it is none, or there was one like it.
    fn take_word(&mut self, word: &str) -> Option<()> {
        let word = word.to_ascii_lowercase();
        match word.as_str() {
            "now" | "today" => return Some(()),
            "yesterday" => return self.take_offset(-1, "day"),
            "tomorrow" => return self.take_offset(1, "day"),
            _ => {}
        }
        let is_date = word.len() >= 10 && word.as_bytes().get(4) == Some(&b'-');
        if is_date && word.is_ascii() && self.date.is_none() {
            let (date, rest) = word.split_at(10);
            let mut parts = date.split('-').map(number);
            self.date = Some((parts.next()??, parts.next()??, parts.next()??));
            return match rest.strip_prefix('t') {
                Some(time) => self.take_time(time),
                None => rest.is_empty().then_some(()),
            };
        }
        if word.contains(':') && word.starts_with(|first: char| first.is_ascii_digit()) {
            return self.take_time(&word);
        }
        self.take_zone(&word)
    }

    /// `03:48[:06[.5]]`, and a zone right behind it.
    fn take_time(&mut self, word: &str) -> Option<()> {
        let end = word.find(|letter| !matches!(letter, '0'..='9' | ':' | '.'));
        let (time, zone) = word.split_at(end.unwrap_or(word.len()));
        if self.time.is_some() {
            return None;
        }
        let mut parts = time.split(':');
        let (hour, minute) = (number(parts.next()?)?, number(parts.next()?)?);
        let (second, nanosecond) = match parts.next() {
            Some(second) => match second.split_once('.') {
                Some((second, fraction)) => (number(second)?, nanoseconds(fraction)?),
                None => (number(second)?, 0),
            },
            None => (0, 0),
        };
        self.time = Some((hour, minute, second, nanosecond));
        match (parts.next(), zone) {
            (Some(_), _) => None,
            (None, "") => Some(()),
            (None, zone) => self.take_zone(zone),
        }
    }

    /// A zone. As for GNU's, a number with a sign right behind a time is one: `12:00 -1 day` is a day
    /// after noon of the zone that is an hour behind Greenwich.
    fn take_zone(&mut self, word: &str) -> Option<()> {
        if self.zone.is_some() || self.time.is_none() && self.date.is_none() {
            return None;
        }
        let east = match word {
            "z" | "utc" | "gmt" => 0,
            _ if self.time.is_none() => return None,
            _ => {
                let (sign, digits) = match word.split_at_checked(1)? {
                    ("+", digits) => (1, digits),
                    ("-", digits) => (-1, digits),
                    _ => return None,
                };
                let (hours, minutes) = match (digits.len(), digits.split_once(':')) {
                    (_, Some((hours, minutes))) => (number(hours)?, number(minutes)?),
                    (1 | 2, None) => (number(digits)?, 0),
                    (4, None) => (number(&digits[..2])?, number(&digits[2..])?),
                    _ => return None,
                };
                if hours > 24 || minutes > 59 {
                    return None;
                }
                sign * i64::from(hours * 3600 + minutes * 60)
            }
        };
        self.zone = Some(east);
        Some(())
    }

    /// So many seconds, minutes, … later.
    fn take_offset(&mut self, count: i32, unit: &str) -> Option<()> {
        let unit = unit.to_ascii_lowercase();
        let mut seconds = |each: i64| {
            self.seconds = self.seconds.checked_add(i64::from(count) * each)?;
            Some(())
        };
        match unit.strip_suffix('s').unwrap_or(&unit) {
            "sec" | "second" => seconds(1),
            "min" | "minute" => seconds(60),
            "hour" => seconds(3600),
            "day" => count.checked_add(self.days).map(|days| self.days = days),
            "week" => (count.checked_mul(7)?.checked_add(self.days)).map(|days| self.days = days),
            "month" => count
                .checked_add(self.months)
                .map(|months| self.months = months),
            "year" => {
                let months = count.checked_mul(12)?.checked_add(self.months);
                months.map(|months| self.months = months)
            }
            _ => None,
        }
    }

    /// The moment. A date without a time is its midnight; what is not given is now's.
    fn moment(&self, now: Timestamp) -> Option<Timestamp> {
        let mut nanosecond = now.nanoseconds;
        let mut parts = match self.zone {
            Some(east) => utc(now.seconds.checked_add(east)?)?,
            None => local(now.seconds)?,
        };
        if let Some((year, month, day)) = self.date {
            if !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day) {
                return None;
            }
            (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
        }
        if let Some((hour, minute, second, fraction)) = self.time {
            // A leap second is the next one.
            if hour > 23 || minute > 59 || second > 60 {
                return None;
            }
            (parts.tm_hour, parts.tm_min, parts.tm_sec) = (hour, minute, second);
            nanosecond = fraction;
        } else if self.date.is_some() {
            (parts.tm_hour, parts.tm_min, parts.tm_sec) = (0, 0, 0);
            nanosecond = 0;
        }
        parts.tm_mon = parts.tm_mon.checked_add(self.months)?;
        parts.tm_mday = parts.tm_mday.checked_add(self.days)?;
        // Whether that is in summer time is for the host to say.
        parts.tm_isdst = -1;
        let seconds = match self.zone {
            Some(east) => seconds_of_utc(parts)?.checked_sub(east)?,
            None => seconds_of_local(parts)?,
        };
        Some(Timestamp {
            seconds: seconds.checked_add(self.seconds)?,
            nanoseconds: nanosecond,
        })
    }
}

/// `-1.5` is half a second before the second before 1970.
fn since_1970(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, nanoseconds(fraction)?),
        None => (text, 0),
    };
    let seconds: i64 = whole.parse().ok()?;
    Some(match (whole.starts_with('-'), fraction) {
        (true, 1..) => Timestamp {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: 1_000_000_000 - fraction,
        },
        _ => Timestamp {
            seconds,
            nanoseconds: fraction,
        },
    })
}

/// A number of digits only.
fn number(text: &str) -> Option<i32> {
    let all_digits = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| all_digits)
}

/// The nanoseconds of the digits behind a decimal point; more than nine of them are cut off.
fn nanoseconds(fraction: &str) -> Option<u32> {
    let all_digits = fraction.bytes().all(|digit| digit.is_ascii_digit());
    if fraction.is_empty() || !all_digits {
        return None;
    }
    format!("{fraction:0<9}")[..9].parse().ok()
}

fn days_of(year: i32, month: i32) -> i32 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn empty() -> libc::tm {
    // SAFETY: numbers and a pointer that may be null.
    unsafe { std::mem::zeroed() }
}

fn local(seconds: i64) -> Option<libc::tm> {
    let mut parts = empty();
    // SAFETY: reads the number, fills in `parts`.
    let done = unsafe { libc::localtime_r(&seconds, &mut parts) };
    (!done.is_null()).then_some(parts)
}

fn utc(seconds: i64) -> Option<libc::tm> {
    let mut parts = empty();
    // SAFETY: as above.
    let done = unsafe { libc::gmtime_r(&seconds, &mut parts) };
    (!done.is_null()).then_some(parts)
}

fn seconds_of_local(mut parts: libc::tm) -> Option<i64> {
    // Otherwise -1 is a moment, too.
    parts.tm_wday = -1;
    // SAFETY: reads and normalizes `parts`.
    let seconds = unsafe { libc::mktime(&mut parts) };
    (parts.tm_wday >= 0).then_some(seconds)
}

fn seconds_of_utc(mut parts: libc::tm) -> Option<i64> {
    parts.tm_wday = -1;
    // SAFETY: as above.
    let seconds = unsafe { libc::timegm(&mut parts) };
    (parts.tm_wday >= 0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28T03:48:06Z.
    const NOW: Timestamp = Timestamp {
        seconds: 1_795_837_686,
        nanoseconds: 5,
    };

    fn seconds(text: &str) -> Option<i64> {
        date(text, NOW).map(|moment| moment.seconds)
    }

    #[test]
    fn dates_with_a_zone_are_the_same_everywhere() {
        for text in [
            "2026-11-28 03:48:06Z",
            "2026-11-28T03:48:06z",
            "2026-11-28 03:48:06 UTC",
            "2026-11-28T04:48:06+01:00",
            "2026-11-27 23:18:06 -0430",
            "2026-11-28 03:48 UTC +6 seconds",
            "2026-11-27 04:48:06 +1 day",
            "2026-11-29 03:48:06Z 1 day ago",
            "2027-11-28 03:48:06Z year ago",
            "2026-12-28 03:48:06Z -1 month",
            "@1795837686",
        ] {
            assert_eq!(seconds(text), Some(NOW.seconds), "{text}");
        }
        let half = date("2026-11-28T03:48:06.5Z", NOW).expect("a date");
        assert_eq!(half.nanoseconds, 500_000_000);
        let before = date("@-1.5", NOW).expect("a date");
        assert_eq!((before.seconds, before.nanoseconds), (-2, 500_000_000));
        assert_eq!(seconds("1969-12-31 23:59:59Z"), Some(-1));
    }

    #[test]
    fn offsets_begin_now() {
        assert_eq!(date("now", NOW), Some(NOW));
        assert_eq!(seconds("2 hours ago"), Some(NOW.seconds - 7200));
        assert_eq!(seconds("+90 min"), Some(NOW.seconds + 5400));
        let day = seconds("tomorrow").expect("a date") - NOW.seconds;
        // A day of local time may have an hour more or less.
        assert!((23 * 3600..=25 * 3600).contains(&day), "{day}");
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in [
            "",
            " ",
            "@",
            "@1.",
            "soon",
            "ago",
            "3",
            "3 fortnights",
            "2026-13-01",
            "2026-02-29",
            "2026-11-28 24:00",
            "2026-11-28 03:60",
            "2026-11-28 03:48 +25:00",
            "2026-11-28 03:48 2026-11-28",
            "2026-11-28 03:48 03:48",
            "2026-11-28x",
            "28.11.2026",
            "UTC",
        ] {
            assert_eq!(date(text, NOW), None, "{text}");
        }
        for text in [
            "",
            "1",
            "02302000",
            "01012400",
            "0101000",
            "é1010000",
            "01010000.7",
        ] {
            assert_eq!(stamp(text, NOW), None, "{text}");
        }
    }

    #[test]
    fn stamps_have_two_four_or_no_digits_of_a_year() {
        let same = ["202611280348.06", "2611280348.06", "11280348.06"].map(|text| stamp(text, NOW));
        assert!(same[0].is_some() && same[0] == same[1] && same[1] == same[2]);
        assert_eq!(same[0], date("2026-11-28 03:48:06", NOW));
        let (old, new) = (stamp("6901010000", NOW), stamp("6801010000", NOW));
        assert!(
            old < stamp("7001020000", NOW) && new > Some(NOW),
            "{old:?} {new:?}"
        );
    }
}
