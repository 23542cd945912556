//! How much memory a rank may use for remote rows, as a person writes it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Cache memory per rank: `25%`, `64MiB` or `1000rows`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Budget {
    /// A share of all rows that the rank does not own, in millionths: `25%` is 250,000.
    Share { millionths: u32 },
    /// Bytes; a part of a row counts for nothing.
    Bytes(u64),
    /// Rows.
    Rows(u64),
}

/// Why a text is not a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    #[error("the budget {0:?} has no unit, write a share such as 25%, bytes such as 64MiB, or rows such as 1000rows")]
    NoUnit(String),
    #[error("the budget {text:?} has the unknown unit {unit:?}, write %, B, KiB, MiB, GiB, KB, MB, GB or rows")]
    UnknownUnit { text: String, unit: String },
    #[error("the budget {0:?} does not start with a number, write for example 25%, 64MiB or 1000rows")]
    NoNumber(String),
    #[error("the budget {0:?} is more than all remote rows, write at most 100%")]
    AboveAll(String),
    #[error(
        "the budget {0:?} is finer than can be kept, write at most four decimals of a percent, and whole bytes or rows"
    )]
    TooFine(String),
    #[error("the budget {0:?} is too large a number")]
    TooLarge(String),
}

const ALL: u32 = 1_000_000;

impl Budget {
    /// The budget in rows of `row_bytes`, for a rank that does not own `remote_rows` rows; never more than these.
    pub fn rows(&self, row_bytes: usize, remote_rows: u32) -> u32 {
        let rows = match *self {
            // Below 2^52: a u32 times a million.
            Budget::Share { millionths } => u64::from(remote_rows) * u64::from(millionths) / u64::from(ALL),
            // Rows without bytes fit into any memory.
            Budget::Bytes(bytes) => bytes.checked_div(row_bytes as u64).unwrap_or(u64::MAX),
            Budget::Rows(rows) => rows,
        };
        // At most `remote_rows`, so the cast keeps the value.
        rows.min(u64::from(remote_rows)) as u32
    }
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let trimmed = text.trim();
        let digits_end = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..digits_end], trimmed[digits_end..].trim());
        if unit == "%" {
            let millionths = scaled(number, 10_000, text)?;
            return match u32::try_from(millionths) {
                Ok(millionths) if millionths <= ALL => Ok(Budget::Share { millionths }),
                _ => Err(BudgetError::AboveAll(text.to_owned())),
            };
        }
        let bytes_per_unit = match unit.to_ascii_lowercase().as_str() {
            "row" | "rows" => return Ok(Budget::Rows(scaled(number, 1, text)?)),
            "b" | "bytes" => 1,
            "kib" => 1 << 10,
            "mib" => 1 << 20,
            "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "" => match scaled(number, 1, text)? {
                0 => 1,
                _ => return Err(BudgetError::NoUnit(text.to_owned())),
            },
            _ if number.is_empty() => return Err(BudgetError::NoNumber(text.to_owned())),
            _ => {
                return Err(BudgetError::UnknownUnit {
                    text: text.to_owned(),
                    unit: unit.to_owned(),
                });
            }
        };
        Ok(Budget::Bytes(scaled(number, bytes_per_unit, text)?))
    }
}

/// The decimal number `number` times `scale`, which must come out whole.
fn scaled(number: &str, scale: u64, text: &str) -> Result<u64, BudgetError> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    if whole.is_empty() || fraction.contains('.') {
        return Err(BudgetError::NoNumber(text.to_owned()));
    }
    let too_large = || BudgetError::TooLarge(text.to_owned());
    let too_fine = || BudgetError::TooFine(text.to_owned());
    let whole: u64 = whole.parse().map_err(|_| too_large())?;
    let mut value = whole.checked_mul(scale).ok_or_else(too_large)?;
    if !fraction.is_empty() {
        // More than 18 decimals do not fit the product, and no scale here makes them whole.
        if fraction.len() > 18 {
            return Err(too_fine());
        }
        let numerator: u128 = fraction.parse().map_err(|_| too_fine())?;
        let product = numerator * u128::from(scale);
        let divisor = 10u128.pow(fraction.len() as u32);
        if !product.is_multiple_of(divisor) {
            return Err(too_fine());
        }
        // Below `scale`, hence within a u64.
        value = value.checked_add((product / divisor) as u64).ok_or_else(too_large)?;
    }
    Ok(value)
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Share { millionths } => {
                write!(f, "{}", millionths / 10_000)?;
                match millionths % 10_000 {
                    0 => {}
                    fraction => write!(f, ".{}", format!("{fraction:04}").trim_end_matches('0'))?,
                }
                f.write_str("%")
            }
            Budget::Bytes(bytes) => {
                let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
                match units.iter().find(|(_, size)| *bytes > 0 && bytes % size == 0) {
                    Some((unit, size)) => write!(f, "{}{unit}", bytes / size),
                    None => write!(f, "{bytes}B"),
                }
            }
            Budget::Rows(rows) => write!(f, "{rows}rows"),
        }
    }
}

