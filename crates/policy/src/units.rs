//! Amounts of memory, and how a user writes them.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The binary units, largest first, as they are written and read.
const UNITS: [(&str, u64); 5] = [
    ("TiB", TIB),
    ("GiB", GIB),
    ("MiB", MIB),
    ("KiB", KIB),
    ("B", 1),
];

/// What is said when a size cannot be read.
const EXAMPLES: &str = "write bytes, 512MiB, 20GiB or 25%";

/// An amount of device memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No memory.
    pub const ZERO: Bytes = Bytes(0);

    /// The amount of `kib` KiB (the unit in which the driver reports a card), at most `u64::MAX`
    /// bytes.
    pub const fn from_kib(kib: u64) -> Bytes {
        Bytes(kib.saturating_mul(KIB))
    }

    /// The amount of `mib` MiB, at most `u64::MAX` bytes.
    pub const fn from_mib(mib: u64) -> Bytes {
        Bytes(mib.saturating_mul(MIB))
    }

    /// The amount of `gib` GiB, at most `u64::MAX` bytes.
    pub const fn from_gib(gib: u64) -> Bytes {
        Bytes(gib.saturating_mul(GIB))
    }

    /// Whole KiB in this amount, rounded down.
    pub const fn kib(self) -> u64 {
        self.0 / KIB
    }

    /// The sum, or `None` where it does not fit.
    pub const fn checked_add(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_add(other.0) {
            Some(sum) => Some(Bytes(sum)),
            None => None,
        }
    }

    /// The difference, or `None` where `other` is larger.
    pub const fn checked_sub(self, other: Bytes) -> Option<Bytes> {
        match self.0.checked_sub(other.0) {
            Some(rest) => Some(Bytes(rest)),
            None => None,
        }
    }

    /// The sum, at most `u64::MAX`.
    pub const fn saturating_add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }

    /// The difference, at least zero.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }

    /// The smallest multiple of `step` that is not below this amount, or `None` where it does not
    /// fit or `step` is 0.
    pub const fn checked_round_up(self, step: u64) -> Option<Bytes> {
        match self.0.checked_next_multiple_of(step) {
            Some(rounded) => Some(Bytes(rounded)),
            None => None,
        }
    }
}

impl Sum for Bytes {
    /// Saturating, as a total that no longer fits is beyond every quota anyway.
    fn sum<I: Iterator<Item = Bytes>>(iter: I) -> Bytes {
        iter.fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

impl Bytes {
    /// For people: at most this much, in hundredths of the largest unit that fits (`19.80 GiB`), where the exact number
    /// would be hard to read. What is exact in few digits stays so.
    pub fn about(self) -> String {
        let exact = self.to_string();
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) if exact.len() > 10 => {
                // The remainder is below 2^40, so 100 times it fits.
                let hundredths = self.0 % unit * 100 / unit;
                format!("{}.{hundredths:02} {name}", self.0 / unit)
            }
            _ => exact,
        }
    }

    /// What a user can type to get at most this much: whole MiB where there are some.
    pub fn to_type(self) -> String {
        match self.0 >> 20 {
            0 => self.0.to_string(),
            mib => format!("{mib}MiB"),
        }
    }
}

/// Exact, in the largest unit that needs at most two decimals: `6 GiB`, `1.5 GiB`, `64 KiB`, `65537
/// B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in UNITS {
            let (whole, rest) = (self.0 / unit, self.0 % unit);
            // rest < 2^40, so 100 times it fits.
            if whole == 0 || !(rest * 100).is_multiple_of(unit) {
                continue;
            }
            let hundredths = rest * 100 / unit;
            let text = match (hundredths / 10, hundredths % 10) {
                (0, 0) => format!("{whole} {name}"),
                (tenths, 0) => format!("{whole}.{tenths} {name}"),
                _ => format!("{whole}.{hundredths:02} {name}"),
            };
            return f.pad(&text);
        }
        f.pad("0 B")
    }
}

