//! Sizes as people write them: `4G`, `512M`, `1.5GiB`, `4096`.

use crate::{Errno, Error, Result};

const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];

/// Parses a size in bytes. Units are binary (K = 1024), in either case, with or without `iB` or
/// `B`; a fraction is allowed before a unit.
pub fn parse_size(text: &str) -> Result<u64> {
    let refuse = || {
        Error::with(
            Errno::INVAL,
            format!("understand the size {text:?} (write 4096, 512M, 4G or 1.5T)"),
        )
    };
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit
        .strip_suffix("IB")
        .or_else(|| unit.strip_suffix('B'))
        .unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        unit => {
            10 * (1 + UNITS
                .iter()
                .position(|&known| known == unit)
                .ok_or_else(refuse)? as u32)
        }
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty()
        || (fraction.is_empty() && number.contains('.'))
        || fraction.len() > 9
        || (shift == 0 && !fraction.is_empty())
    {
        return Err(refuse());
    }
    let whole: u128 = whole.parse().map_err(|_| refuse())?;
    let mut bytes = whole
        .checked_shl(shift)
        .filter(|b| b >> shift == whole)
        .ok_or_else(refuse)?;
    if !fraction.is_empty() {
        let parts: u128 = fraction.parse().map_err(|_| refuse())?;
        bytes = bytes
            .checked_add((parts << shift) / 10u128.pow(fraction.len() as u32))
            .ok_or_else(refuse)?;
    }
    u64::try_from(bytes).map_err(|_| refuse())
}

/// Writes a size shortly: `4 GiB`, `1.5 MiB`, `512 B`.
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (63 - bytes.leading_zeros()) / 10;
    let unit = UNITS[power as usize - 1];
    let tenths = ((u128::from(bytes) * 10) >> (10 * power)) as u64;
    if tenths.is_multiple_of(10) {
        format!("{} {unit}iB", tenths / 10)
    } else {
        format!("{}.{} {unit}iB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_understood_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4G", 4 << 30),
            ("512MiB", 512 << 20),
            ("1.5 GiB", 3 << 29),
            ("2TB", 2 << 40),
            ("100B", 100),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn nonsense_and_overflow_are_refused() {
        for text in [
            "",
            "G",
            "-1",
            "1.5",
            "1..5G",
            ".5G",
            "1.G",
            "4X",
            "16E",
            "99999999999999999999999999999999999999999",
            "4 G G",
        ] {
            assert_eq!(
                parse_size(text).map_err(|error| error.errno()),
                Err(Errno::INVAL),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes_are_written_shortly() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (4 << 30, "4 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9.]{0,45}[kKmMgGtTeEiIbB ]{0,4}") { let _ = parse_size(&text); }
        #[test]
        fn every_number_of_bytes_comes_back(bytes: u64) { prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes)); }
    }
}
