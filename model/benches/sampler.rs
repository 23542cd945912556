//! How fast mini-batches are sampled and written: `cargo bench --workspace --bench sampler`.
//!
//! The graph has 600,000 nodes and 30 million edges with skewed degrees, made here; a batch has 2,000 seeds and fanouts
//! [25, 10]. "Elements" of the sampler are sampled edges, those of the trace are edges and nodes of a record.
//!
//! All runs on one thread, and times are *CPU times* of the process, so that a busy machine does not spoil them.
//! `GREENGNN_BENCH_NODES` changes the size of the graph.

mod cpu_time;

use std::convert::Infallible;
use std::hint::black_box;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use greengnn_model::batch::MiniBatch;
use greengnn_model::book::PartitionBook;
use greengnn_model::rng::{CounterRng, Purpose, mix_words};
use greengnn_model::sampling::{
    EpochSpec, InMemoryOwners, NeighborQuery, SeedOrder, SeedRows, StepCounts, Topology, answer_query, presample,
};
use greengnn_model::trace::{TraceHeader, TraceReader, TraceWriter};

const MEAN_DEGREE: u64 = 50;
const BATCH_SIZE: u32 = 2_000;

struct Graph {
    offsets: Vec<u64>,
    neighbors: Vec<u32>,
}

impl Graph {
    /// Rows of 10 to 190 neighbours; a third of the neighbours are drawn from the first hundredth of the nodes.
    fn new(nodes: u32) -> Self {
        let mut rng = CounterRng::new(mix_words(&[1]));
        let mut offsets = vec![0u64];
        let mut neighbors = Vec::with_capacity(nodes as usize * MEAN_DEGREE as usize);
        for _ in 0..nodes {
            let draw = rng.unit_f64();
            let degree = 10 + (180.0 * draw.powf(3.5)) as u64;
            neighbors.extend((0..degree).map(|_| {
                let hub = rng.below(3) == 0;
                rng.below(if hub { nodes / 100 } else { nodes })
            }));
            offsets.push(neighbors.len() as u64);
        }
        Self { offsets, neighbors }
    }

    fn part(&self, first: u32, rows: u32) -> Topology<'_> {
        Topology {
            first,
            offsets: &self.offsets[first as usize..=(first + rows) as usize],
            neighbors: &self.neighbors,
        }
    }
}

fn spec(rank: u16, steps: u32) -> EpochSpec {
    EpochSpec {
        seed: 1,
        epoch: 0,
        rank,
        batch_size: BATCH_SIZE,
        fanouts: vec![25, 10],
        training: Purpose::Train,
        order: SeedOrder::Random,
        steps: StepCounts {
            train: steps,
            ..StepCounts::default()
        },
    }
}

fn sample(graph: &Graph, book: &PartitionBook, spec: &EpochSpec) -> Vec<MiniBatch> {
    let parts: Vec<Topology<'_>> = (0..book.parts())
        .map(|part| graph.part(book.range(part).start, book.part_nodes(part)))
        .collect();
    let local = parts[usize::from(spec.rank)];
    // Seeds from all over the part.
    let seeds = spec.steps.train * BATCH_SIZE;
    let stride = local.rows() / seeds;
    let train: Vec<u32> = (0..seeds).map(|seed| seed * stride).collect();
    let rows = SeedRows {
        train: &train,
        ..SeedRows::default()
    };
    let mut batches = Vec::new();
    let done = presample(spec, rows, book, local, &mut InMemoryOwners::new(parts), |batch| {
        batches.push(batch);
        Ok::<(), Infallible>(())
    });
    done.expect("the specification fits the graph");
    batches
}

fn edges(batches: &[MiniBatch]) -> u64 {
    let blocks = batches.iter().flat_map(|batch| &batch.blocks);
    blocks.map(|block| block.edge_count() as u64).sum()
}

fn benches(criterion: &mut Criterion<CpuTime>) {
    let nodes = std::env::var("GREENGNN_BENCH_NODES")
        .ok()
        .and_then(|nodes| nodes.parse().ok())
        .unwrap_or(600_000);
    let graph = Graph::new(nodes);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
    one_thread.expect("nothing has used the pool before");
    bench_sampler(criterion, &graph, nodes);
    bench_trace(criterion, &graph, nodes);
}

fn bench_sampler(criterion: &mut Criterion<CpuTime>, graph: &Graph, nodes: u32) {
    let mut group = criterion.benchmark_group("sampler");
    group.sample_size(10);
    for parts in [1u32, 4] {
        let bounds = (0..=parts).map(|part| nodes / parts * part).collect();
        let book = PartitionBook::new(bounds).expect("bounds ascend");
        let spec = spec(0, 16);
        group.throughput(Throughput::Elements(edges(&sample(graph, &book, &spec))));
        group.bench_function(format!("16 batches, {parts} parts"), |bencher| {
            bencher.iter(|| black_box(sample(graph, &book, &spec)));
        });
    }
    let query = NeighborQuery {
        key: 7,
        fanout: 10,
        rows: (0..nodes).step_by(10).collect(),
    };
    let topology = graph.part(0, nodes);
    let reply = answer_query(topology, &query).expect("rows are in range");
    group.throughput(Throughput::Elements(reply.neighbors.len() as u64));
    group.bench_function("one owner's answer", |bencher| {
        bencher.iter(|| black_box(answer_query(topology, &query)));
    });
    group.finish();
}

fn bench_trace(criterion: &mut Criterion<CpuTime>, graph: &Graph, nodes: u32) {
    let bounds = (0..=4).map(|part| nodes / 4 * part).collect();
    let book = PartitionBook::new(bounds).expect("bounds ascend");
    let spec = spec(1, 4);
    let batches = sample(graph, &book, &spec);
    let header = TraceHeader {
        rows: None,
        spec,
        book,
        graph_hash: [0; 32],
    };
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = folder.path().join("rank-1.trace");
    let write = || {
        let mut writer = TraceWriter::create(&path, header.clone()).expect("the trace can be started");
        writer.append_all(&batches).expect("the batches can be written");
        writer
    };

    let nodes: u64 = batches.iter().map(|batch| batch.nodes.len() as u64).sum();
    let rows: u64 = batches.iter().map(|batch| batch.remote.len() as u64).sum();
    let mut group = criterion.benchmark_group("trace");
    group.sample_size(10);
    group.throughput(Throughput::Elements(edges(&batches) + nodes));
    group.bench_function("encode and write 4 batches", |bencher| {
        bencher.iter(|| write().bytes());
    });
    let writer = write();
    println!(
        "4 batches: {} edges, {nodes} nodes, {rows} remote rows, {} bytes",
        edges(&batches),
        writer.bytes()
    );
    writer.finish().expect("the trace can be finished");
    let reader = TraceReader::open(&path).expect("the trace can be opened");
    group.bench_function("decode 4 batches", |bencher| {
        bencher.iter(|| {
            (0..4)
                .map(|step| reader.batch(step).expect("the batch can be read").nodes.len())
                .sum::<usize>()
        });
    });
    group.throughput(Throughput::Elements(rows));
    group.bench_function("decode the remote rows of 4 batches", |bencher| {
        bencher.iter(|| {
            (0..4)
                .map(|step| reader.remote_rows(step).expect("the rows can be read").len())
                .sum::<usize>()
        });
    });
    group.finish();
}

criterion_group! {
    name = sampler;
    config = Criterion::default().with_measurement(CpuTime);
    targets = benches
}
criterion_main!(sampler);
