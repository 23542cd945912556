//! CPU nanoseconds per access of planning an epoch, and of the bound beside it: an access is one remote row of one batch.
//!
//! The trace has the shape of a rank of a Reddit-like graph in four parts: 40 batches that each need about 50,000 of the
//! 175,000 remote rows, some rows far more often than others.
//! Beside it stands the estimate of inclusion probabilities, in CPU nanoseconds per edge of the `small` synthetic graph.
//!
//! `cargo bench --workspace --bench planner`

mod cpu_time;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use cpu_time::CpuTime;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use greengnn_model::book::PartitionBook;
use greengnn_model::plan::CacheState;
use greengnn_model::policy::bound::RunUses;
use greengnn_model::policy::bulk::Bulk;
use greengnn_model::policy::delivery::{ReuseCounts, Search};
use greengnn_model::policy::{
    Budget, MemoryTrace, PlanError, PlanInput, Planner, Policy, RemoteTrace, policy_by_name, vip,
};
use greengnn_model::rng::{CounterRng, Purpose, mix_words};
use greengnn_model::synth::SynthSpec;

const PART_NODES: u32 = 58_333;
const PARTS: u32 = 4;
const BATCHES: u64 = 40;

/// Node `n` is in a batch with a probability of its own: a uniform number to the power of 2.5, which is 2/7 on average and
/// nearly 1 for a few nodes.
fn epoch(book: &PartitionBook, epoch: u64) -> (MemoryTrace, u64) {
    let steps: Vec<Vec<u32>> = (0..BATCHES)
        .map(|batch| {
            (book.range(1).start..book.nodes())
                .filter(|node| {
                    let unit = |words: &[u64]| CounterRng::new(mix_words(words)).unit_f64();
                    let node = u64::from(*node);
                    unit(&[epoch, batch, node]) < unit(&[node]).powf(2.5)
                })
                .collect()
        })
        .collect();
    let accesses = steps.iter().map(|nodes| nodes.len() as u64).sum();
    let steps = steps.iter().map(|nodes| (Purpose::Train, &nodes[..]));
    (MemoryTrace::from_nodes(book, steps), accesses)
}

fn plan_epoch(mut planner: Box<dyn Planner>) -> Result<CacheState, PlanError> {
    while let Some(plan) = planner.next_window()? {
        black_box(plan);
    }
    Ok(planner.into_state())
}

fn planner(c: &mut Criterion<CpuTime>) {
    let bounds = (0..=PARTS).map(|part| part * PART_NODES).collect();
    let book = Arc::new(PartitionBook::new(bounds).expect("bounds that ascend"));
    let epochs = [0, 1, 2].map(|number| epoch(&book, number));
    let accesses = epochs[1].1;
    let traces = epochs.map(|(trace, _)| Arc::new(trace) as Arc<dyn RemoteTrace>);
    let mut group = c.benchmark_group("planner");
    group.throughput(Throughput::Elements(accesses)).sample_size(10);
    let names = ["on-demand", "lru", "lfu", "fifo", "epoch", "window", "bulk"];
    let named = names.map(|name| (name, policy_by_name(name).expect("a policy of that name")));
    let windows: Arc<dyn Policy> = Arc::new(Bulk::windows_only());
    for (name, policy) in named.into_iter().chain([("bulk, windows only", windows)]) {
        for percent in [10, 25, 50] {
            let asked = Budget::Share {
                millionths: percent * 10_000,
            };
            let input = |epoch: usize, state| PlanInput {
                rank: 0,
                book: Arc::clone(&book),
                budget_rows: policy.budget_rows(&book, 0, asked.rows(4, book.remote_nodes(0))),
                window: 16,
                trace: Arc::clone(&traces[epoch]),
                next: traces.get(epoch + 1).cloned(),
                from_step: 0,
                state,
            };
            // The second epoch of a run, with what the first has left.
            let first = policy.plan(input(0, CacheState::default())).and_then(plan_epoch);
            let state = first.expect("a plan of the first epoch");
            group.bench_function(BenchmarkId::new(name, format!("{percent}%")), |bencher| {
                bencher.iter_batched(
                    || input(1, state.clone()),
                    |input| policy.plan(input).and_then(plan_epoch),
                    BatchSize::PerIteration,
                );
            });
        }
    }
    let run_uses = || RunUses::new([&*traces[1]], 0, &book, 0).expect("a trace in memory");
    group.bench_function("bound/uses", |bencher| bencher.iter_with_large_drop(run_uses));
    let uses = run_uses();
    let rows = book.remote_nodes(0) / 4;
    group.bench_function("bound/25%", |bencher| {
        bencher.iter(|| uses.fewest_rows(black_box(rows)))
    });
    // Delivery times over an epoch and the next, as `bulk` sees them.
    let horizon = [&*traces[1], &*traces[2]];
    let count = || ReuseCounts::new(horizon, 0, u32::MAX, &[], &book, 0).expect("traces in memory");
    group.bench_function("delivery/counts", |bencher| bencher.iter_with_large_drop(count));
    let counts = count();
    let windows = counts.greedy_windows(rows, rows / 4 * 3);
    group.bench_function("delivery/sweep/25%", |bencher| {
        bencher.iter(|| counts.sweep(black_box(rows), &windows).expect("windows that fit"))
    });
    for percent in [10, 25, 50] {
        let rows = book.remote_nodes(0) * percent / 100;
        group.bench_function(format!("delivery/search/{percent}%"), |bencher| {
            bencher.iter(|| {
                counts
                    .search(black_box(rows), &Search::default())
                    .expect("nothing is held")
            })
        });
    }
    group.finish();
}

/// Batches of 1000 of a quarter of the training nodes.
fn inclusion(c: &mut Criterion<CpuTime>) {
    let spec = SynthSpec::preset("small", 1).expect("a preset");
    let graph = spec.graph().expect("a synthetic graph");
    let seeds = &graph.train[..graph.train.len() / 4];
    let mut group = c.benchmark_group("vip");
    group
        .throughput(Throughput::Elements(graph.neighbors.len() as u64))
        .sample_size(10);
    for fanouts in [&[25, 10][..], &[15, 10, 5]] {
        group.bench_function(BenchmarkId::from_parameter(format!("{fanouts:?}")), |bencher| {
            bencher.iter(|| vip(&[graph.topology()], black_box(seeds), 1000, fanouts).expect("a graph"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = planner, inclusion
}
criterion_main!(benches);