/// An amount as a user writes it: bytes (`1073741824`), a binary unit (`512MiB`, `1.5GiB`) or a
/// share of the device (`25%`).
///
/// Letters may be of either case, and one space before the unit is accepted. Decimal units and bare
/// letters (`20GB`, `20G`) are refused: they mean 2^30 to some tools and 10^9 to others, and a
/// quota must not be a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes, more than zero.
    Bytes(Bytes),
    /// So many hundredths of a percent of the device, 1 to 10000.
    Percent {
        /// Hundredths of a percent: 2500 is 25 %.
        hundredths: u16,
    },
}

impl Size {
    /// The amount on a device of `device_total`, rounded down to a byte.
    pub fn of(self, device_total: Bytes) -> Bytes {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent { hundredths } => {
                let share = u128::from(device_total.0) * u128::from(hundredths) / 10_000;
                // Hundredths above 10000 can't be parsed; a hand-made value is held to what fits.
                Bytes(u64::try_from(share).unwrap_or(u64::MAX))
            }
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Size::Bytes(bytes) => bytes.fmt(f),
            Size::Percent { hundredths } => {
                let (whole, rest) = (hundredths / 100, hundredths % 100);
                let text = match (rest / 10, rest % 10) {
                    (0, 0) => format!("{whole}%"),
                    (tenths, 0) => format!("{whole}.{tenths}%"),
                    _ => format!("{whole}.{rest:02}%"),
                };
                f.pad(&text)
            }
        }
    }
}

/// Why a size could not be read: one line with what was written, what is wrong and what to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseSizeError {
    written: String,
    problem: String,
}

impl fmt::Display for ParseSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug quoting keeps a line break in the input from breaking the line.
        write!(f, "size {:?}: {}", self.written, self.problem)
    }
}

impl std::error::Error for ParseSizeError {}

impl FromStr for Size {
    type Err = ParseSizeError;

    fn from_str(written: &str) -> Result<Size, ParseSizeError> {
        parse(written.trim()).map_err(|problem| ParseSizeError {
            written: written.to_owned(),
            problem,
        })
    }
}

fn parse(text: &str) -> Result<Size, String> {
    if text.is_empty() {
        return Err(format!("nothing is written; {EXAMPLES}"));
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let suffix = rest.strip_prefix(' ').unwrap_or(rest);
    if number.is_empty() {
        return Err(format!("it does not begin with a number; {EXAMPLES}"));
    }
    if suffix == "%" {
        let hundredths =
            scaled(number, 100).map_err(|problem| problem.explain("a hundredth of a percent"))?;
        return match u16::try_from(hundredths) {
            Ok(0) => Err("0% is no memory; write 1% to 100%".to_owned()),
            Ok(hundredths @ 1..=10_000) => Ok(Size::Percent { hundredths }),
            _ => Err("it is more than the whole device; write 1% to 100%".to_owned()),
        };
    }
    let unit = unit_of(suffix, number)?;
    match scaled(number, unit).map_err(|problem| problem.explain("one byte"))? {
        0 => Err(format!("it is no memory at all; {EXAMPLES}")),
        bytes => Ok(Size::Bytes(Bytes(bytes))),
    }
}

fn unit_of(suffix: &str, number: &str) -> Result<u64, String> {
    if suffix.is_empty() {
        return Ok(1);
    }
    if let Some((_, unit)) = UNITS
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(suffix))
    {
        return Ok(*unit);
    }
    // `20GB`, `20G`: name the unit that was probably meant.
    let lower = suffix.to_ascii_lowercase();
    let letter = lower.strip_suffix('b').unwrap_or(&lower);
    for (name, _) in UNITS {
        if name.len() == 3 && name[..1].eq_ignore_ascii_case(letter) {
            return Err(format!(
                "{suffix} is a power of 1000 to some and of 1024 to others; write {number}{name}"
            ));
        }
    }
    Err(format!("{suffix:?} is no unit; {EXAMPLES}"))
}

/// Why a decimal number times a unit is no whole number.
enum Unscaled {
    NotANumber,
    TooLarge,
    TooFine,
}

impl Unscaled {
    fn explain(&self, finest: &str) -> String {
        match self {
            Unscaled::NotANumber => format!("it is not a number; {EXAMPLES}"),
            Unscaled::TooLarge => "it is larger than any device; write a smaller size".to_owned(),
            Unscaled::TooFine => format!("it is finer than {finest}; write fewer decimals"),
        }
    }
}

