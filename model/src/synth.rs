//! Synthetic graphs with planted classes, for tests and for experiments at sizes whose data cannot be shipped.
//!
//! A degree-corrected block model gives the edges: classes are communities, or several of them, and degrees
//! follow a power law. Features carry a weak signal of the class, so that neighbours tell more than a node
//! does. Every draw is a function of the seed and of what it is drawn for, so the bits are the same at any thread count.
//!
//! [`SynthSpec::write`] streams a graph folder. It takes about 20 bytes per undirected edge, 60 bytes per node and one
//! block of feature rows (4 MiB), whatever the width of features. [`SynthSpec::tiny`] describes a small graph for tests,
//! and [`SynthSpec::write_parts`] a whole parts folder in one call.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::book::{NodeId, PartId};
use crate::npy::FileRecord;
use crate::partition::{PartitionError, hash_assignment, partition_graph};
use crate::rng::{Purpose, mix_words, shuffle};
use crate::sampling::Topology;
use crate::store::{FolderWriter, GraphManifest, GraphStore, Manifest, PartitionerRecord, PartsManifest, StoreError};

mod blocks;
mod features;

use blocks::{BlockModel, edge_ends};
use features::FeatureRows;

/// Feature values that are made before they are written, unless one row is longer: 4 MiB.
const BLOCK_VALUES: usize = 1 << 20;
/// The word that keeps the draw of the splits apart from those of the edges and the features.
const SPLIT_DOMAIN: u64 = 201;

/// The presets that [`SynthSpec::preset`] knows.
pub const PRESETS: [&str; 3] = ["small", "reddit-like", "products-like"];

/// Why a synthetic graph was not made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    #[error("there is no preset '{name}'; there are {known}", known = PRESETS.join(", "))]
    UnknownPreset { name: String },
    #[error("a synthetic graph cannot have {what}")]
    BadSpec { what: String },
    #[error("the model gave {found} distinct edges of {wanted}; ask for fewer edges or more nodes")]
    TooDense { wanted: u64, found: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Npy(#[from] crate::npy::NpyError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
}

/// What a synthetic graph is to be like.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SynthSpec {
    pub nodes: u32,
    /// Undirected edges, each stored in both directions; no self-loop, none twice.
    pub edges: u64,
    /// Width of a feature row.
    pub features: u32,
    pub classes: u16,
    /// Communities that share a class.
    pub communities_per_class: u16,
    /// Probability that an edge looks for its second end inside the community of its first.
    pub inside: f64,
    /// The density of weights, and so of degrees, falls with this power; above 1.
    pub exponent: f64,
    /// Length of the class centroids relative to the noise, per feature.
    pub signal: f32,
    /// Share of the nodes in the train split.
    pub train: f64,
    /// Share of the nodes in the validation split; the rest is the test split.
    pub valid: f64,
    pub seed: u64,
}

/// Structure, classes and splits of a synthetic graph, in memory. Features are made when they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SynthGraph {
    /// `nodes + 1` offsets into `neighbors`.
    pub offsets: Vec<u64>,
    /// In-neighbours, ascending inside a row; the graph is symmetric.
    pub neighbors: Vec<NodeId>,
    /// The class of every node.
    pub labels: Vec<i64>,
    /// Nodes of each split, ascending.
    pub train: Vec<NodeId>,
    pub valid: Vec<NodeId>,
    pub test: Vec<NodeId>,
}

impl SynthSpec {
    /// A preset by its name, with `seed`.
    ///
    /// `small` has 20,000 nodes; `reddit-like` and `products-like` are Reddit and ogbn-products at a quarter of their size.
    pub fn preset(name: &str, seed: u64) -> Result<Self, SynthError> {
        let spec = match name {
            "small" => Self {
                nodes: 20_000,
                edges: 1_000_000,
                features: 100,
                classes: 16,
                communities_per_class: 2,
                inside: 0.70,
                exponent: 2.3,
                signal: 0.10,
                train: 0.66,
                valid: 0.10,
                seed,
            },
            "reddit-like" => Self {
                nodes: 58_000,
                edges: 14_000_000,
                features: 602,
                classes: 41,
                communities_per_class: 1,
                inside: 0.72,
                exponent: 2.5,
                signal: 0.05,
                train: 0.66,
                valid: 0.10,
                seed,
            },
            "products-like" => Self {
                nodes: 600_000,
                edges: 15_000_000,
                features: 100,
                classes: 47,
                communities_per_class: 4,
                inside: 0.80,
                exponent: 2.2,
                signal: 0.10,
                train: 0.08,
                valid: 0.02,
                seed,
            },
            _ => return Err(SynthError::UnknownPreset { name: name.to_owned() }),
        };
        Ok(spec)
    }

