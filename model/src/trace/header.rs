//! The head of a trace file: what it is a trace of.

use crate::book::{PartitionBook, Rank};
use crate::rng::Purpose;
use crate::sampling::{EpochSpec, SeedOrder, StepCounts};
use crate::trace::Problem;
use crate::trace::pack::{Malformed, Unpacker};

/// First bytes of every trace file. The line break shows a file that was sent as text.
pub(super) const MAGIC: [u8; 8] = *b"GGtrace\n";
/// Last bytes of every trace file that was finished.
pub(super) const END_MAGIC: [u8; 8] = *b"GGtrend\n";
/// Version of the format that this program writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// Feature bit: the train seeds are in proximity order, whose number of sequences ends the fields.
const PROXIMITY: u64 = 1;
/// Feature bit of traces of graphs whose feature rows are owned apart from their nodes: row bounds follow the bounds.
const ROWS_APART: u64 = 2;
/// Feature bits that this program knows.
const KNOWN_FEATURES: u64 = PROXIMITY | ROWS_APART;
/// Bytes before the fields: magic, version, length of the fields, feature bits.
pub(super) const PREFIX_BYTES: usize = 24;

/// What a trace is of. Two traces with the same header are the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeader {
    /// What every batch is a function of.
    pub spec: EpochSpec,
    /// The parts of the graph, so that a file can be read without its graph.
    pub book: PartitionBook,
    /// The owners of feature rows, where rows are owned apart from nodes.
    pub rows: Option<PartitionBook>,
    /// SHA-256 over the graph's structure, bounds, splits and map of rows, from its manifest.
    pub graph_hash: [u8; 32],
}

impl TraceHeader {
    /// Checks that this is the header that a run expects.
    pub fn expect(&self, wanted: &TraceHeader) -> Result<(), Problem> {
        let differs = |field, found: String, wanted: String| Err(Problem::OtherConfiguration { field, found, wanted });
        if self.graph_hash != wanted.graph_hash {
            return differs("graph hash", hex(&self.graph_hash), hex(&wanted.graph_hash));
        }
        let text = |book: &PartitionBook| format!("{:?}", book.bounds());
        if self.book != wanted.book {
            return differs("partition", text(&self.book), text(&wanted.book));
        }
        if self.rows != wanted.rows {
            return differs("row bounds", text(self.row_book()), text(wanted.row_book()));
        }
        let fields = |spec: &EpochSpec| {
            [
                ("seed", spec.seed.to_string()),
                ("epoch", spec.epoch.to_string()),
                ("rank", spec.rank.to_string()),
                ("batch size", spec.batch_size.to_string()),
                ("list of fanouts", format!("{:?}", spec.fanouts)),
                ("purpose", format!("{:?}", spec.training)),
                ("batch order", spec.order.to_string()),
                ("number of steps", format!("{:?}", spec.steps)),
            ]
        };
        for ((field, found), (_, wanted)) in fields(&self.spec).into_iter().zip(fields(&wanted.spec)) {
            if found != wanted {
                return differs(field, found, wanted);
            }
        }
        Ok(())
    }

    /// Who owns the rows that batches name as remote.
    pub fn row_book(&self) -> &PartitionBook {
        self.rows.as_ref().unwrap_or(&self.book)
    }

    /// Number of steps: training, validation, test.
    pub fn steps(&self) -> u32 {
        self.spec.steps.total()
    }

    /// The bytes at the start of the file, checksum included.
    pub(super) fn encode(&self) -> Result<Vec<u8>, Problem> {
        let EpochSpec {
            seed,
            epoch,
            rank,
            batch_size,
            fanouts,
            training,
            order,
            steps,
        } = &self.spec;
        let hops = u16::try_from(fanouts.len()).ok().filter(|hops| *hops > 0);
        let Some(hops) = hops else {
            return Err(Problem::BadHeader {
                why: "there must be between 1 and 65535 fanouts",
            });
        };
        if *rank >= self.book.parts() {
            return Err(Problem::BadHeader {
                why: "the rank is not one of the partition book",
            });
        }
        if !is_of(self.rows.as_ref(), &self.book) {
            return Err(Problem::BadHeader {
                why: "the row bounds are not those of the same graph",
            });
        }
        if steps
            .train
            .checked_add(steps.valid)
            .and_then(|sum| sum.checked_add(steps.test))
            .is_none()
        {
            return Err(Problem::BadHeader {
                why: "there are more than 2^32 - 1 steps",
            });
        }
        let mut fields = Vec::new();
        fields.extend(seed.to_le_bytes());
        for number in [*epoch, *batch_size, steps.train, steps.valid, steps.test] {
            fields.extend(number.to_le_bytes());
        }
        for number in [*rank, u16::from(training.code()), hops, self.book.parts()] {
            fields.extend(number.to_le_bytes());
        }
        fields.extend(self.graph_hash);
        let row_bounds = self.rows.as_ref().map_or(&[][..], PartitionBook::bounds);
        for number in fanouts.iter().chain(self.book.bounds()).chain(row_bounds) {
            fields.extend(number.to_le_bytes());
        }
        let mut features = if self.rows.is_some() { ROWS_APART } else { 0 };
        if let SeedOrder::Proximity { sequences } = order {
            features |= PROXIMITY;
            fields.extend(sequences.to_le_bytes());
        }

        let mut bytes = Vec::with_capacity(PREFIX_BYTES + fields.len() + 4);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((fields.len() as u32).to_le_bytes());
        bytes.extend(features.to_le_bytes());
        bytes.extend(fields);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        Ok(bytes)
    }

