//! What an owner answers: the picks of nodes whose rows only it has.

use rayon::prelude::*;

use crate::book::PartId;
use crate::sampling::pick::{pick_count, pick_rows};
use crate::sampling::{NeighborQuery, NeighborReply, NeighborSource, Topology};

/// Why a [`NeighborQuery`] cannot be answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    #[error("row {row} of a neighbour query is out of range: this part has {rows} rows")]
    RowOutOfRange { row: u32, rows: u32 },
    #[error("a neighbour query was sent to part {owner}, which is not held here")]
    NotHeld { owner: PartId },
    #[error("a neighbour query asks for {picks} picks, more than one answer can hold; ask for fewer rows at a time")]
    TooManyPicks { picks: u64 },
}

/// Draws the picks of every row of `query`, exactly those that a rank would draw that had the rows itself.
pub fn answer_query(topology: Topology<'_>, query: &NeighborQuery) -> Result<NeighborReply, QueryError> {
    let rows = topology.rows();
    if let Some(row) = query.rows.iter().find(|row| **row >= rows) {
        return Err(QueryError::RowOutOfRange { row: *row, rows });
    }
    let counts: Vec<u32> = query
        .rows
        .iter()
        .map(|row| pick_count(topology, *row, query.fanout))
        .collect();
    let picks: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    if picks > u64::from(u32::MAX) {
        return Err(QueryError::TooManyPicks { picks });
    }
    let mut neighbors = Vec::with_capacity(picks as usize);
    pick_rows(topology, query.key, query.fanout, &query.rows, |_, picks| {
        neighbors.extend(picks);
    });
    Ok(NeighborReply { counts, neighbors })
}

/// Answers the queries of one request, in parallel, in their order.
pub fn answer_queries(topology: Topology<'_>, queries: &[NeighborQuery]) -> Result<Vec<NeighborReply>, QueryError> {
    queries.par_iter().map(|query| answer_query(topology, query)).collect()
}

/// All parts of a graph in memory, as a [`NeighborSource`] that counts what it was asked.
#[derive(Clone, Debug)]
pub struct InMemoryOwners<'a> {
    parts: Vec<Topology<'a>>,
    requests: Vec<u64>,
    rows: Vec<u64>,
}

impl<'a> InMemoryOwners<'a> {
    /// `parts[p]` is the topology of part `p`.
    pub fn new(parts: Vec<Topology<'a>>) -> Self {
        let count = parts.len();
        Self {
            parts,
            requests: vec![0; count],
            rows: vec![0; count],
        }
    }

    /// Requests answered so far, by owner.
    pub fn requests(&self) -> &[u64] {
        &self.requests
    }

    /// Rows asked for so far, by owner.
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }
}

impl NeighborSource for InMemoryOwners<'_> {
    type Error = QueryError;

    fn sample(&mut self, requests: Vec<(PartId, Vec<NeighborQuery>)>) -> Result<Vec<Vec<NeighborReply>>, QueryError> {
        let mut answers = Vec::with_capacity(requests.len());
        for (owner, queries) in requests {
            let index = usize::from(owner);
            let Some(topology) = self.parts.get(index) else {
                return Err(QueryError::NotHeld { owner });
            };
            self.requests[index] += 1;
            self.rows[index] += queries.iter().map(|query| query.rows.len() as u64).sum::<u64>();
            answers.push(answer_queries(*topology, &queries)?);
        }
        Ok(answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFSETS: [u64; 3] = [0, 2, 6];
    const NEIGHBORS: [u32; 6] = [9, 7, 3, 4, 5, 6];

    fn topology() -> Topology<'static> {
        Topology {
            first: 10,
            offsets: &OFFSETS,
            neighbors: &NEIGHBORS,
        }
    }

    fn query(fanout: u32, rows: &[u32]) -> NeighborQuery {
        NeighborQuery {
            key: 5,
            fanout,
            rows: rows.to_vec(),
        }
    }

    #[test]
    fn an_owner_draws_what_a_local_rank_would_and_in_the_order_asked() {
        let reply = answer_query(topology(), &query(3, &[1, 0, 1])).unwrap();
        assert_eq!(reply.counts, [3, 2, 3]);
        let mut local = Vec::new();
        for row in [1, 0, 1] {
            crate::sampling::pick_neighbors(5, 10 + row, topology().row(row), 3, &mut local);
        }
        assert_eq!(reply.neighbors, local);
    }

    #[test]
    fn a_row_out_of_range_is_refused() {
        let error = answer_query(topology(), &query(1, &[0, 2])).unwrap_err();
        assert_eq!(error, QueryError::RowOutOfRange { row: 2, rows: 2 });
        let empty = Topology {
            first: 0,
            offsets: &[],
            neighbors: &[],
        };
        assert!(answer_query(empty, &query(1, &[0])).is_err());
        assert_eq!(answer_query(empty, &query(1, &[])), Ok(NeighborReply::default()));
    }

    #[test]
    fn in_memory_owners_count_requests_and_rows() {
        let mut owners = InMemoryOwners::new(vec![topology()]);
        owners
            .sample(vec![(0, vec![query(1, &[0]), query(2, &[0, 1])])])
            .unwrap();
        assert_eq!((owners.requests(), owners.rows()), (&[1][..], &[3][..]));
        let error = owners.sample(vec![(1, Vec::new())]).unwrap_err();
        assert_eq!(error, QueryError::NotHeld { owner: 1 });
    }
}
