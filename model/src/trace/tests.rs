use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rayon::ThreadPoolBuilder;

use super::*;
use crate::batch::{Block, MiniBatch, OwnerRows, RemoteRows};
use crate::book::PartitionBook;
use crate::policy::{MemoryTrace, RemoteTrace};
use crate::rng::Purpose;
use crate::rows::RowBook;
use crate::sampling::presample_groups;
use crate::sampling::tests::TestGraph;

fn header(graph: &TestGraph, rank: u16, batch_size: u32, fanouts: &[u32]) -> TraceHeader {
    TraceHeader {
        rows: None,
        spec: graph.spec(rank, batch_size, fanouts),
        book: graph.book.clone(),
        graph_hash: [9; 32],
    }
}

fn write(path: &Path, header: &TraceHeader, batches: &[MiniBatch]) {
    let mut writer = TraceWriter::create(path, header.clone()).unwrap();
    for batch in batches {
        writer.append(batch).unwrap();
    }
    writer.finish().unwrap();
}

/// A trace with everything in it: several parts, empty steps, all purposes.
fn sample_trace(path: &Path) -> (TraceHeader, Vec<MiniBatch>) {
    let graph = TestGraph::new(11, &[120, 0, 300, 200], 12);
    let header = header(&graph, 0, 7, &[4, 3]);
    let batches = graph.sample(&header.spec);
    write(path, &header, &batches);
    (header, batches)
}

fn problem(error: TraceError) -> Problem {
    match error {
        TraceError::Refused { problem, .. } => problem,
        other => panic!("not a refusal: {other}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_trace_comes_back_exactly(
        key: u64,
        sizes in prop::collection::vec(0u32..400, 1..5),
        degree in 0u32..30,
        batch_size in 1u32..300,
        fanouts in prop::collection::vec(0u32..9, 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank.trace");
        let graph = TestGraph::new(key, &sizes, degree);
        for rank in 0..graph.book.parts() {
            let header = header(&graph, rank, batch_size, &fanouts);
            let batches = graph.sample(&header.spec);
            write(&path, &header, &batches);
            let reader = TraceReader::open(&path).unwrap();
            prop_assert_eq!(reader.header(), &header);
            prop_assert_eq!(RemoteTrace::steps(&reader) as usize, batches.len());
            // Backwards, for any order will do.
            for batch in batches.iter().rev() {
                prop_assert_eq!(&reader.batch(batch.step).unwrap(), batch);
                prop_assert_eq!(&reader.remote_rows(batch.step).unwrap(), &batch.remote);
                prop_assert_eq!(reader.purpose(batch.step), batch.purpose);
            }
        }
    }
}

/// A trace whose rows are owned by parts that have nothing to do with their nodes'.
fn trace_with_rows_apart(path: &Path) -> (TraceHeader, Vec<MiniBatch>) {
    let graph = TestGraph::new(21, &[120, 0, 300, 200], 12);
    let owners: Vec<u16> = (0..graph.book.nodes()).map(|node| (node / 7 % 4) as u16).collect();
    let rows = RowBook::of_owners(&owners, 4).unwrap();
    let header = TraceHeader {
        rows: Some((**rows.book()).clone()),
        ..header(&graph, 2, 7, &[4, 3])
    };
    let mut batches = graph.sample(&header.spec);
    batches.iter_mut().for_each(|batch| rows.locate(2, batch));
    write(path, &header, &batches);
    (header, batches)
}

#[test]
fn a_trace_whose_rows_are_owned_apart_comes_back_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (header, batches) = trace_with_rows_apart(&path);
    assert!(
        batches
            .iter()
            .any(|batch| batch.remote.owners.iter().any(|owned| owned.owner == 1))
    );
    let reader = TraceReader::open(&path).unwrap();
    assert_eq!(reader.header(), &header);
    for batch in &batches {
        assert_eq!(&reader.batch(batch.step).unwrap(), batch);
        assert_eq!(&reader.remote_rows(batch.step).unwrap(), &batch.remote);
    }
    // The bit by which a program that knows nothing of this refuses the file.
    assert_eq!(fs::read(&path).unwrap()[16..24], 2u64.to_le_bytes());
}

#[test]
fn row_bounds_belong_to_the_configuration_and_to_the_graph() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (header, batches) = trace_with_rows_apart(&path);
    let reader = TraceReader::open(&path).unwrap();
    reader.expect(&header).unwrap();
    let plain = TraceHeader {
        rows: None,
        ..header.clone()
    };
    let refused = problem(reader.expect(&plain).unwrap_err());
    assert!(
        matches!(
            refused,
            Problem::OtherConfiguration {
                field: "row bounds",
                ..
            }
        ),
        "{refused}"
    );
    let strange = TraceHeader {
        rows: Some(PartitionBook::new(vec![0, 1, 2, 3, 4]).unwrap()),
        ..header.clone()
    };
    let refused = problem(TraceWriter::create(&path, strange).unwrap_err());
    assert!(matches!(refused, Problem::BadHeader { .. }), "{refused}");
    // A batch that was not told where its rows are does not fit a plain trace.
    let other = folder.path().join("other.trace");
    let mut writer = TraceWriter::create(&other, plain).unwrap();
    let refused = problem(writer.append(&batches[0]).unwrap_err());
    assert!(matches!(refused, Problem::BadBatch { step: 0, .. }), "{refused}");
}

