//! Writes the parts folder.

use std::path::Path;
use std::sync::Arc;

use rayon::prelude::*;

use super::{CutStatistics, PartitionError, Relabelling, check_neighbors};
use crate::book::{NodeId, PartId, PartitionBook};
use crate::npy::{ArrayWriter, Element, FileRecord, MappedArray};
use crate::rng::Purpose;
use crate::rows::RowBook;
use crate::store::{
    FolderWriter, GraphHasher, GraphStore, Manifest, PartSummary, PartitionerRecord, PartsManifest, ROW_MAP,
    part_folder,
};

/// Nodes whose rows are gathered before they are written.
const BLOCK_ROWS: usize = 4096;
/// Feature values that are gathered before they are written, unless one row is longer: 4 MiB.
const BLOCK_VALUES: usize = 1 << 20;

/// Cuts `graph` as `assignment` says (the part of every node) and writes the parts folder `out`.
///
/// `record` names the method and the seed; what was measured of the cut is filled in. Parts are written one after the
/// other, in blocks of rows, straight from the mapped graph: memory is 16 bytes per node and one block, whatever the
/// number of edges and the width of features. `out` appears when it is complete, or not at all.
///
/// # Errors
/// An assignment that does not fit the graph or the number of parts, a graph with a neighbour that it does not have, and
/// whatever the file system refuses.
pub fn partition_graph(
    graph: &GraphStore,
    assignment: &[PartId],
    parts: PartId,
    record: PartitionerRecord,
    out: &Path,
) -> Result<PartsManifest, PartitionError> {
    check_assignment(graph, assignment, parts)?;
    let relabelling = Relabelling::new(assignment, parts)?;
    let rows = RowBook::of_nodes(Arc::new(relabelling.book.clone()));
    write_parts(graph, relabelling, &rows, record, out)
}

/// As [`partition_graph`], with the feature row of every node owned by the part that `row_owners` gives it.
///
/// # Errors
/// As [`partition_graph`], for both assignments.
pub fn partition_graph_and_rows(
    graph: &GraphStore,
    assignment: &[PartId],
    row_owners: &[PartId],
    parts: PartId,
    record: PartitionerRecord,
    out: &Path,
) -> Result<PartsManifest, PartitionError> {
    check_assignment(graph, assignment, parts)?;
    check_assignment(graph, row_owners, parts)?;
    let relabelling = Relabelling::new(assignment, parts)?;
    let owners: Vec<PartId> = (relabelling.original.iter())
        .map(|node| row_owners[*node as usize])
        .collect();
    let rows = RowBook::of_owners(&owners, parts)?;
    write_parts(graph, relabelling, &rows, record, out)
}

pub(super) fn check_assignment(graph: &GraphStore, assignment: &[PartId], parts: PartId) -> Result<(), PartitionError> {
    let nodes = graph.manifest().nodes;
    if parts == 0 {
        return Err(PartitionError::NoParts);
    }
    if assignment.len() != nodes as usize {
        return Err(PartitionError::AssignmentOfOtherGraph {
            nodes,
            given: assignment.len(),
        });
    }
    match assignment.iter().position(|part| *part >= parts) {
        None => Ok(()),
        Some(node) => Err(PartitionError::PartOutOfRange {
            node: node as NodeId,
            part: assignment[node],
            parts,
        }),
    }
}

fn write_parts(
    graph: &GraphStore,
    relabelling: Relabelling,
    rows: &RowBook,
    record: PartitionerRecord,
    out: &Path,
) -> Result<PartsManifest, PartitionError> {
    let (nodes, parts) = (graph.manifest().nodes, relabelling.book.parts());
    check_neighbors(graph.topology())?;
    let statistics = CutStatistics::measure(graph.topology(), graph.split(Purpose::Train), &relabelling);
    let mut folder = FolderWriter::create(out)?;
    let mut hasher = GraphHasher::new(&relabelling.book);
    let mut files = Vec::new();
    let mut summaries = Vec::with_capacity(usize::from(parts));
    // The original ids in the order of their rows, where that is not the order of the nodes.
    let moved: Option<Vec<NodeId>> = rows
        .node_of_row()
        .map(|nodes| nodes.iter().map(|node| relabelling.original[*node as usize]).collect());
    let mut feature_bits = Vec::new();
    if let Some(map) = rows.row_of_node() {
        feature_bits.push(PartsManifest::ROW_HOME.to_owned());
        files.push(folder.whole_array(ROW_MAP, &[map.len()], map)?);
    }
    for (part, load) in (0..parts).zip(&statistics.parts) {
        let mut writer = PartWriter {
            graph,
            relabelling: &relabelling,
            members: relabelling.members(part),
            feature_members: match &moved {
                None => relabelling.members(part),
                Some(nodes) => {
                    let range = rows.book().range(part);
                    &nodes[range.start as usize..range.end as usize]
                }
            },
            part,
            folder: &mut folder,
            files: &mut files,
        };
        let labelled = writer.rows()?;
        let edges = writer.structure(load.edges)?;
        let train = writer.split("train", Purpose::Train)?;
        let valid = writer.split("valid", Purpose::Valid)?;
        let test = writer.split("test", Purpose::Test)?;
        hasher.part(&edges.offsets, &edges.neighbors, |purpose| match purpose {
            Purpose::Train | Purpose::Presample => &train,
            Purpose::Valid => &valid,
            Purpose::Test => &test,
        });
        summaries.push(PartSummary {
            nodes: relabelling.book.part_nodes(part),
            edges: load.edges,
            train: train.len() as u32,
            valid: valid.len() as u32,
            test: test.len() as u32,
            labelled,
            halo: load.halo,
        });
    }
    hasher.rows(rows);
    let manifest = PartsManifest {
        format: PartsManifest::FORMAT.to_owned(),
        version: PartsManifest::VERSION,
        feature_bits,
        nodes,
        edges: graph.manifest().edges,
        features: graph.manifest().features,
        classes: graph.manifest().classes,
        book: relabelling.book,
        row_bounds: rows.row_of_node().map(|_| PartitionBook::clone(rows.book())),
        parts: summaries,
        partitioner: PartitionerRecord {
            cut_edges: statistics.cut_edges(),
            edge_cut: statistics.edge_cut(),
            balance_nodes: statistics.node_balance(),
            balance_train: statistics.seed_balance(),
            balance_edges: statistics.edge_balance(),
            ..record
        },
        graph_hash: hasher.finish(),
        files,
    };
    folder.finish(&manifest)?;
    Ok(manifest)
}

