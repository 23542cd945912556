//! Sorts a stream of edges into rows of in-neighbours.
//!
//! A counting sort by destination: the first pass over the stream counts the edges of every row, the second puts each
//! edge at its place; then every row is sorted by itself, rows in parallel. Nothing but the result is held in memory: 4
//! bytes per stored edge, 8 per node for the offsets and 1 to tell isolated nodes.

use super::edges::Edges;
use super::{ImportError, ImportOptions, Treatment};
use crate::rng::mix64;

/// Below this many edges a piece of the rows is sorted by one thread.
const PIECE: usize = 1 << 15;

/// The rows of a graph, and what was counted on the way.
#[derive(Debug)]
pub(super) struct Structure {
    /// `nodes + 1` offsets into `neighbors`.
    pub offsets: Vec<u64>,
    /// In-neighbours, ascending inside each row.
    pub neighbors: Vec<u32>,
    /// Edges of the stream.
    pub given: u64,
    /// Edges of the stream from a node to itself.
    pub self_loops: u64,
    /// Edges of the stream that repeat another one, dropped self-loops not counted.
    pub duplicates: u64,
    /// Nodes that no edge joins to another one.
    pub isolated: u64,
}

pub(super) fn build(edges: &Edges, nodes: u32, options: &ImportOptions) -> Result<Structure, ImportError> {
    let rows = nodes as usize;
    let drop_loops = options.self_loops == Treatment::Drop;
    let (mut given, mut self_loops, mut fingerprint) = (0u64, 0u64, 0u64);
    let mut joined = vec![false; rows];
    // While counting, `offsets[row + 1]` is the length of the row.
    let mut offsets = vec![0u64; rows + 1];
    edges.scan(nodes, |source, destination| {
        given += 1;
        fingerprint = fingerprint.wrapping_add(edge_print(source, destination));
        if source == destination {
            self_loops += 1;
            offsets[destination as usize + 1] += u64::from(!drop_loops);
            return;
        }
        joined[source as usize] = true;
        joined[destination as usize] = true;
        offsets[destination as usize + 1] += 1;
        offsets[source as usize + 1] += u64::from(!options.directed);
    })?;
    let isolated = joined.iter().filter(|joined| !**joined).count() as u64;
    drop(joined);
    for row in 0..rows {
        offsets[row + 1] += offsets[row];
    }

    let mut neighbors = zeros(offsets[rows])?;
    // While filling, `offsets[row]` is the next free place of the row; at the end it is where the next row starts.
    let mut again = 0u64;
    let mut put = |row: u32, neighbor: u32| {
        let place = &mut offsets[row as usize];
        // Out of range only if the file grew between the passes, which the fingerprint tells.
        if let Some(slot) = neighbors.get_mut(*place as usize) {
            *slot = neighbor;
        }
        *place += 1;
    };
    edges.scan(nodes, |source, destination| {
        again = again.wrapping_add(edge_print(source, destination));
        if source == destination && drop_loops {
            return;
        }
        put(destination, source);
        if source != destination && !options.directed {
            put(source, destination);
        }
    })?;
    if again != fingerprint {
        return Err(ImportError::Changed {
            path: edges.path().to_owned(),
        });
    }
    offsets.rotate_right(1);
    offsets[0] = 0;

    sort_rows(&offsets, &mut neighbors);
    let duplicates = repeated(&mut offsets, &mut neighbors, options);
    Ok(Structure {
        offsets,
        neighbors,
        given,
        self_loops,
        duplicates,
        isolated,
    })
}

/// The sum of these over a stream tells whether two passes saw the same edges.
fn edge_print(source: u32, destination: u32) -> u64 {
    mix64((u64::from(source) << 32) | u64::from(destination)) | 1
}

fn zeros(length: u64) -> Result<Vec<u32>, ImportError> {
    let out_of_memory = || ImportError::OutOfMemory {
        bytes: length.saturating_mul(4),
        what: "edges",
    };
    let length = usize::try_from(length).map_err(|_| out_of_memory())?;
    let mut values = Vec::new();
    values.try_reserve_exact(length).map_err(|_| out_of_memory())?;
    values.resize(length, 0);
    Ok(values)
}

/// Sorts every row; `offsets` covers exactly `neighbors`, shifted by its first value.
fn sort_rows(offsets: &[u64], neighbors: &mut [u32]) {
    let rows = offsets.len() - 1;
    if rows == 1 || neighbors.len() <= PIECE {
        let mut rest = neighbors;
        for pair in offsets.windows(2) {
            let (row, after) = rest.split_at_mut((pair[1] - pair[0]) as usize);
            row.sort_unstable();
            rest = after;
        }
        return;
    }
    let middle = rows / 2;
    let (left, right) = neighbors.split_at_mut((offsets[middle] - offsets[0]) as usize);
    rayon::join(
        || sort_rows(&offsets[..=middle], left),
        || sort_rows(&offsets[middle..], right),
    );
}

/// Counts the edges of the stream that repeat another one, and drops them from the sorted rows if that is asked for.
fn repeated(offsets: &mut [u64], neighbors: &mut Vec<u32>, options: &ImportOptions) -> u64 {
    let rows = offsets.len() - 1;
    let (mut loops, mut others) = (0u64, 0u64);
    let mut kept = 0usize;
    let mut start = 0usize;
    for row in 0..rows {
        let end = offsets[row + 1] as usize;
        for index in start..end {
            let neighbor = neighbors[index];
            if index > start && neighbors[kept - 1] == neighbor {
                match neighbor as usize == row {
                    true => loops += 1,
                    false => others += 1,
                }
                if options.duplicates == Treatment::Drop {
                    continue;
                }
            }
            neighbors[kept] = neighbor;
            kept += 1;
        }
        start = end;
        offsets[row + 1] = kept as u64;
    }
    neighbors.truncate(kept);
    // A repeated edge between two nodes was found in the rows of both, unless edges have a direction.
    loops + if options.directed { others } else { others / 2 }
}
