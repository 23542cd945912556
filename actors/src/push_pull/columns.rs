//! The columns of a rank: gathered from all owners at set-up, then read in place.

use std::ops::Range;

use greengnn_model::book::{NodeId, PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::layers::sliced::columns_of;

use super::PushPullError;
use crate::collective::{Collective, Moment};
use crate::shard::PartShard;
use crate::transport::{Caller, ParcelKind};

/// Bytes of one piece of columns; two pieces per pair of ranks are on their way at most.
const PIECE_BYTES: usize = 1 << 20;

/// Some columns of the feature rows of all nodes, `[nodes, width]`, in memory: `4 * nodes * width` bytes, which over all
/// ranks is the size of all features.
#[derive(Debug)]
pub struct ColumnTable {
    nodes: u32,
    width: usize,
    values: Vec<f32>,
}

impl ColumnTable {
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    pub fn width(&self) -> usize {
        self.width
    }

    /// The columns of `node`, which must be in the graph.
    pub fn row(&self, node: NodeId) -> &[f32] {
        let start = node as usize * self.width;
        &self.values[start..start + self.width]
    }

    /// Sends to every rank its columns of this rank's rows and takes this rank's columns of all others, in rounds of one
    /// piece per pair of ranks, so that memory stays bounded and no rank runs ahead. Counted by `shard` for whoever gets
    /// them. Returns the bytes that came.
    ///
    /// # Errors
    /// A rank that is silent, cannot be reached, or sends another number of values.
    pub async fn gather(
        book: &PartitionBook,
        shard: &PartShard,
        collective: &Collective,
    ) -> Result<(Self, u64), PushPullError> {
        Self::gather_pieces(book, shard, collective, PIECE_BYTES).await
    }

    pub(super) async fn gather_pieces(
        book: &PartitionBook,
        shard: &PartShard,
        collective: &Collective,
        piece_bytes: usize,
    ) -> Result<(Self, u64), PushPullError> {
        let (rank, ranks, features) = (collective.rank(), collective.ranks(), shard.width());
        let own = columns_of(rank, ranks, features);
        let mut table = Self {
            nodes: book.nodes(),
            width: own.len(),
            values: vec![0.0; book.nodes() as usize * own.len()],
        };
        table.copy_own(book.range(rank), shard, own);
        let widest = features.div_ceil(usize::from(ranks)).max(1);
        let rows_per_piece = (piece_bytes / (4 * widest)).max(1) as u32;
        let most_rows = (0..ranks).map(|part| book.part_nodes(part)).max().unwrap_or(0);
        let others = (rank + 1..ranks).chain(0..rank);
        let mut came = 0;
        for round in 0..most_rows.div_ceil(rows_per_piece) {
            let moment = setup_moment(round);
            for to in others.clone() {
                let columns = columns_of(to, ranks, features);
                let rows = piece(book, rank, round, rows_per_piece);
                if columns.is_empty() || rows.is_empty() {
                    continue;
                }
                let first = book.range(rank).start;
                let rows = rows.map(|node| &shard.data().row(node - first)[columns.clone()]);
                let bytes: Vec<u8> = rows.flat_map(bytemuck::cast_slice).copied().collect();
                let caller = Caller {
                    rank: to,
                    period: moment.period,
                };
                shard.exchanged(caller, 0, bytes.len() as u64);
                collective.send(ParcelKind::Columns, moment, to, bytes).await?;
            }
            for from in others.clone() {
                let rows = piece(book, from, round, rows_per_piece);
                if table.width == 0 || rows.is_empty() {
                    continue;
                }
                let bytes = collective.receive(ParcelKind::Columns, moment, from).await?;
                collective.check(from, ParcelKind::Columns, rows.len() * table.width, &bytes)?;
                came += bytes.len() as u64;
                table.put(rows.start, &bytes);
            }
        }
        Ok((table, came))
    }

    /// Bytes of the columns of all rows that `rank` does not own.
    pub fn bytes_to_gather(book: &PartitionBook, rank: Rank, features: usize) -> u64 {
        let width = columns_of(rank, book.parts(), features).len();
        u64::from(book.remote_nodes(rank)) * width as u64 * 4
    }

    fn copy_own(&mut self, nodes: Range<NodeId>, shard: &PartShard, columns: Range<usize>) {
        let width = self.width;
        for node in nodes.clone() {
            let start = node as usize * width;
            self.values[start..start + width].copy_from_slice(&shard.data().row(node - nodes.start)[columns.clone()]);
        }
    }

    fn put(&mut self, first: NodeId, bytes: &[u8]) {
        let (values, _) = bytes.as_chunks::<4>();
        let places = &mut self.values[first as usize * self.width..];
        for (place, value) in places.iter_mut().zip(values) {
            *place = f32::from_le_bytes(*value);
        }
    }
}

/// The nodes of `part` that travel in `round`.
fn piece(book: &PartitionBook, part: Rank, round: u32, rows: u32) -> Range<NodeId> {
    let all = book.range(part);
    let start = all.start.saturating_add(round.saturating_mul(rows)).min(all.end);
    start..start.saturating_add(rows).min(all.end)
}

fn setup_moment(round: u32) -> Moment {
    Moment {
        epoch: 0,
        step: round,
        period: Period {
            epoch: 0,
            phase: Phase::Setup,
        },
    }
}