#[test]
fn the_file_is_the_same_at_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let graph = TestGraph::new(12, &[300, 200, 250], 20);
    let header = header(&graph, 1, 5, &[5, 4, 3]);
    let files: Vec<Vec<u8>> = [1, 3, 7]
        .into_iter()
        .map(|threads| {
            let path = folder.path().join(format!("{threads}.trace"));
            let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut writer = TraceWriter::create(&path, header.clone()).unwrap();
                let (seeds, local) = (graph.seeds(1), graph.topology(1));
                presample_groups(&header.spec, seeds, &graph.book, local, &mut graph.owners(), |group| {
                    writer.append_all(&group)
                })
                .unwrap();
                writer.finish().unwrap();
            });
            fs::read(path).unwrap()
        })
        .collect();
    assert!(files[0].len() > 10_000);
    assert!(files.iter().all(|file| *file == files[0]));
}

#[test]
fn every_damaged_byte_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (_, batches) = sample_trace(&path);
    let whole = fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(7).chain(whole.len() - 24..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).unwrap();
        let noticed = match TraceReader::open(&path) {
            Err(_) => true,
            Ok(reader) => batches.iter().any(|batch| reader.batch(batch.step).is_err()),
        };
        assert!(noticed, "byte {at}");
    }
}

#[test]
fn every_truncation_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    sample_trace(&path);
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).step_by(11).chain(whole.len() - 30..whole.len()) {
        fs::write(&path, &whole[..length]).unwrap();
        let refused = problem(TraceReader::open(&path).unwrap_err());
        assert_eq!(refused, Problem::Truncated { found: length as u64 });
    }
}

#[test]
fn strangers_are_refused_in_a_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    sample_trace(&path);
    let whole = fs::read(&path).unwrap();
    let refusal = |at: usize, byte: u8| {
        let mut changed = whole.clone();
        changed[at] = byte;
        fs::write(&path, changed).unwrap();
        TraceReader::open(&path).unwrap_err()
    };
    assert_eq!(problem(refusal(0, b'X')), Problem::Magic);
    assert_eq!(problem(refusal(8, 2)), Problem::Version { found: 2, wanted: 1 });
    assert_eq!(problem(refusal(16, 4)), Problem::Features { unknown: 4 });
    let text = refusal(8, 2).to_string();
    assert!(
        text.ends_with("the file has format version 2, this program reads version 1; presample again"),
        "{text}"
    );
    fs::write(&path, "edges").unwrap();
    assert_eq!(problem(TraceReader::open(&path).unwrap_err()), Problem::Magic);
    let missing = TraceReader::open(folder.path().join("none")).unwrap_err();
    assert!(matches!(missing, TraceError::Read { .. }), "{missing}");
}

