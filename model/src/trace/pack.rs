//! Lists of u32 in as few bits as they need: 128 at a time with one width each, the rest with a width of their own.
//!
//! Full blocks are in the layout of `BitPacker4x` (Lemire and Boytsov, "Decoding billions of integers per second through
//! vectorization", 2015: four interleaved lanes), the tail is packed from the lowest bit up. Nothing is written for an
//! empty list, and the length of a list is known from elsewhere.

use bitpacking::{BitPacker, BitPacker4x};

const BLOCK: usize = BitPacker4x::BLOCK_LEN;

/// Appends `values` in any order.
pub(super) fn pack(values: &[u32], out: &mut Vec<u8>) {
    let packer = BitPacker4x::new();
    let blocks = values.chunks_exact(BLOCK);
    let tail = blocks.remainder();
    for block in blocks {
        let width = packer.num_bits(block);
        let space = block_space(width, out);
        packer.compress(block, space, width);
    }
    pack_tail(tail, out);
}

/// Appends values that strictly ascend, as differences less one.
pub fn pack_ascending(values: &[u32], out: &mut Vec<u8>) {
    let packer = BitPacker4x::new();
    let blocks = values.chunks_exact(BLOCK);
    let tail = blocks.remainder();
    let mut before = None;
    for block in blocks {
        let width = packer.num_bits_strictly_sorted(before, block);
        let space = block_space(width, out);
        packer.compress_strictly_sorted(before, block, space, width);
        before = block.last().copied();
    }
    let gaps: Vec<u32> = tail
        .iter()
        .map(|value| {
            let gap = before.map_or(*value, |before| value - before - 1);
            before = Some(*value);
            gap
        })
        .collect();
    pack_tail(&gaps, out);
}

/// Appends the width and room for one block, which is returned.
fn block_space(width: u8, out: &mut Vec<u8>) -> &mut [u8] {
    out.push(width);
    let start = out.len();
    out.resize(start + BitPacker4x::compressed_block_size(width), 0);
    &mut out[start..]
}

fn pack_tail(values: &[u32], out: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let all = values.iter().fold(0, |all, value| all | value);
    let width = u32::BITS - all.leading_zeros();
    out.push(width as u8);
    let (mut buffer, mut filled) = (0u64, 0u32);
    for value in values {
        buffer |= u64::from(*value) << filled;
        filled += width;
        while filled >= 8 {
            out.push(buffer as u8);
            buffer >>= 8;
            filled -= 8;
        }
    }
    if filled > 0 {
        out.push(buffer as u8);
    }
}

/// Why packed numbers cannot be unpacked.
pub type Malformed = &'static str;

const SHORT: Malformed = "it ends before its lists do";

/// Bytes of a section that are read from front to back.
pub struct Unpacker<'a> {
    bytes: &'a [u8],
}

impl<'a> Unpacker<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(SHORT)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// The next number of two bytes, little endian.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// The next number of four bytes, little endian.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Refuses bytes that are left.
    pub fn end(&self) -> Result<(), Malformed> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err("it has bytes after its last list")
        }
    }

    /// Reads what `pack` wrote for `count` values.
    pub fn unpack(&mut self, count: usize) -> Result<Vec<u32>, Malformed> {
        let packer = BitPacker4x::new();
        let mut values = self.room(count)?;
        let mut blocks = values.chunks_exact_mut(BLOCK);
        for block in &mut blocks {
            let (width, bytes) = self.block()?;
            packer.decompress(bytes, block, width);
        }
        self.unpack_tail(blocks.into_remainder())?;
        Ok(values)
    }

    /// Reads what [`pack_ascending`] wrote for `count` values, all of which must lie below `bound`.
    pub fn unpack_ascending(&mut self, count: usize, bound: u32) -> Result<Vec<u32>, Malformed> {
        let packer = BitPacker4x::new();
        let mut values = self.room(count)?;
        let mut before = None;
        let mut blocks = values.chunks_exact_mut(BLOCK);
        for block in &mut blocks {
            let (width, bytes) = self.block()?;
            packer.decompress_strictly_sorted(before, bytes, block, width);
            before = block.last().copied();
        }
        let tail = blocks.into_remainder();
        self.unpack_tail(tail)?;
        for value in tail {
            *value = before.map_or(*value, |before| before.wrapping_add(*value).wrapping_add(1));
            before = Some(*value);
        }
        // Sums wrap around on damaged input, so the order has to be looked at.
        let ascending = values.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || values.last().is_some_and(|last| *last >= bound) {
            return Err("its rows do not ascend or lie outside of their part");
        }
        Ok(values)
    }

    /// Zeros for `count` values, of which 128 take at least one byte: more than the bytes can hold are not reserved.
    fn room(&self, count: usize) -> Result<Vec<u32>, Malformed> {
        if count.div_ceil(BLOCK) > self.bytes.len() {
            return Err(SHORT);
        }
        Ok(vec![0; count])
    }

    fn width(&mut self) -> Result<u8, Malformed> {
        match self.take(1)?[0] {
            width @ 0..=32 => Ok(width),
            _ => Err("a list is more than 32 bits wide"),
        }
    }

    fn block(&mut self) -> Result<(u8, &'a [u8]), Malformed> {
        let width = self.width()?;
        Ok((width, self.take(BitPacker4x::compressed_block_size(width))?))
    }

    fn unpack_tail(&mut self, values: &mut [u32]) -> Result<(), Malformed> {
        if values.is_empty() {
            return Ok(());
        }
        let width = u32::from(self.width()?);
        let bytes = self.take((values.len() * width as usize).div_ceil(8))?;
        let mask = (1u64 << width) - 1;
        let mut bytes = bytes.iter();
        let (mut buffer, mut filled) = (0u64, 0u32);
        for value in values {
            while filled < width {
                buffer |= u64::from(bytes.next().copied().unwrap_or(0)) << filled;
                filled += 8;
            }
            *value = (buffer & mask) as u32;
            buffer >>= width;
            filled -= width;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
