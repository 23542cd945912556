//! How a remote row travels and is kept: as it is, or in fewer bits.
//!
//! A row is encoded once, by its owner, and decoded where a batch is assembled; in between it is bytes. A rank's own
//! rows are never encoded. Encoding is a function of the row alone, so weights do not depend on who asks when.
//!
//! | type | bytes of a row of `w` values | a value comes back as |
//! |---|---|---|
//! | `f32` | 4 w | itself |
//! | `f16` | 2 w | the nearest IEEE 754 binary16, ties to even: within 2⁻¹¹ of its size down to 6·10⁻⁵; infinite beyond 65,519 |
//! | `bf16` | 2 w | the nearest bfloat16, ties to even: within 2⁻⁸ of its size, in the range of f32 |
//! | `int8` | w + 4 | the nearest multiple of the row's scale, ties to even: within 0.4 % of the row's largest size |
//!
//! Values are little endian. An int8 row starts with its scale as f32, of which the values are multiples from -127 to
//! 127. Encoding a decoded row gives the same bytes again.
//!
//! What is not finite stays visible: f16 and bf16 keep infinities and NaN, and an int8 row that holds one decodes to NaN
//! throughout.

use std::fmt;
use std::str::FromStr;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The encoding of remote rows, one for a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowType {
    #[default]
    F32,
    F16,
    Bf16,
    /// Eight bits a value and one scale per row.
    Int8,
}

/// A text that names no row type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no row type {0:?}, write f32, f16, bf16 or int8")]
pub struct UnknownRowType(String);

/// Bytes of the scale in front of an int8 row.
const SCALE_BYTES: usize = size_of::<f32>();

/// Values that are converted to halves at a time.
const HALVES: usize = 64;

impl RowType {
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Int8];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }

    /// Bytes of an encoded row of `width` values.
    pub fn row_bytes(self, width: usize) -> usize {
        match self {
            Self::F32 => width * 4,
            Self::F16 | Self::Bf16 => width * 2,
            Self::Int8 => SCALE_BYTES + width,
        }
    }

    /// Encodes `row` into `bytes`, of which there are [`row_bytes`](Self::row_bytes).
    pub fn encode(self, row: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F32 => bytes.copy_from_slice(bytemuck::cast_slice(row)),
            Self::F16 => {
                let mut halves = [f16::ZERO; HALVES];
                for (values, bytes) in row.chunks(HALVES).zip(bytes.chunks_mut(2 * HALVES)) {
                    let halves = &mut halves[..values.len()];
                    halves.convert_from_f32_slice(values);
                    for (half, bytes) in halves.iter().zip(bytes.as_chunks_mut().0) {
                        *bytes = half.to_le_bytes();
                    }
                }
            }
            Self::Bf16 => {
                for (value, bytes) in row.iter().zip(bytes.as_chunks_mut().0) {
                    *bytes = bf16::from_f32(*value).to_le_bytes();
                }
            }
            Self::Int8 => {
                if let Some((scale_bytes, values)) = bytes.split_first_chunk_mut() {
                    let scale = int8_scale(row);
                    *scale_bytes = scale.to_le_bytes();
                    quantise(row, scale, values);
                }
            }
        }
    }

    /// The row that [`encode`](Self::encode) made `bytes` of, or the one nearest to it, into `row`.
    #[inline(always)]
    pub fn decode(self, bytes: &[u8], row: &mut [f32]) {
        match self {
            Self::F32 => bytemuck::cast_slice_mut(row).copy_from_slice(bytes),
            Self::F16 => decode_f16(bytes, row),
            Self::Bf16 => {
                for (value, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                }
            }
            Self::Int8 => {
                if let Some((scale, values)) = bytes.split_first_chunk() {
                    let scale = f32::from_le_bytes(*scale);
                    for (value, multiple) in row.iter_mut().zip(values) {
                        *value = f32::from(*multiple as i8) * scale;
                    }
                }
            }
        }
    }

    /// The values of an encoded row where they lie, if they are stored as f32 values and aligned as such.
    #[inline(always)]
    pub fn values(self, bytes: &[u8]) -> Option<&[f32]> {
        match self {
            Self::F32 => bytemuck::try_cast_slice(bytes).ok(),
            _ => None,
        }
    }
}

fn decode_f16(bytes: &[u8], row: &mut [f32]) {
    match bytemuck::try_cast_slice::<u8, u16>(bytes) {
        // Several values per instruction where the processor can.
        Ok(halves) => {
            let halves: &[f16] = half::slice::HalfBitsSliceExt::reinterpret_cast(halves);
            halves.convert_to_f32_slice(row);
        }
        Err(_) => {
            for (value, bytes) in row.iter_mut().zip(bytes.as_chunks().0) {
                *value = f16::from_le_bytes(*bytes).to_f32();
            }
        }
    }
}

/// What the values of an int8 row are multiples of: the largest size over 127, to 17 bits, so that its multiples up to
/// 127 are exact in f32. Zero for a row of zeros, and for one of values so small (below 2·10⁻³⁶) that the scale would
/// be subnormal; NaN for a row with a value that is not finite.
fn int8_scale(row: &[f32]) -> f32 {
    if !row.iter().all(|value| value.is_finite()) {
        return f32::NAN;
    }
    let largest = row.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    if !scale.is_normal() {
        return 0.0;
    }
    // 127 has seven bits, so a scale whose last seven bits are zero has exact multiples: decoding does not round, and a
    // decoded row has the scale that it was made with.
    const LAST: u32 = 0x7F;
    let nearest = f32::from_bits((scale.to_bits() + LAST.div_ceil(2)) & !LAST);
    if (nearest * 127.0).is_finite() {
        nearest
    } else {
        f32::from_bits(scale.to_bits() & !LAST)
    }
}

fn quantise(row: &[f32], scale: f32, multiples: &mut [u8]) {
    if scale == 0.0 || scale.is_nan() {
        multiples.fill(0);
        return;
    }
    // Added to a number below 2²² it leaves no bit for a fraction, and the sum is rounded to even. Unlike
    // `round_ties_even` it is one instruction for several values on every processor.
    const ROUNDS: f32 = 12_582_912.0;
    for (value, multiple) in row.iter().zip(multiples) {
        let rounded = (value / scale + ROUNDS) - ROUNDS;
        // In range unless the largest value is near that of f32.
        *multiple = (rounded.clamp(-127.0, 127.0) as i8) as u8;
    }
}

impl fmt::Display for RowType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RowType {
    type Err = UnknownRowType;

    fn from_str(text: &str) -> Result<Self, UnknownRowType> {
        let named = Self::ALL.into_iter().find(|row_type| row_type.name() == text);
        named.ok_or_else(|| UnknownRowType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests;
