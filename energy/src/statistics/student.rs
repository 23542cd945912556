//! Quantiles of Student's t distribution.

/// The quantile of the standard normal distribution at 0.975.
const Z_975: f64 = 1.959_963_984_540_054;
/// What lies outside the interval, on both sides together.
const OUTSIDE: f64 = 0.05;
/// From so many degrees of freedom on three terms of the expansion in their reciprocal are right to eleven digits.
const MANY: f64 = 1000.0;
/// Newton's steps come from below and never go past the quantile; from one degree of freedom on they are fewer than 20.
const MOST_STEPS: usize = 64;
/// A continued fraction of so many terms has long converged below `MANY` degrees of freedom.
const MOST_TERMS: usize = 1000;

/// The 97.5 % quantile of Student's t for any number of degrees of freedom, whole or not: a mean lies within so many
/// standard errors with a probability of 95 %.
///
/// It is right to ten digits. Less than one degree of freedom counts as one, which is what Welch's formula cannot go below
/// but for rounding.
pub fn student_t_975(freedom: f64) -> f64 {
    student_t_of_several(freedom, 1)
}

/// The same where several comparisons are made at once, and none of them may be wrong with a probability of 95 %
/// (Bonferroni). With so many degrees of freedom that they make no difference those of 1000 are taken.
pub fn student_t_of_several(freedom: f64, comparisons: usize) -> f64 {
    let freedom = freedom.max(1.0);
    if freedom >= MANY && comparisons <= 1 {
        return expansion(freedom);
    }
    let freedom = freedom.min(MANY);
    let outside = OUTSIDE / comparisons.max(1) as f64;
    // The tails are a convex, falling function of t, so that Newton's steps from the left stay on the left.
    let mut t = Z_975;
    for _ in 0..MOST_STEPS {
        let step = (tails(t, freedom) - outside) / (2.0 * density(t, freedom));
        t += step;
        if step.abs() <= 1e-13 * t {
            break;
        }
    }
    t
}

/// Abramowitz and Stegun 26.7.5.
fn expansion(freedom: f64) -> f64 {
    let z = Z_975;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + (first + (second + third / freedom) / freedom) / freedom
}

/// The probability of more than `t` or less than `-t`: the regularised incomplete beta function `I_x(freedom / 2, 1 / 2)`
/// at `x = freedom / (freedom + t^2)` (Abramowitz and Stegun 26.5.27), for `t^2` of at least 3.
///
/// Its continued fraction (DLMF 8.17.22) converges fast there: `x < (a + 1) / (a + b + 2)`.
fn tails(t: f64, freedom: f64) -> f64 {
    let (a, b) = (freedom / 2.0, 0.5);
    let x = freedom / (freedom + t * t);
    // Lentz's method, as modified by Thompson and Barnett (1986).
    let nonzero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let (mut c, mut d) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for term in 1..MOST_TERMS {
        let m = term as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for coefficient in [even, odd] {
            d = 1.0 / nonzero(1.0 + coefficient * d);
            c = nonzero(1.0 + coefficient / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    // In front of the fraction stands x^a (1 - x)^b / (a B(a, b)), which is this multiple of the density.
    2.0 * density(t, freedom) * t / freedom * fraction
}

/// The density at `t`.
fn density(t: f64, freedom: f64) -> f64 {
    let shape = -(freedom + 1.0) / 2.0 * (t * t / freedom).ln_1p();
    gamma_ratio(freedom / 2.0) / (std::f64::consts::PI * freedom).sqrt() * shape.exp()
}

/// `gamma(x + 1/2) / gamma(x)`: its expansion for large `x`, from which smaller ones follow by
/// `gamma(x + 1) = x gamma(x)`.
fn gamma_ratio(x: f64) -> f64 {
    let (mut x, mut factor) = (x, 1.0);
    while x < 32.0 {
        factor *= x / (x + 0.5);
        x += 1.0;
    }
    let r = 1.0 / x;
    let terms = [
        -1.0 / 8.0,
        1.0 / 128.0,
        5.0 / 1024.0,
        -21.0 / 32_768.0,
        -399.0 / 262_144.0,
    ];
    let series = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * r);
    factor * x.sqrt() * (1.0 + series)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        // Of one, two and four degrees of freedom there are closed forms; the others are from published tables.
        let two = 0.95 * (2.0 / (1.0 - 0.95_f64.powi(2))).sqrt();
        for (freedom, quantile) in [
            (1.0, (0.475 * std::f64::consts::PI).tan()),
            (2.0, two),
            (3.0, 3.182_446_305_28),
            (4.0, 2.776_445_105_2),
            (5.0, 2.570_581_835_6),
            (10.0, 2.228_138_851_96),
            (29.0, 2.045_229_642_1),
            (30.0, 2.042_272_456_3),
            (60.0, 2.000_297_822_01),
            (120.0, 1.979_930_405_05),
            (1000.0, 1.962_339_080_8),
            (10_000.0, 1.960_201_239_9),
        ] {
            let found = student_t_975(freedom);
            assert!((found - quantile).abs() < 1e-9 * quantile, "{freedom}: {found}");
        }
    }

    #[test]
    fn quantiles_fall_to_that_of_the_normal_distribution_without_a_step() {
        let mut before = student_t_975(1.0);
        let mut freedom = 1.0;
        while freedom < 1e9 {
            freedom *= 1.07;
            let quantile = student_t_975(freedom);
            assert!(
                quantile < before && quantile > Z_975,
                "{freedom}: {quantile} after {before}"
            );
            before = quantile;
        }
        assert!((student_t_975(MANY * (1.0 - 1e-9)) - student_t_975(MANY)).abs() < 1e-10);
        assert_eq!(student_t_975(f64::INFINITY), Z_975);
        assert_eq!(student_t_975(1.0 - 1e-15), student_t_975(1.0));
    }

    #[test]
    fn fractions_of_a_degree_lie_where_integrating_the_density_puts_them() {
        for freedom in [1.0, 1.5, 2.94, 7.3] {
            let quantile = student_t_975(freedom);
            // With t = sqrt(freedom) tan(angle) the density is a power of the cosine on a bounded interval.
            let area = |end: f64| -> f64 {
                let pieces = 200_000;
                let width = end / f64::from(pieces);
                let middles = (0..pieces).map(|piece| (f64::from(piece) + 0.5) * width);
                middles.map(|angle| angle.cos().powf(freedom - 1.0)).sum::<f64>() * width
            };
            let inside = area((quantile / freedom.sqrt()).atan()) / area(std::f64::consts::FRAC_PI_2);
            assert!((inside - 0.95).abs() < 1e-6, "{freedom}: {inside}");
        }
    }
}
