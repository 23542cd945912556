//! The trace files that `plan` prices: all of one graph, and of one run.

use std::path::{Path, PathBuf};

use greengnn_model::book::Rank;
use greengnn_model::store::PartsManifest;
use greengnn_model::trace::{Problem, TraceError, TraceHeader, TraceReader};

use crate::kept_traces;

/// Why traces cannot be priced.
#[derive(Debug, thiserror::Error)]
pub enum PricingError {
    #[error("trace {path} is of another graph than {parts}: presample anew, or give the folder that it was made from")]
    OtherGraph { path: PathBuf, parts: PathBuf },
    #[error("there is no trace {path}: give the folder that `train --keep-trace` left")]
    NoTrace { path: PathBuf },
    #[error("trace {path} is of rank {found}, the one before it is of rank {wanted}: price one rank at a time")]
    OtherRank { path: PathBuf, found: Rank, wanted: Rank },
    #[error(
        "traces {first} and {path} are not of one run: the {field} is {wanted} in the one and {found} in the other; price the \
         traces of one run at a time"
    )]
    OtherRun {
        first: PathBuf,
        path: PathBuf,
        field: &'static str,
        wanted: String,
        found: String,
    },
    #[error(
        "{folder} has traces of {found} epochs for rank {rank}, and of {wanted} for rank 0: give the folder of a run that \
         was finished"
    )]
    UnevenEpochs {
        folder: PathBuf,
        rank: Rank,
        found: usize,
        wanted: usize,
    },
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A trace and where it was found.
pub struct Found {
    pub path: PathBuf,
    pub reader: TraceReader,
}

impl Found {
    pub fn header(&self) -> &TraceHeader {
        self.reader.header()
    }

    /// Refuses a trace of another run than `first`. Traces of one run differ in epoch and rank alone.
    fn check_run(&self, first: &Self) -> Result<(), PricingError> {
        let own = &self.header().spec;
        let mut wanted = first.header().clone();
        (wanted.spec.epoch, wanted.spec.rank) = (own.epoch, own.rank);
        match self.header().expect(&wanted) {
            Ok(()) => Ok(()),
            Err(Problem::OtherConfiguration { field, found, wanted }) => Err(PricingError::OtherRun {
                first: first.path.clone(),
                path: self.path.clone(),
                field,
                wanted,
                found,
            }),
            Err(problem) => Err(TraceError::Refused {
                path: self.path.clone(),
                problem,
            }
            .into()),
        }
    }
}

/// A trace of the graph of `parts`, whose manifest that is.
fn open(path: PathBuf, parts: &Path, manifest: &PartsManifest) -> Result<Found, PricingError> {
    let reader = TraceReader::open(&path)?;
    let hash = reader.header().graph_hash;
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    if hash != manifest.graph_hash {
        let parts = parts.to_owned();
        return Err(PricingError::OtherGraph { path, parts });
    }
    Ok(Found { path, reader })
}

/// The traces of one rank, as they were named.
pub fn of_one_rank(
    paths: &[PathBuf],
    parts: &Path,
    manifest: &PartsManifest,
) -> Result<(Rank, Vec<Found>), PricingError> {
    let mut traces: Vec<Found> = Vec::new();
    for path in paths {
        let trace = open(path.clone(), parts, manifest)?;
        if let Some(first) = traces.first() {
            let (found, wanted) = (trace.header().spec.rank, first.header().spec.rank);
            if found != wanted {
                let path = path.clone();
                return Err(PricingError::OtherRank { path, found, wanted });
            }
            trace.check_run(first)?;
        }
        traces.push(trace);
    }
    let rank = traces.first().map_or(0, |first| first.header().spec.rank);
    Ok((rank, traces))
}

/// The traces `epoch-E/rank-R.trace` of all ranks, epoch by epoch; at least one of each rank.
pub fn of_all_ranks(folder: &Path, parts: &Path, manifest: &PartsManifest) -> Result<Vec<Vec<Found>>, PricingError> {
    let mut ranks: Vec<Vec<Found>> = Vec::new();
    for rank in 0..manifest.book.parts() {
        let path = |epoch| {
            folder
                .join(kept_traces::epoch(epoch))
                .join(format!("rank-{rank}.trace"))
        };
        let paths = (0..).map(path).take_while(|path| path.exists());
        let traces = paths.map(|path| open(path, parts, manifest));
        let traces = traces.collect::<Result<Vec<_>, _>>()?;
        if traces.is_empty() {
            return Err(PricingError::NoTrace { path: path(0) });
        }
        let first_rank = ranks.first().unwrap_or(&traces);
        for trace in &traces {
            let found = trace.header().spec.rank;
            if found != rank {
                let (path, wanted) = (trace.path.clone(), rank);
                return Err(PricingError::OtherRank { path, found, wanted });
            }
            if let Some(first) = first_rank.first() {
                trace.check_run(first)?;
            }
        }
        let (found, wanted) = (traces.len(), first_rank.len());
        if found != wanted {
            let folder = folder.to_owned();
            return Err(PricingError::UnevenEpochs {
                folder,
                rank,
                found,
                wanted,
            });
        }
        ranks.push(traces);
    }
    Ok(ranks)
}