    /// A small graph for tests: mean degree about 8, 8 features, 4 classes that can be learnt. Change what matters:
    ///
    /// ```
    /// use greengnn_model::synth::SynthSpec;
    /// let spec = SynthSpec { features: 3, seed: 5, ..SynthSpec::tiny(200) };
    /// let folder = tempfile::tempdir()?;
    /// let manifest = spec.write_parts(&folder.path().join("parts"), 4)?;
    /// assert_eq!(manifest.parts.len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tiny(nodes: u32) -> Self {
        let pairs = u64::from(nodes) * u64::from(nodes.saturating_sub(1)) / 2;
        Self {
            nodes,
            edges: (4 * u64::from(nodes)).min(pairs / 2),
            features: 8,
            classes: 4,
            communities_per_class: 1,
            inside: 0.8,
            exponent: 2.5,
            signal: 1.0,
            train: 0.6,
            valid: 0.2,
            seed: 1,
        }
    }

    /// Makes structure, classes and splits.
    pub fn graph(&self) -> Result<SynthGraph, SynthError> {
        self.check()?;
        let model = BlockModel::new(self);
        let labels = model
            .community_by_id()
            .into_iter()
            .map(|community| i64::from(community / self.communities_per_class))
            .collect();
        let keys = model.edges(self.edges)?;
        drop(model);
        let (offsets, neighbors) = compressed_rows(self.nodes, &keys);
        drop(keys);
        let mut shuffled: Vec<NodeId> = (0..self.nodes).collect();
        shuffle(mix_words(&[self.seed, SPLIT_DOMAIN]), &mut shuffled);
        let share = |share: f64| (f64::from(self.nodes) * share) as usize;
        let (train, rest) = shuffled.split_at(share(self.train));
        let (valid, test) = rest.split_at(share(self.valid).min(rest.len()));
        let sorted = |split: &[NodeId]| {
            let mut split = split.to_vec();
            split.sort_unstable();
            split
        };
        Ok(SynthGraph {
            offsets,
            neighbors,
            labels,
            train: sorted(train),
            valid: sorted(valid),
            test: sorted(test),
        })
    }

    /// Makes the graph and writes it as the graph folder `out`, which appears when it is complete, or not at all.
    pub fn write(&self, out: &Path) -> Result<GraphManifest, SynthError> {
        self.check()?;
        let mut folder = FolderWriter::create(out)?;
        let graph = self.graph()?;
        let nodes = self.nodes as usize;
        let mut files = vec![
            folder.whole_array("indptr.npy", &[nodes + 1], &graph.offsets)?,
            folder.whole_array("indices.npy", &[graph.neighbors.len()], &graph.neighbors)?,
            folder.whole_array("label.npy", &[nodes], &graph.labels)?,
            folder.whole_array("train.npy", &[graph.train.len()], &graph.train)?,
            folder.whole_array("valid.npy", &[graph.valid.len()], &graph.valid)?,
            folder.whole_array("test.npy", &[graph.test.len()], &graph.test)?,
        ];
        files.push(self.write_features(&mut folder, &graph.labels)?);
        let statistics = graph.statistics();
        let manifest = GraphManifest {
            format: GraphManifest::FORMAT.to_owned(),
            version: GraphManifest::VERSION,
            feature_bits: Vec::new(),
            nodes: self.nodes,
            edges: graph.neighbors.len() as u64,
            features: self.features as usize,
            classes: u32::from(self.classes),
            directed: false,
            labelled: u64::from(self.nodes),
            source: serde_json::json!({
                "generator": "degree-corrected block model",
                "settings": self,
                "statistics": statistics,
            }),
            files,
        };
        folder.finish(&manifest)?;
        Ok(manifest)
    }

    /// Makes the graph and writes it cut into `parts` by hash as the parts folder `out`: the short way for tests.
    pub fn write_parts(&self, out: &Path, parts: PartId) -> Result<PartsManifest, SynthError> {
        let scratch = tempfile::tempdir().map_err(|source| StoreError::Io {
            doing: "create a folder below",
            path: std::env::temp_dir(),
            source,
        })?;
        let whole = scratch.path().join("graph");
        self.write(&whole)?;
        let assignment = hash_assignment(self.nodes, parts, self.seed);
        let record = PartitionerRecord {
            method: "hash".to_owned(),
            seed: self.seed,
            ..PartitionerRecord::default()
        };
        Ok(partition_graph(
            &GraphStore::open(&whole)?,
            &assignment,
            parts,
            record,
            out,
        )?)
    }

    /// All feature rows of nodes with these classes, row-major; for graphs that are small enough to be held.
    pub fn feature_rows(&self, labels: &[i64]) -> Vec<f32> {
        let mut rows = vec![0.0; labels.len() * self.features as usize];
        FeatureRows::new(self).fill(0, labels, &mut rows);
        rows
    }

    fn write_features(&self, folder: &mut FolderWriter, labels: &[i64]) -> Result<FileRecord, SynthError> {
        let width = self.features as usize;
        let rows = FeatureRows::new(self);
        let mut writer = folder.array::<f32>("feat.npy", &[labels.len(), width])?;
        let block_rows = (BLOCK_VALUES / width.max(1)).max(1);
        let mut block = Vec::new();
        for (number, classes) in labels.chunks(block_rows).enumerate() {
            block.resize(classes.len() * width, 0.0);
            rows.fill(number * block_rows, classes, &mut block);
            writer.write(&block)?;
        }
        Ok(writer.finish()?)
    }

    fn communities(&self) -> usize {
        usize::from(self.classes) * usize::from(self.communities_per_class)
    }

    fn check(&self) -> Result<(), SynthError> {
        let nodes = u64::from(self.nodes);
        let share = |value: f64| (0.0..=1.0).contains(&value);
        let problem = if self.nodes == 0 || self.nodes == NodeId::MAX {
            format!("{nodes} nodes")
        } else if !(1..=usize::from(u16::MAX)).contains(&self.communities()) {
            format!("{} classes of {} communities", self.classes, self.communities_per_class)
        } else if self.edges > nodes * (nodes - 1) / 2 {
            format!("{} edges between {nodes} nodes", self.edges)
        } else if !share(self.inside) {
            format!("a share of {} edges inside communities", self.inside)
        } else if !(self.exponent > 1.0 && self.exponent.is_finite()) {
            format!("degrees with exponent {}", self.exponent)
        } else if !share(self.train) || !share(self.valid) || self.train + self.valid > 1.0 {
            format!("splits of {} and {} of the nodes", self.train, self.valid)
        } else if !self.signal.is_finite() {
            format!("a signal of {}", self.signal)
        } else {
            return Ok(());
        };
        Err(SynthError::BadSpec { what: problem })
    }
}

