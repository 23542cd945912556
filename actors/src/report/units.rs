//! Figures for people: counts, bytes, seconds, joules with their quality.

use greengnn_energy::quality::Quality;

/// What stands where there is no figure.
pub const NONE: &str = "-";

/// `1,234,567`.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// [`count`] with a sign where the value is negative.
pub fn signed_count(value: i64) -> String {
    let sign = if value < 0 { "-" } else { "" };
    format!("{sign}{}", count(value.unsigned_abs()))
}

const BYTE_UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// `1.23 MiB`; powers of 1,024, three digits.
pub fn bytes(value: u64) -> String {
    scaled(value as f64, 1024.0, &BYTE_UNITS)
}

/// The greatest unit that is not above `value`, for an axis: its bytes and its name.
pub fn byte_unit(value: u64) -> (f64, &'static str) {
    let power = (value.max(1).ilog2() / 10) as usize;
    let power = power.min(BYTE_UNITS.len() - 1);
    (1024f64.powi(power as i32), BYTE_UNITS[power])
}

/// `12.3 ms`, `4.56 s`, `3 min 20 s`, `1 h 05 min`.
pub fn seconds(value: f64) -> String {
    if !value.is_finite() || value < 0.0 {
        return NONE.into();
    }
    if value == 0.0 {
        return "0 s".into();
    }
    if value < 0.9995e-3 {
        return format!("{} µs", three_digits(value * 1e6));
    }
    if value < 0.9995 {
        return format!("{} ms", three_digits(value * 1e3));
    }
    if value < 99.95 {
        return format!("{} s", three_digits(value));
    }
    let whole = value.round() as u64;
    match whole {
        ..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// `812 J`, `1.23 kJ`. The quality is the caller's to add: [`energy`] has both.
pub fn joules(value: f64) -> String {
    scaled(value, 1000.0, &["J", "kJ", "MJ", "GJ"])
}

/// `12.3 W`. The quality is the caller's to add.
pub fn watts(value: f64) -> String {
    scaled(value, 1000.0, &["W", "kW", "MW", "GW"])
}

/// `812 J measured`, `1.23 kJ estimated`, or `unavailable`: a figure that is not known is never 0.
pub fn energy(energy_j: Option<f64>, quality: Quality) -> String {
    match (energy_j, quality) {
        (Some(value), quality) if quality != Quality::Unavailable && value.is_finite() => {
            format!("{} {quality}", joules(value))
        }
        _ => Quality::Unavailable.to_string(),
    }
}

/// `12.3 %` of a share from 0 to 1.
pub fn percent(share: Option<f64>) -> String {
    match share {
        Some(share) if share.is_finite() => format!("{:.1} %", share * 100.0),
        _ => NONE.into(),
    }
}

/// `0.734`.
pub fn accuracy(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.3}"),
        _ => NONE.into(),
    }
}

/// `1.2345`, or `not finite`.
pub fn loss(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.4}")
    } else {
        "not finite".into()
    }
}

/// A number with one word: `1 epoch`, `2 epochs`.
pub fn plural(value: u64, word: &str) -> String {
    format!("{} {word}{}", count(value), if value == 1 { "" } else { "s" })
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // 999.5 would be written as 1000.
    while unit + 1 < units.len() && value.abs() >= (base - 0.5).min(999.5) {
        value /= base;
        unit += 1;
    }
    if unit == 0 && value.fract() == 0.0 {
        return format!("{value:.0} {}", units[0]);
    }
    format!("{} {}", three_digits(value), units[unit])
}

/// Three significant digits of a value below 1,000, as a plain decimal.
fn three_digits(value: f64) -> String {
    match value.abs() {
        magnitude if magnitude >= 99.95 => format!("{value:.0}"),
        magnitude if magnitude >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_000), "1,000");
        assert_eq!(count(12_345_678), "12,345,678");
        assert_eq!(signed_count(-12_345), "-12,345");
        assert_eq!(signed_count(i64::MIN), "-9,223,372,036,854,775,808");
        assert_eq!(plural(1, "epoch"), "1 epoch");
        assert_eq!(plural(2_000, "epoch"), "2,000 epochs");
    }

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1023), "1.00 KiB");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(bytes(10 * 1024 * 1024), "10.0 MiB");
        assert_eq!(bytes(u64::MAX), "16384 PiB");
        assert_eq!(byte_unit(0), (1.0, "B"));
        assert_eq!(byte_unit(1023), (1.0, "B"));
        assert_eq!(byte_unit(5 << 20), (1_048_576.0, "MiB"));
        assert_eq!(byte_unit(u64::MAX).1, "PiB");
    }

    #[test]
    fn seconds_have_the_unit_that_fits() {
        assert_eq!(seconds(0.0), "0 s");
        assert_eq!(seconds(0.000_012_34), "12.3 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(0.9996), "1.00 s");
        assert_eq!(seconds(59.96), "60.0 s");
        assert_eq!(seconds(200.0), "3 min 20 s");
        assert_eq!(seconds(3_900.0), "1 h 05 min");
        assert_eq!(seconds(f64::NAN), NONE);
    }

    #[test]
    fn a_joule_never_stands_without_its_quality() {
        assert_eq!(energy(Some(812.0), Quality::Measured), "812 J measured");
        assert_eq!(energy(Some(1_234.0), Quality::Estimated), "1.23 kJ estimated");
        assert_eq!(energy(Some(0.0), Quality::Integrated), "0 J integrated");
    }

    #[test]
    fn energy_that_is_not_known_is_not_zero() {
        assert_eq!(energy(None, Quality::Unavailable), "unavailable");
        assert_eq!(energy(None, Quality::Measured), "unavailable");
        assert_eq!(energy(Some(0.0), Quality::Unavailable), "unavailable");
        assert_eq!(energy(Some(f64::NAN), Quality::Measured), "unavailable");
    }

    #[test]
    fn shares_and_scores() {
        assert_eq!(percent(Some(0.1234)), "12.3 %");
        assert_eq!(percent(None), NONE);
        assert_eq!(accuracy(Some(0.7345)), "0.735");
        assert_eq!(accuracy(None), NONE);
        assert_eq!(loss(1.5), "1.5000");
        assert_eq!(loss(f64::NAN), "not finite");
    }
}