/// Writes the files of one part.
struct PartWriter<'a> {
    graph: &'a GraphStore,
    relabelling: &'a Relabelling,
    /// The original ids of the part's nodes, ascending.
    members: &'a [NodeId],
    /// The original ids of the nodes whose feature rows the part owns, in the order of the rows.
    feature_members: &'a [NodeId],
    part: PartId,
    folder: &'a mut FolderWriter,
    files: &'a mut Vec<FileRecord>,
}

/// The structure of a part as it was written, mapped back.
struct WrittenEdges {
    offsets: MappedArray<u64>,
    neighbors: MappedArray<NodeId>,
}

impl PartWriter<'_> {
    /// Writes original ids, features and labels; returns how many nodes are labelled.
    fn rows(&mut self) -> Result<u64, PartitionError> {
        let count = self.members.len();
        let mut original = self.array::<u32>("orig_id", &[count])?;
        original.write(self.members)?;
        self.files.push(original.finish()?);

        let width = self.graph.manifest().features;
        let mut features = self.array::<f32>("feat", &[self.feature_members.len(), width])?;
        let mut block = Vec::new();
        for members in self.feature_members.chunks((BLOCK_VALUES / width.max(1)).max(1)) {
            block.clear();
            for node in members {
                block.extend_from_slice(self.graph.feature_row(*node));
            }
            features.write(&block)?;
        }
        self.files.push(features.finish()?);

        let mut labels = self.array::<i64>("label", &[count])?;
        let mut labelled = 0;
        let mut block = Vec::new();
        for members in self.members.chunks(BLOCK_ROWS) {
            block.clear();
            block.extend(members.iter().map(|node| self.graph.labels()[*node as usize]));
            labelled += block.iter().filter(|label| **label >= 0).count() as u64;
            labels.write(&block)?;
        }
        self.files.push(labels.finish()?);
        Ok(labelled)
    }

    /// Writes offsets and neighbours, the latter under their new ids and ascending.
    fn structure(&mut self, edges: u64) -> Result<WrittenEdges, PartitionError> {
        let topology = self.graph.topology();
        let mut offsets = self.array::<u64>("indptr", &[self.members.len() + 1])?;
        let mut neighbors = self.array::<NodeId>("indices", &[edges as usize])?;
        let mut sum = 0;
        offsets.write(&[sum])?;
        for members in self.members.chunks(BLOCK_ROWS) {
            let rows: Vec<Vec<NodeId>> = members
                .par_iter()
                .map(|node| {
                    let global = |neighbor: &NodeId| self.relabelling.global[*neighbor as usize];
                    let mut row: Vec<NodeId> = topology.row(*node).iter().map(global).collect();
                    row.sort_unstable();
                    row
                })
                .collect();
            for row in rows {
                sum += row.len() as u64;
                offsets.write(&[sum])?;
                neighbors.write(&row)?;
            }
        }
        self.files.push(offsets.finish()?);
        self.files.push(neighbors.finish()?);
        Ok(WrittenEdges {
            offsets: MappedArray::open(&self.folder.path().join(self.name("indptr")))?,
            neighbors: MappedArray::open(&self.folder.path().join(self.name("indices")))?,
        })
    }

    /// Writes the local rows of a split, ascending, and returns them.
    fn split(&mut self, name: &str, purpose: Purpose) -> Result<Vec<u32>, PartitionError> {
        let book = &self.relabelling.book;
        let own = book.range(self.part);
        let mut rows: Vec<u32> = (self.graph.split(purpose).iter())
            .map(|node| self.relabelling.global[*node as usize])
            .filter(|global| own.contains(global))
            .map(|global| global - own.start)
            .collect();
        rows.sort_unstable();
        let mut writer = self.array::<u32>(name, &[rows.len()])?;
        writer.write(&rows)?;
        self.files.push(writer.finish()?);
        Ok(rows)
    }

    fn array<T: Element>(&mut self, name: &str, shape: &[usize]) -> Result<ArrayWriter<T>, PartitionError> {
        let name = self.name(name);
        Ok(self.folder.array(&name, shape)?)
    }

    fn name(&self, array: &str) -> String {
        format!("{}/{array}.npy", part_folder(self.part))
    }
}