/// What a synthetic graph turned out to be like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SynthStatistics {
    pub mean_degree: f64,
    pub median_degree: u64,
    /// 99 % of the nodes have at most this degree.
    pub p99_degree: u64,
    pub largest_degree: u64,
    pub isolated_nodes: u64,
    /// Share of the edges that join two nodes of one class.
    pub same_label_edges: f64,
}

impl SynthGraph {
    /// The structure, as the sampler and the partitioners take it.
    pub fn topology(&self) -> Topology<'_> {
        Topology {
            first: 0,
            offsets: &self.offsets,
            neighbors: &self.neighbors,
        }
    }

    /// The nodes of a split, ascending. Presampling uses those of training.
    pub fn split(&self, purpose: Purpose) -> &[NodeId] {
        match purpose {
            Purpose::Train | Purpose::Presample => &self.train,
            Purpose::Valid => &self.valid,
            Purpose::Test => &self.test,
        }
    }

    /// Measures the graph in one pass.
    pub fn statistics(&self) -> SynthStatistics {
        let mut degrees: Vec<u64> = self.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
        degrees.sort_unstable();
        let quantile = |share: f64| degrees[((degrees.len() - 1) as f64 * share) as usize];
        let topology = self.topology();
        let same: usize = (0..topology.rows())
            .map(|node| {
                let label = self.labels[node as usize];
                let row = topology.row(node).iter();
                row.filter(|other| self.labels[**other as usize] == label).count()
            })
            .sum();
        SynthStatistics {
            mean_degree: self.neighbors.len() as f64 / degrees.len() as f64,
            median_degree: quantile(0.5),
            p99_degree: quantile(0.99),
            largest_degree: quantile(1.0),
            isolated_nodes: degrees.partition_point(|degree| *degree == 0) as u64,
            same_label_edges: if self.neighbors.is_empty() {
                0.0
            } else {
                same as f64 / self.neighbors.len() as f64
            },
        }
    }
}

/// Both directions of every edge as compressed rows. Rows ascend because the keys do.
fn compressed_rows(nodes: u32, keys: &[u64]) -> (Vec<u64>, Vec<NodeId>) {
    let mut offsets = vec![0u64; nodes as usize + 1];
    for key in keys {
        let (one, other) = edge_ends(*key);
        offsets[one as usize + 1] += 1;
        offsets[other as usize + 1] += 1;
    }
    for node in 0..nodes as usize {
        offsets[node + 1] += offsets[node];
    }
    let mut next = offsets.clone();
    let mut neighbors = vec![0; keys.len() * 2];
    // Keys ascend by their smaller end first. So a row gets its smaller neighbours first, then the larger, each ascending.
    for key in keys {
        let (one, other) = edge_ends(*key);
        for (row, neighbor) in [(one, other), (other, one)] {
            let place = &mut next[row as usize];
            neighbors[*place as usize] = neighbor;
            *place += 1;
        }
    }
    (offsets, neighbors)
}

#[cfg(test)]
mod tests;
