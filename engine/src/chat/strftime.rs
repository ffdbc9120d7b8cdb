//! Dates as C's `strftime` writes them in the C locale, in UTC.

use minijinja::{Error, ErrorKind};
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A moment in the Gregorian calendar.
struct Moment {
    year: i64,
    /// 0 to 11.
    month: usize,
    /// 1 to 31.
    day: i64,
    /// 0 is Sunday.
    weekday: usize,
    /// 1 to 366.
    day_of_year: i64,
    second_of_day: i64,
}

impl Moment {
    /// # Source
    /// Days to dates: H. Hinnant, *chrono-compatible low-level date algorithms*, `civil_from_days`.
    fn new(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        // Years that begin in March have their leap day at the end.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_march_year =
            day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_march_year + 2) / 153;
        let day = day_of_march_year - (153 * march_month + 2) / 5 + 1;
        let month = (march_month + 2) % 12;
        let year = year_of_era + era * 400 + i64::from(month < 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year = if month < 2 {
            day_of_march_year - 305
        } else {
            day_of_march_year + 60 + i64::from(leap)
        };
        Self {
            year,
            month: month as usize,
            day,
            weekday: (days + 4).rem_euclid(7) as usize,
            day_of_year,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }
}

/// `strftime_now(format)`.
pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    /// Longest format: dates are short.
    const MAX_BYTES: usize = 4096;
    if format.len() > MAX_BYTES {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "the date format is too long",
        ));
    }
    let seconds = match now.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    };
    let mut out = String::new();
    write(format, &Moment::new(seconds), &mut out);
    Ok(out)
}

fn write(format: &str, at: &Moment, out: &mut String) {
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // `%-d` leaves out the padding.
        let mut rest = chars.clone();
        let mut directive = rest.next();
        let padded = directive != Some('-');
        if !padded {
            directive = rest.next();
        }
        let Some(directive) = directive else {
            out.push('%');
            continue;
        };
        let digits = |value: i64, width: usize| {
            if padded {
                format!("{value:0width$}")
            } else {
                value.to_string()
            }
        };
        let (hour, minute) = (at.second_of_day / 3600, at.second_of_day / 60 % 60);
        let hour12 = (hour + 11) % 12 + 1;
        let day = DAYS[at.weekday];
        let month = MONTHS[at.month];
        let text = match directive {
            'a' => day[..3].to_owned(),
            'A' => day.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'B' => month.to_owned(),
            'd' => digits(at.day, 2),
            'e' if padded => format!("{:2}", at.day),
            'e' => at.day.to_string(),
            'H' => digits(hour, 2),
            'I' => digits(hour12, 2),
            'j' => digits(at.day_of_year, 3),
            'm' => digits(at.month as i64 + 1, 2),
            'M' => digits(minute, 2),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'S' => digits(at.second_of_day % 60, 2),
            'w' => at.weekday.to_string(),
            'u' => ((at.weekday + 6) % 7 + 1).to_string(),
            'y' => digits(at.year.rem_euclid(100), 2),
            'Y' => at.year.to_string(),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            'c' | 'D' | 'x' | 'F' | 'T' | 'X' | 'R' => {
                let pattern = match directive {
                    'c' => "%a %b %e %H:%M:%S %Y",
                    'D' | 'x' => "%m/%d/%y",
                    'F' => "%Y-%m-%d",
                    'R' => "%H:%M",
                    _ => "%H:%M:%S",
                };
                let mut text = String::new();
                write(pattern, at, &mut text);
                text
            }
            // As C does with what it does not know.
            _ => {
                out.push('%');
                continue;
            }
        };
        out.push_str(&text);
        chars = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: i64, format: &str) -> String {
        let offset = Duration::from_secs(seconds.unsigned_abs());
        let now = if seconds < 0 {
            UNIX_EPOCH - offset
        } else {
            UNIX_EPOCH + offset
        };
        strftime(format, now).expect("a date")
    }

    /// Values of Python's `datetime.fromtimestamp(s, timezone.utc).strftime(...)`.
    #[test]
    fn dates_as_python_prints_them() {
        let all = "%Y-%m-%d %H:%M:%S|%a %A %b %B|%j %y %I %p|%-d %-m %e %w %u";
        let table = [
            (
                0,
                "1970-01-01 00:00:00|Thu Thursday Jan January|001 70 12 AM|1 1  1 4 4",
            ),
            (
                951_782_400,
                "2000-02-29 00:00:00|Tue Tuesday Feb February|060 00 12 AM|29 2 29 2 2",
            ),
            (
                951_868_799,
                "2000-02-29 23:59:59|Tue Tuesday Feb February|060 00 11 PM|29 2 29 2 2",
            ),
            (
                1_735_689_599,
                "2024-12-31 23:59:59|Tue Tuesday Dec December|366 24 11 PM|31 12 31 2 2",
            ),
            (
                1_785_585_600,
                "2026-08-01 12:00:00|Sat Saturday Aug August|213 26 12 PM|1 8  1 6 6",
            ),
            (
                4_107_542_400,
                "2100-03-01 00:00:00|Mon Monday Mar March|060 00 12 AM|1 3  1 1 1",
            ),
            (
                -86_400,
                "1969-12-31 00:00:00|Wed Wednesday Dec December|365 69 12 AM|31 12 31 3 3",
            ),
        ];
        for (seconds, want) in table {
            assert_eq!(at(seconds, all), want);
        }
        assert_eq!(
            at(0, "%F %T %R %D%%%n"),
            "1970-01-01 00:00:00 00:00 01/01/70%\n"
        );
        assert_eq!(at(0, "%Q %"), "%Q %", "unknown directives stay");
    }
}
