//! Numbers of any type into the type that is wished for, exactly or not at all.

use std::fmt;

use super::Dtype;

/// One value of an array whose type is known only from its header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Unsigned(value) => value.fmt(f),
            Number::Signed(value) => value.fmt(f),
            Number::Float(value) => value.fmt(f),
        }
    }
}

impl Number {
    /// Reads one value from its bytes, of which there must be `dtype.size()`; missing ones read as zero.
    #[inline(always)]
    pub(super) fn from_bytes(dtype: Dtype, bytes: &[u8]) -> Self {
        let mut wide = [0u8; 8];
        let size = dtype.size().min(bytes.len());
        wide[..size].copy_from_slice(&bytes[..size]);
        let bits = u64::from_le_bytes(wide);
        match dtype {
            Dtype::Bool | Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => Number::Unsigned(bits),
            Dtype::I8 => Number::Signed(i64::from(bits as u8 as i8)),
            Dtype::I16 => Number::Signed(i64::from(bits as u16 as i16)),
            Dtype::I32 => Number::Signed(i64::from(bits as u32 as i32)),
            Dtype::I64 => Number::Signed(bits as i64),
            Dtype::F16 => Number::Float(f64::from(half_to_f32(bits as u16))),
            Dtype::F32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
            Dtype::F64 => Number::Float(f64::from_bits(bits)),
        }
    }
}

/// A type that values of another type can become. `None` is a value that would change, except that floats may be rounded
/// to a narrower float.
pub trait FromNumber: Copy {
    /// What a value that does not fit is told: "{value} {WANTED}".
    const WANTED: &'static str;

    fn from_number(number: Number) -> Option<Self>;
}

/// An integer that a float stands for exactly; beyond 2^53 floats skip integers, and ids that large are no ids.
fn whole(value: f64) -> Option<i64> {
    let exact = value.trunc() == value && value.abs() <= (1u64 << 53) as f64;
    exact.then_some(value as i64)
}

macro_rules! integers {
    ($($type:ty => $wanted:expr),* $(,)?) => {
        $(impl FromNumber for $type {
            const WANTED: &'static str = $wanted;

            fn from_number(number: Number) -> Option<Self> {
                match number {
                    Number::Unsigned(value) => Self::try_from(value).ok(),
                    Number::Signed(value) => Self::try_from(value).ok(),
                    Number::Float(value) => whole(value).and_then(|value| Self::try_from(value).ok()),
                }
            }
        })*
    };
}

integers! {
    u32 => "is not a whole number from 0 to 4294967295",
    u64 => "is not a whole number of at least 0",
    i64 => "is not a whole number in 64 bits",
}

impl FromNumber for f32 {
    const WANTED: &'static str = "is not a finite number in 32 bits";

    fn from_number(number: Number) -> Option<Self> {
        let value = f64::from_number(number)? as f32;
        value.is_finite().then_some(value)
    }
}

/// Takes any value as it is, for those who look at it themselves.
impl FromNumber for Number {
    const WANTED: &'static str = "is not a number";

    fn from_number(number: Number) -> Option<Self> {
        Some(number)
    }
}

/// Takes NaN and the infinities as they are: labels may be NaN.
impl FromNumber for f64 {
    const WANTED: &'static str = "is not a number";

    fn from_number(number: Number) -> Option<Self> {
        Some(match number {
            Number::Unsigned(value) => value as f64,
            Number::Signed(value) => value as f64,
            Number::Float(value) => value,
        })
    }
}

/// IEEE 754 binary16 to binary32, exactly.
fn half_to_f32(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let exponent = u32::from(half >> 10) & 0x1f;
    let fraction = u32::from(half) & 0x3ff;
    match (exponent, fraction) {
        (0, _) => {
            // Zero and subnormals: fraction times 2^-24.
            let magnitude = fraction as f32 * f32::from_bits(0x3380_0000);
            f32::from_bits(magnitude.to_bits() | sign)
        }
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | (fraction << 13)),
        _ => f32::from_bits(sign | ((exponent + 112) << 23) | (fraction << 13)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_covers_every_kind_of_value() {
        let cases = [
            (0x0000, 0.0),
            (0x8000, -0.0),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x0001, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x0400, 2f32.powi(-14)),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ];
        for (half, value) in cases {
            assert_eq!(half_to_f32(half).to_bits(), f32::to_bits(value), "half {half:#06x}");
        }
        assert!(half_to_f32(0x7e00).is_nan());
    }

    #[test]
    fn a_number_becomes_another_type_exactly_or_not_at_all() {
        assert_eq!(u32::from_number(Number::Signed(-1)), None);
        assert_eq!(u32::from_number(Number::Unsigned(1 << 32)), None);
        assert_eq!(u32::from_number(Number::Float(3.0)), Some(3));
        assert_eq!(u32::from_number(Number::Float(3.5)), None);
        assert_eq!(i64::from_number(Number::Float(f64::NAN)), None);
        assert_eq!(i64::from_number(Number::Unsigned(u64::MAX)), None);
        assert_eq!(i64::from_number(Number::Float(1e300)), None);
        assert_eq!(f32::from_number(Number::Float(1e300)), None);
        assert_eq!(f32::from_number(Number::Float(f64::NAN)), None);
        assert_eq!(f32::from_number(Number::Signed(-7)), Some(-7.0));
    }
}
