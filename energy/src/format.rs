//! Energy in words: a joule is never printed without its quality.

use crate::quality::Quality;

/// An amount of energy for people: `12.3 kJ (estimated)`, or `unavailable`.
pub fn format_joules(joules: Option<f64>, quality: Quality) -> String {
    match joules {
        Some(joules) if joules.is_finite() && quality != Quality::Unavailable => {
            format!("{} ({quality})", scaled(joules))
        }
        _ => Quality::Unavailable.to_string(),
    }
}

/// Four digits and a unit.
fn scaled(joules: f64) -> String {
    let (value, unit) = match joules.abs() {
        size if size < 1e3 => (joules, "J"),
        size if size < 1e6 => (joules * 1e-3, "kJ"),
        _ => (joules * 1e-6, "MJ"),
    };
    match value.abs() {
        size if size < 10.0 => format!("{value:.2} {unit}"),
        size if size < 100.0 => format!("{value:.1} {unit}"),
        _ => format!("{value:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quality_stands_beside_the_joules() {
        assert_eq!(format_joules(Some(0.5), Quality::Measured), "0.50 J (measured)");
        assert_eq!(format_joules(Some(12_345.0), Quality::Estimated), "12.3 kJ (estimated)");
        assert_eq!(
            format_joules(Some(204_000.0), Quality::Integrated),
            "204 kJ (integrated)"
        );
        assert_eq!(format_joules(Some(3.25e6), Quality::Virtual), "3.25 MJ (virtual)");
    }

    #[test]
    fn what_is_not_known_is_no_number() {
        assert_eq!(format_joules(None, Quality::Measured), "unavailable");
        assert_eq!(format_joules(Some(0.0), Quality::Unavailable), "unavailable");
        assert_eq!(format_joules(Some(f64::NAN), Quality::Measured), "unavailable");
    }
}