impl TryFrom<String> for Budget {
    type Error = BudgetError;

    fn try_from(text: String) -> Result<Self, BudgetError> {
        text.parse()
    }
}

impl From<Budget> for String {
    fn from(budget: Budget) -> Self {
        budget.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(text: &str, row_bytes: usize, remote_rows: u32) -> u32 {
        text.parse::<Budget>().unwrap().rows(row_bytes, remote_rows)
    }

    #[test]
    fn shares_bytes_and_rows_come_out_in_whole_rows() {
        assert_eq!(rows("25%", 512, 1000), 250);
        assert_eq!(rows("12.5 %", 512, 1000), 125);
        assert_eq!(rows("33.3333%", 512, 3), 0);
        assert_eq!(rows("100%", 512, u32::MAX), u32::MAX);
        assert_eq!(rows("0%", 512, 1000), 0);
        assert_eq!(rows("64MiB", 512, u32::MAX), 131_072);
        assert_eq!(rows("1.5KiB", 512, 1000), 3);
        assert_eq!(rows("1MB", 1000, u32::MAX), 1000);
        assert_eq!(rows("511B", 512, 1000), 0);
        assert_eq!(rows("7 rows", 512, 1000), 7);
        assert_eq!(rows("1row", 512, 1000), 1);
        assert_eq!(rows("0", 512, 1000), 0);
    }

    #[test]
    fn no_budget_is_above_the_remote_rows_and_empty_rows_always_fit() {
        assert_eq!(rows("5000rows", 512, 1000), 1000);
        assert_eq!(rows("64GiB", 4, 1000), 1000);
        assert_eq!(rows("1B", 0, 1000), 1000);
    }

    #[test]
    fn a_text_that_is_no_budget_says_what_is_wrong() {
        let parse = |text: &str| text.parse::<Budget>().unwrap_err();
        assert_eq!(parse("25"), BudgetError::NoUnit("25".into()));
        assert_eq!(parse("%"), BudgetError::NoNumber("%".into()));
        assert_eq!(parse("MiB"), BudgetError::NoNumber("MiB".into()));
        assert_eq!(parse("much"), BudgetError::NoNumber("much".into()));
        assert_eq!(parse("-1rows"), BudgetError::NoNumber("-1rows".into()));
        assert_eq!(parse("1.2.3%"), BudgetError::NoNumber("1.2.3%".into()));
        assert_eq!(parse("101%"), BudgetError::AboveAll("101%".into()));
        assert_eq!(parse("1.00001%"), BudgetError::TooFine("1.00001%".into()));
        assert_eq!(parse("1.5rows"), BudgetError::TooFine("1.5rows".into()));
        assert_eq!(
            parse("99999999999999999999B"),
            BudgetError::TooLarge("99999999999999999999B".into())
        );
        assert_eq!(
            parse("99999999999999999GiB"),
            BudgetError::TooLarge("99999999999999999GiB".into())
        );
        assert_eq!(
            parse("64parsecs"),
            BudgetError::UnknownUnit {
                text: "64parsecs".into(),
                unit: "parsecs".into()
            }
        );
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(millionths in 0..=ALL, bytes in any::<u64>(), rows in any::<u64>(), shift in 0u32..40) {
            for budget in [Budget::Share { millionths }, Budget::Bytes(bytes >> shift << shift), Budget::Rows(rows)] {
                prop_assert_eq!(budget.to_string().parse::<Budget>(), Ok(budget));
            }
        }

        #[test]
        fn any_text_is_answered_without_a_panic(text in "\\PC*") {
            let _ = text.parse::<Budget>().map(|budget| budget.rows(512, 1000));
        }
    }
}