    /// Reads what [`encode`](Self::encode) wrote, of which [`read_prefix`] accepted the start, without the checksum.
    pub(super) fn decode(prefix: &[u8; PREFIX_BYTES], fields: &[u8]) -> Result<Self, Problem> {
        decode_fields(features(prefix), fields).map_err(|why| Problem::Malformed {
            what: "the header".into(),
            why,
        })
    }
}

/// Checks magic, version and features, and returns the number of bytes of the fields that follow.
pub(super) fn read_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, Problem> {
    if prefix[..8] != MAGIC {
        return Err(Problem::Magic);
    }
    let word = |at: usize| u32::from_le_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
    let version = word(8);
    if version != VERSION {
        return Err(Problem::Version {
            found: version,
            wanted: VERSION,
        });
    }
    let unknown = features(prefix) & !KNOWN_FEATURES;
    if unknown != 0 {
        return Err(Problem::Features { unknown });
    }
    Ok(word(12) as usize)
}

fn features(prefix: &[u8; PREFIX_BYTES]) -> u64 {
    let mut bits = [0; 8];
    bits.copy_from_slice(&prefix[16..]);
    u64::from_le_bytes(bits)
}

fn decode_fields(features: u64, bytes: &[u8]) -> Result<TraceHeader, Malformed> {
    let mut fields = Unpacker::new(bytes);
    let seed = u64::from(fields.u32()?) | u64::from(fields.u32()?) << 32;
    let (epoch, batch_size) = (fields.u32()?, fields.u32()?);
    let steps = StepCounts {
        train: fields.u32()?,
        valid: fields.u32()?,
        test: fields.u32()?,
    };
    let (rank, training, hops, parts): (Rank, _, _, _) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
    let mut graph_hash = [0; 32];
    graph_hash.copy_from_slice(fields.take(32)?);
    let fanouts = (0..hops).map(|_| fields.u32()).collect::<Result<Vec<_>, _>>()?;
    let mut bounds = || {
        let bounds = (0..=u32::from(parts))
            .map(|_| fields.u32())
            .collect::<Result<Vec<_>, _>>()?;
        PartitionBook::new(bounds).map_err(|_| "its bounds are not those of a partition")
    };
    let book = bounds()?;
    let rows = (features & ROWS_APART != 0).then(bounds).transpose()?;
    let order = if features & PROXIMITY == 0 {
        SeedOrder::Random
    } else {
        SeedOrder::Proximity {
            sequences: fields.u32()?,
        }
    };
    fields.end()?;
    let training = u8::try_from(training).ok().and_then(Purpose::from_code);
    let total = steps
        .train
        .checked_add(steps.valid)
        .and_then(|sum| sum.checked_add(steps.test));
    let no_sequences = order == SeedOrder::Proximity { sequences: 0 };
    let is_sound = total.is_some() && !no_sequences && is_of(rows.as_ref(), &book);
    if hops == 0 || rank >= book.parts() || !is_sound {
        return Err("its counts do not fit together");
    }
    Ok(TraceHeader {
        spec: EpochSpec {
            seed,
            epoch,
            rank,
            batch_size,
            fanouts,
            training: training.ok_or("its purpose is unknown")?,
            order,
            steps,
        },
        book,
        rows,
        graph_hash,
    })
}

/// Whether row bounds, where there are any, are of as many rows and parts as there are nodes and parts.
fn is_of(rows: Option<&PartitionBook>, book: &PartitionBook) -> bool {
    rows.is_none_or(|rows| (rows.parts(), rows.nodes()) == (book.parts(), book.nodes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