#[test]
fn a_trace_of_another_configuration_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (header, _) = sample_trace(&path);
    let reader = TraceReader::open(&path).unwrap();
    assert!(reader.expect(&header).is_ok());
    let mut other = header.clone();
    other.spec.fanouts = vec![4, 5];
    let differs = Problem::OtherConfiguration {
        field: "list of fanouts",
        found: "[4, 3]".into(),
        wanted: "[4, 5]".into(),
    };
    assert_eq!(problem(reader.expect(&other).unwrap_err()), differs);
    let mut other = header.clone();
    other.graph_hash[31] = 1;
    let error = problem(reader.expect(&other).unwrap_err());
    assert!(
        matches!(
            error,
            Problem::OtherConfiguration {
                field: "graph hash",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn steps_are_appended_in_order_and_all_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (header, batches) = sample_trace(&folder.path().join("other.trace"));
    let mut writer = TraceWriter::create(&path, header.clone()).unwrap();
    let error = problem(writer.append(&batches[1]).unwrap_err());
    assert_eq!(error, Problem::OutOfOrder { found: 1, wanted: 0 });
    writer.append_all(&batches[..2]).unwrap();
    assert_eq!(writer.next_step(), 2);
    let error = problem(writer.finish().unwrap_err());
    let wanted = batches.len() as u32;
    assert_eq!(error, Problem::Unfinished { found: 2, wanted });
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["other.trace"]);

    let mut writer = TraceWriter::create(&path, header).unwrap();
    writer.append_all(&batches).unwrap();
    let error = problem(writer.append(&batches[0]).unwrap_err());
    assert!(matches!(error, Problem::NoSuchStep { .. }), "{error}");
    assert!(!path.exists());
    writer.finish().unwrap();
    let reader = TraceReader::open(&path).unwrap();
    let error = problem(reader.batch(wanted).unwrap_err());
    assert_eq!(
        error,
        Problem::NoSuchStep {
            step: wanted,
            steps: wanted
        }
    );
    let error = RemoteTrace::remote_rows(&reader, wanted).unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}

#[test]
fn batches_that_the_sampler_never_makes_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (header, batches) = sample_trace(&folder.path().join("other.trace"));
    let batch = &batches[0];
    let distortions: [fn(&mut MiniBatch); 11] = [
        |batch| batch.purpose = Purpose::Test,
        |batch| drop(batch.blocks.pop()),
        |batch| batch.nodes.truncate(10),
        |batch| batch.nodes[0] = batch.nodes[1],
        |batch| *batch.nodes.last_mut().unwrap() = 620,
        |batch| batch.nodes.swap(7, 8),
        |batch| batch.blocks[0].sources[0] = batch.blocks[0].source_count,
        |batch| batch.blocks[0].offsets[1] = 1_000,
        |batch| *batch.blocks[1].offsets.last_mut().unwrap() += 1,
        |batch| batch.remote.owners[0].rows.truncate(1),
        |batch| batch.remote = RemoteRows::default(),
    ];
    for (index, distort) in distortions.into_iter().enumerate() {
        let mut batch = batch.clone();
        distort(&mut batch);
        let mut writer = TraceWriter::create(&path, header.clone()).unwrap();
        let error = problem(writer.append(&batch).unwrap_err());
        assert!(matches!(error, Problem::BadBatch { step: 0, .. }), "{index}: {error}");
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let partial = folder.path().join("rank.trace.partial");
    let (header, batches) = sample_trace(&folder.path().join("other.trace"));
    // /dev/full takes no byte.
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let mut writer = TraceWriter::create(&path, header).unwrap();
    let error = writer.append_all(&batches).and_then(|()| writer.finish()).unwrap_err();
    assert!(matches!(error, TraceError::DiskFull { .. }), "{error:?}");
    assert!(error.to_string().contains("rank.trace cannot be written"), "{error}");
    assert!(!path.exists() && !partial.is_symlink());
}

#[test]
fn an_in_memory_trace_says_what_a_file_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rank.trace");
    let (_, batches) = sample_trace(&path);
    let (file, memory) = (TraceReader::open(&path).unwrap(), MemoryTrace::from_batches(&batches));
    assert_eq!(RemoteTrace::steps(&file), memory.steps());
    for step in 0..memory.steps() {
        assert_eq!(file.purpose(step), memory.purpose(step));
        let rows = RemoteTrace::remote_rows(&file, step).unwrap();
        assert_eq!(rows, memory.remote_rows(step).unwrap());
    }
    assert!(memory.remote_rows(memory.steps()).is_err());
    let rows = RemoteRows {
        owners: vec![OwnerRows {
            owner: 1,
            rows: vec![3],
        }],
    };
    let memory = MemoryTrace::new([(Purpose::Train, rows.clone())]);
    assert_eq!((memory.steps(), memory.purpose(0)), (1, Purpose::Train));
    assert_eq!(*memory.remote_rows(0).unwrap(), rows);
}

