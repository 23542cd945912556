//! The bodies of a stream's frames.
//!
//! A part of a schedule starts with the number of its rows (8 bytes) and lists deliveries: the step (4 bytes), the phase
//! (1 byte), the number of rows (4 bytes), and the rows packed as in a trace. All little endian.

use greengnn_model::book::PartId;
use greengnn_model::counters::Phase;
use greengnn_model::trace::pack::{Unpacker, pack_ascending};

use super::super::Caller;
use super::super::frame::{Fields, FrameKind, HEADER_BYTES, ProtocolError, phase_code, phase_of_code, put_caller};
use super::ScheduledRows;

/// The number of a Schedule frame that is the last of its stream.
pub(super) const LAST: u32 = 1;

/// The question that opens a stream: who asks, which part.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamOpen {
    pub caller: Caller,
    pub owner: PartId,
}

impl StreamOpen {
    pub const BYTES: usize = 9;

    pub fn put(&self, buffer: &mut Vec<u8>) {
        put_caller(buffer, self.caller);
        buffer.extend(self.owner.to_le_bytes());
    }

    pub fn parse(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(FrameKind::StreamOpen, body);
        let (caller, owner) = (fields.caller()?, fields.u16()?);
        fields.end()?;
        Ok(Self { caller, owner })
    }
}

/// What a part counts for in the bound of the schedule ahead. An empty one counts too.
pub(super) fn cost(body_bytes: usize) -> usize {
    HEADER_BYTES + body_bytes
}

/// Appends the body of a part.
pub(super) fn put_part(buffer: &mut Vec<u8>, deliveries: &[ScheduledRows]) {
    let rows: u64 = deliveries.iter().map(|delivery| delivery.rows.len() as u64).sum();
    buffer.extend(rows.to_le_bytes());
    for delivery in deliveries {
        buffer.extend(delivery.step.to_le_bytes());
        buffer.push(phase_code(delivery.phase));
        // The rows ascend as u32, so that their number is one too.
        buffer.extend((delivery.rows.len() as u32).to_le_bytes());
        pack_ascending(&delivery.rows, buffer);
    }
}

/// Rows of all deliveries of a part, as it says.
pub(super) fn part_rows(body: &[u8]) -> Result<u64, ProtocolError> {
    let rows = body.first_chunk::<8>().ok_or(MISSHAPEN)?;
    Ok(u64::from_le_bytes(*rows))
}

const MISSHAPEN: ProtocolError = ProtocolError::Misshapen {
    kind: FrameKind::Schedule,
};

/// Takes the deliveries of a part one after the other, so that only one is in memory as a list.
pub(super) struct PartReader<'a> {
    rest: Unpacker<'a>,
    left: u64,
    /// Rows of the owner.
    bound: u32,
}

impl<'a> PartReader<'a> {
    pub fn new(body: &'a [u8], bound: u32) -> Result<Self, ProtocolError> {
        let left = part_rows(body)?;
        let rest = Unpacker::new(&body[8..]);
        Ok(Self { rest, left, bound })
    }

    /// The next delivery; none after the last.
    ///
    /// # Errors
    /// The inner one says which rows the owner does not have.
    pub fn next(&mut self) -> Result<Option<Result<ScheduledRows, String>>, ProtocolError> {
        if self.rest.is_empty() {
            return if self.left == 0 { Ok(None) } else { Err(MISSHAPEN) };
        }
        let (step, phase) = (self.u32()?, self.rest.take(1).map_err(|_| MISSHAPEN)?[0]);
        let phase: Phase = phase_of_code(phase).ok_or(MISSHAPEN)?;
        let count = self.u32()?;
        self.left = self
            .left
            .checked_sub(u64::from(count))
            .filter(|_| count > 0)
            .ok_or(MISSHAPEN)?;
        let rows = self.rest.unpack_ascending(count as usize, self.bound);
        Ok(Some(rows.map(|rows| ScheduledRows { step, phase, rows }).map_err(
            |reason| {
                format!(
                    "the {count} rows for step {step} are not rows of the part, which has {}: {reason}",
                    self.bound
                )
            },
        )))
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.rest.u32().map_err(|_| MISSHAPEN)
    }
}

#[cfg(test)]
mod tests {
    use greengnn_model::counters::Period;

    use super::*;

    fn deliveries() -> Vec<ScheduledRows> {
        let delivery = |step, phase, rows| ScheduledRows { step, phase, rows };
        vec![
            delivery(0, Phase::Training, vec![0, 3, 4]),
            delivery(7, Phase::Evaluation, (0..300).map(|row| row * 3).collect()),
        ]
    }

    fn read(body: &[u8], bound: u32) -> Result<Vec<Result<ScheduledRows, String>>, ProtocolError> {
        let mut reader = PartReader::new(body, bound)?;
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    #[test]
    fn parts_survive_the_wire() {
        for count in 0..=2 {
            let sent = &deliveries()[..count];
            let mut body = Vec::new();
            put_part(&mut body, sent);
            let rows: usize = sent.iter().map(|delivery| delivery.rows.len()).sum();
            assert_eq!(part_rows(&body), Ok(rows as u64));
            let came: Result<Vec<_>, _> = read(&body, 898).unwrap().into_iter().collect();
            assert_eq!(came.as_deref(), Ok(sent));
        }
        let open = StreamOpen {
            caller: Caller {
                rank: 3,
                period: Period {
                    epoch: 9,
                    phase: Phase::Training,
                },
            },
            owner: 2,
        };
        let mut body = Vec::new();
        open.put(&mut body);
        assert_eq!(StreamOpen::parse(&body), Ok(open));
        body.push(0);
        assert!(StreamOpen::parse(&body).is_err());
    }

    #[test]
    fn rows_that_the_owner_does_not_have_are_named() {
        let mut body = Vec::new();
        put_part(&mut body, &deliveries());
        let came = read(&body, 897).unwrap();
        assert_eq!(came[0].as_ref(), Ok(&deliveries()[0]));
        assert!(came[1].as_ref().unwrap_err().contains("rows for step 7"), "{came:?}");
    }

    #[test]
    fn damaged_parts_are_refused() {
        let mut body = Vec::new();
        put_part(&mut body, &deliveries());
        assert!(read(&body[..7], 898).is_err(), "no number of rows");
        let mut more = body.clone();
        more[0] += 1;
        assert!(read(&more, 898).is_err(), "more rows than it lists");
        more[0] -= 2;
        assert!(read(&more, 898).is_err(), "fewer rows than it lists");
        let mut phase = body.clone();
        phase[12] = 9;
        assert!(read(&phase, 898).is_err(), "a phase that does not exist");
        for end in 9..body.len() {
            let cut = read(&body[..end], 898);
            assert!(cut.is_err() || cut.unwrap().iter().any(Result::is_err), "cut at {end}");
        }
    }
}