/// `number` (digits with at most one point) times `unit`, where the product is whole.
fn scaled(number: &str, unit: u64) -> Result<u64, Unscaled> {
    let (whole, fraction) = match number.split_once('.') {
        Some((_, fraction)) if fraction.is_empty() || fraction.contains('.') => {
            return Err(Unscaled::NotANumber);
        }
        Some((whole, fraction)) => (whole, fraction.trim_end_matches('0')),
        None => (number, ""),
    };
    if whole.is_empty() {
        return Err(Unscaled::NotANumber);
    }
    // There are only digits by now, so what does not parse is too large.
    let whole: u64 = whole.parse().map_err(|_| Unscaled::TooLarge)?;
    // With 18 decimals at most, the product below stays within 128 bits. More could be whole bytes
    // only of a TiB.
    if fraction.len() > 18 {
        return Err(Unscaled::TooFine);
    }
    let denominator = 10u128.pow(fraction.len() as u32);
    let numerator: u128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().map_err(|_| Unscaled::NotANumber)?
    };
    // numerator < 10^18 and unit <= 2^40, so the product is below 2^100.
    let part = numerator * u128::from(unit);
    if !part.is_multiple_of(denominator) {
        return Err(Unscaled::TooFine);
    }
    let part = u64::try_from(part / denominator).map_err(|_| Unscaled::TooLarge)?;
    whole
        .checked_mul(unit)
        .and_then(|bytes| bytes.checked_add(part))
        .ok_or(Unscaled::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> u64 {
        match text.parse::<Size>() {
            Ok(Size::Bytes(bytes)) => bytes.0,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn refused(text: &str) -> String {
        text.parse::<Size>().expect_err(text).to_string()
    }

    #[test]
    fn sizes_are_read_as_documented() {
        assert_eq!(bytes("1"), 1);
        assert_eq!(bytes("1073741824"), GIB);
        assert_eq!(bytes("512MiB"), 512 * MIB);
        assert_eq!(bytes("20GiB"), 20 * GIB);
        assert_eq!(bytes("20gib"), 20 * GIB);
        assert_eq!(bytes("20 GIB"), 20 * GIB);
        assert_eq!(bytes(" 7KiB "), 7 * KIB);
        assert_eq!(bytes("2TiB"), 2 * TIB);
        assert_eq!(bytes("1.5GiB"), 3 * GIB / 2);
        assert_eq!(bytes("64 B"), 64);
        assert_eq!(bytes("18446744073709551615"), u64::MAX);
        assert_eq!("25%".parse(), Ok(Size::Percent { hundredths: 2500 }));
        assert_eq!("12.5 %".parse(), Ok(Size::Percent { hundredths: 1250 }));
        assert_eq!("100%".parse(), Ok(Size::Percent { hundredths: 10_000 }));
    }

    #[test]
    fn refusals_say_what_was_asked_what_is_wrong_and_what_to_do() {
        assert_eq!(
            refused("20GB"),
            "size \"20GB\": GB is a power of 1000 to some and of 1024 to others; write 20GiB"
        );
        assert_eq!(
            refused("512m"),
            "size \"512m\": m is a power of 1000 to some and of 1024 to others; write 512MiB"
        );
        assert_eq!(
            refused(""),
            "size \"\": nothing is written; write bytes, 512MiB, 20GiB or 25%"
        );
        assert_eq!(
            refused("101%"),
            "size \"101%\": it is more than the whole device; write 1% to 100%"
        );
        assert_eq!(
            refused("700%"),
            "size \"700%\": it is more than the whole device; write 1% to 100%"
        );
        assert_eq!(
            refused("0.001%"),
            "size \"0.001%\": it is finer than a hundredth of a percent; write fewer decimals"
        );
        assert_eq!(
            refused("1.5"),
            "size \"1.5\": it is finer than one byte; write fewer decimals"
        );
        for text in [
            "-1",
            "GiB",
            "lots",
            "0",
            "0%",
            "0GiB",
            "1e9",
            "0x10",
            "1..5GiB",
            "1.GiB",
            ".5GiB",
            "20XiB",
            "20GiB!",
            "5 %%",
            "1\n2",
            "18446744073709551616",
            "16777216TiB",
            "99999999999999999999GiB",
            "20  GiB",
            "٣GiB",
        ] {
            let line = refused(text);
            assert!(!line.contains('\n'), "{line}");
            assert!(line.contains("write "), "{line}");
        }
    }

    #[test]
    fn a_share_is_of_the_device_and_rounds_down() {
        let card = Bytes::from_kib(146_941_632);
        assert_eq!(
            Size::Percent { hundredths: 2500 }.of(card),
            Bytes(card.0 / 4)
        );
        assert_eq!(Size::Percent { hundredths: 10_000 }.of(card), card);
        assert_eq!(Size::Percent { hundredths: 1 }.of(Bytes(9_999)), Bytes(0));
        assert_eq!(
            Size::Percent { hundredths: 9_999 }.of(Bytes(u64::MAX)),
            Bytes(18_444_899_399_302_180_659)
        );
        assert_eq!(Size::Bytes(Bytes(7)).of(card), Bytes(7));
    }

    #[test]
    fn amounts_are_written_exactly() {
        for (amount, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (1023, "1023 B"),
            (65_536, "64 KiB"),
            (65_537, "65537 B"),
            (6 * GIB, "6 GiB"),
            (3 * GIB / 2, "1.5 GiB"),
            (GIB + GIB / 4, "1.25 GiB"),
            (GIB + GIB / 8, "1152 MiB"),
            (146_591_680 * KIB, "146591680 KiB"),
            (u64::MAX, "18446744073709551615 B"),
        ] {
            assert_eq!(Bytes(amount).to_string(), text);
        }
        assert_eq!(format!("{:>8}", Bytes(6 * GIB)), "   6 GiB");
        assert_eq!(Size::Percent { hundredths: 1205 }.to_string(), "12.05%");
        assert_eq!(Size::Percent { hundredths: 2500 }.to_string(), "25%");
    }

    #[test]
    fn what_people_read_and_type_is_never_more_than_there_is() {
        let odd = Bytes::from_kib(20_762_560);
        assert_eq!(
            (odd.about(), odd.to_type()),
            ("19.80 GiB".into(), "20275MiB".into())
        );
        assert_eq!(Bytes::from_gib(40).about(), "40 GiB");
        assert_eq!(Bytes::from_gib(40).to_type(), "40960MiB");
        assert_eq!(
            (Bytes(1000).about(), Bytes(1000).to_type()),
            ("1000 B".into(), "1000".into())
        );
        assert_eq!(Bytes(u64::MAX).about(), "16777215.99 TiB");
    }

    #[test]
    fn arithmetic_never_wraps() {
        let max = Bytes(u64::MAX);
        assert_eq!(max.checked_add(Bytes(1)), None);
        assert_eq!(max.saturating_add(Bytes(1)), max);
        assert_eq!(Bytes(1).checked_sub(Bytes(2)), None);
        assert_eq!(Bytes(1).saturating_sub(Bytes(2)), Bytes::ZERO);
        assert_eq!([max, max].into_iter().sum::<Bytes>(), max);
        assert_eq!(Bytes::from_kib(u64::MAX), max);
        assert_eq!(max.checked_round_up(65_536), None);
        assert_eq!(Bytes(1).checked_round_up(0), None);
        assert_eq!(Bytes(1).checked_round_up(65_536), Some(Bytes(65_536)));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            amount in prop_oneof![
                1..=u64::MAX,
                1..1_000_000u64,
                (1..1000u64).prop_map(|n| n * (GIB / 4)),
            ],
        ) {
            prop_assert_eq!(Bytes(amount).to_string().parse(), Ok(Size::Bytes(Bytes(amount))));
        }

        #[test]
        fn a_written_share_is_read_back(hundredths in 1..=10_000u16) {
            let size = Size::Percent { hundredths };
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_gives_one_line(text in ".{0,24}") {
            if let Err(error) = text.parse::<Size>() {
                prop_assert_eq!(error.to_string().lines().count(), 1);
            }
        }
    }
}
