//! CPU seconds of the offline choice for an epoch of Reddit's size: four ranks, 39 batches of about 65,000 of the 175,000
//! remote rows each, some rows far more often than others. Trace files are read into memory once, then every window is
//! planned and priced on one thread, and the candidates are ordered.
//!
//! `cargo bench -p greengnn-energy --bench choice`

#[path = "../../model/benches/cpu_time/mod.rs"]
mod cpu_time;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cpu_time::CpuTime;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use greengnn_energy::Quality;
use greengnn_energy::choice::{Candidates, Method, Prices, RankTraces, Tuned, Workload, choose};
use greengnn_energy::simulator::{Coefficients, FetchCost, Mode};
use greengnn_model::batch::{Block, MiniBatch, OwnerRows, RemoteRows};
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::{Budget, MemoryTrace, RemoteTrace};
use greengnn_model::rng::{CounterRng, Purpose, mix_words};
use greengnn_model::sampling::{EpochSpec, SeedOrder, StepCounts};
use greengnn_model::trace::{TraceHeader, TraceReader, TraceWriter};

const PARTS: u16 = 4;
const PART_NODES: u32 = 58_241;
const BATCHES: u32 = 39;

/// A row is in a batch with a probability of its own: a uniform number to the power of 1.69, 0.37 on average.
fn remote_rows(book: &PartitionBook, rank: Rank, batch: u32) -> RemoteRows {
    let unit = |words: &[u64]| CounterRng::new(mix_words(words)).unit_f64();
    let is_needed = |node: u32| {
        let drawn = unit(&[u64::from(rank), u64::from(batch), u64::from(node)]);
        drawn < unit(&[u64::from(node)]).powf(1.69)
    };
    let rows = |owner| {
        let range = book.range(owner);
        let first = range.start;
        range.filter(|node| is_needed(*node)).map(|node| node - first).collect()
    };
    let owners = (0..PARTS).filter(|owner| *owner != rank);
    RemoteRows {
        owners: owners
            .map(|owner| OwnerRows {
                owner,
                rows: rows(owner),
            })
            .collect(),
    }
}

fn write_trace(folder: &Path, book: &PartitionBook, rank: Rank) -> PathBuf {
    let path = folder.join(format!("rank-{rank}.trace"));
    let header = TraceHeader {
        spec: EpochSpec {
            seed: 1,
            epoch: 0,
            rank,
            batch_size: 1,
            // All remote rows are neighbours of the one seed: the choice reads them alone, however they were drawn.
            fanouts: vec![book.nodes()],
            training: Purpose::Train,
            order: SeedOrder::Random,
            steps: StepCounts {
                train: BATCHES,
                ..StepCounts::default()
            },
        },
        book: book.clone(),
        rows: None,
        graph_hash: [0; 32],
    };
    let mut writer = TraceWriter::create(&path, header).expect("a new file");
    for step in 0..BATCHES {
        let remote = remote_rows(book, rank, step);
        let global = remote.iter().map(|(owner, row)| book.range(owner).start + row);
        let nodes: Vec<u32> = std::iter::once(book.range(rank).start).chain(global).collect();
        let picks = nodes.len() as u32 - 1;
        let batch = MiniBatch {
            step,
            purpose: Purpose::Train,
            blocks: vec![Block {
                offsets: vec![0, picks],
                sources: (1..=picks).collect(),
                source_count: picks + 1,
            }],
            nodes,
            remote,
        };
        writer.append(&batch).expect("the next step");
    }
    writer.finish().expect("all steps");
    path
}

fn read_trace(path: &Path) -> Arc<dyn RemoteTrace> {
    let reader = TraceReader::open(path).expect("a trace");
    let rows = |step| reader.remote_rows(step).expect("a step of the trace");
    Arc::new(MemoryTrace::new((0..BATCHES).map(|step| (Purpose::Train, rows(step)))))
}

fn prices() -> Prices {
    // The paper's crossover of 965 rows.
    let cost = FetchCost {
        request_j: 0.0965,
        row_j: 1e-4,
        request_s: 1e-3,
        row_s: 1e-6,
    };
    let coefficients = Coefficients {
        owners: vec![cost; usize::from(PARTS)],
        delivery: None,
        row_bytes: 2408.0,
        bytes_per_s: 1.2e9,
        idle_w: 20.0,
        ahead: 1,
        step_s: 0.1,
        step_j: 10.0,
    };
    Prices {
        by_rank: vec![coefficients; usize::from(PARTS)],
        quality: Quality::Estimated,
        doubts: Vec::new(),
        fingerprint: None,
    }
}

fn choice(c: &mut Criterion<CpuTime>) {
    let bounds = (0..=u32::from(PARTS)).map(|part| part * PART_NODES).collect();
    let book = Arc::new(PartitionBook::new(bounds).expect("bounds that ascend"));
    let folder = tempfile::tempdir().expect("a folder for traces");
    let files: Vec<PathBuf> = (0..PARTS).map(|rank| write_trace(folder.path(), &book, rank)).collect();
    let read = || Workload {
        book: Arc::clone(&book),
        ranks: (0..)
            .zip(&files)
            .map(|(rank, file)| RankTraces {
                rank,
                epochs: vec![read_trace(file)],
                held: None,
                tuned: Tuned::default(),
            })
            .collect(),
        row_bytes: 2408,
        run_epochs: 10,
    };
    let (prices, budget) = (prices(), Budget::Share { millionths: 250_000 });
    let mut group = c.benchmark_group("choice");
    group.sample_size(10);
    group.bench_function("read", |bencher| bencher.iter_with_large_drop(read));
    let methods = [
        ("window", Method::new("window", Delivery::Windowed)),
        ("bulk", Method::new("bulk", Delivery::Windowed)),
        ("bulk, streamed", Method::new("bulk", Delivery::Stream)),
    ];
    for (name, method) in methods {
        let candidates = Candidates {
            methods: vec![method],
            ..Candidates::with_budgets(vec![budget])
        };
        group.bench_function(BenchmarkId::new("read, 7 windows, order", name), |bencher| {
            bencher.iter(|| choose(black_box(&read()), &candidates, &prices, None, Mode::Plan).expect("a choice"));
        });
    }
    group.finish();
    let workload = read();
    let chosen = choose(
        &workload,
        &Candidates::with_budgets(vec![budget]),
        &prices,
        None,
        Mode::Plan,
    );
    let chosen = chosen.expect("a choice");
    let rows = chosen.needed_rows / u64::from(BATCHES) / u64::from(PARTS);
    println!("{rows} remote rows a batch\n{chosen}");
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(10));
    targets = choice
}
criterion_main!(benches);