/// The file of `docs/trace-format.md`'s example: what this program wrote in version 1 stays readable.
#[test]
fn the_bytes_of_version_1_do_not_change() {
    let book = crate::book::PartitionBook::new(vec![0, 2, 4]).unwrap();
    let header = TraceHeader {
        rows: None,
        spec: crate::sampling::EpochSpec {
            seed: 1,
            epoch: 2,
            rank: 0,
            batch_size: 2,
            fanouts: vec![3],
            training: Purpose::Train,
            order: crate::sampling::SeedOrder::Random,
            steps: crate::sampling::StepCounts {
                train: 1,
                valid: 0,
                test: 0,
            },
        },
        book,
        graph_hash: [0; 32],
    };
    let batch = MiniBatch {
        step: 0,
        purpose: Purpose::Train,
        nodes: vec![1, 0, 3],
        blocks: vec![Block {
            offsets: vec![0, 2, 2],
            sources: vec![2, 0],
            source_count: 3,
        }],
        remote: RemoteRows {
            owners: vec![OwnerRows {
                owner: 1,
                rows: vec![1],
            }],
        },
    };
    let record = record::encode(&batch, &header).unwrap();
    let remote = [1, 0, 1, 0, 1, 0, 0, 0, 1, 1];
    let structure = [2, 0, 0, 0, 0, 1, 0b100, 1, 0b01, 2, 0, 0, 0, 2, 0b10, 2, 0b10];
    assert_eq!(record[28..38], remote);
    assert_eq!(record[38..], structure);
    let frame: Vec<u32> = record[..28]
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect();
    let checksums = [
        crc32c::crc32c(&remote),
        crc32c::crc32c(&structure),
        crc32c::crc32c(&record[..24]),
    ];
    assert_eq!(frame[..4], [0, 0, 10, 17]);
    assert_eq!(frame[4..], checksums);
    let head = header.encode().unwrap();
    assert_eq!(head.len(), 24 + 84 + 4);
    assert_eq!(head[..24], *b"GGtrace\n\x01\0\0\0\x54\0\0\0\0\0\0\0\0\0\0\0");
    // Proximity order sets a feature bit and adds a field at the end of the others.
    let mut ordered = header.clone();
    ordered.spec.order = crate::sampling::SeedOrder::Proximity { sequences: 5 };
    let longer = ordered.encode().unwrap();
    assert_eq!(longer[..24], *b"GGtrace\n\x01\0\0\0\x58\0\0\0\x01\0\0\0\0\0\0\0");
    assert_eq!(longer[24..24 + 84], head[24..24 + 84]);
    assert_eq!(longer[24 + 84..24 + 88], 5u32.to_le_bytes());
    let prefix = longer[..24].try_into().unwrap();
    assert_eq!(TraceHeader::decode(prefix, &longer[24..24 + 88]).unwrap(), ordered);
    assert!(
        TraceHeader::decode(prefix, &head[24..24 + 84]).is_err(),
        "the field is missing"
    );
    assert!(ordered.expect(&header).unwrap_err().to_string().contains("batch order"));
}
