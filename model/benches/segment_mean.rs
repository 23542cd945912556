//! The mean over sampled neighbours and its gradient, beside the least that memory allows: every row that is touched is
//! read once and every output row is written once, in order, by all threads.
//!
//! All times are CPU times of all threads together. `cargo bench --workspace --bench segment_mean`

mod cpu_time;
mod shapes;

use std::hint::black_box;
use std::time::Duration;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput};
use greengnn_model::assemble::{Columns, StoredRow, StoredRows, TransposedBlock, segment_mean, segment_mean_backward};
use greengnn_model::row_type::RowType;
use rayon::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Case {
    name: &'static str,
    destinations: u32,
    sources: u32,
    edges: u32,
    width: usize,
}

const CASES: [Case; 2] = [
    Case {
        name: "reddit-like d=602",
        destinations: 20_756,
        sources: 202_787,
        edges: 518_900,
        width: 602,
    },
    Case {
        name: "products-like d=100",
        destinations: 19_452,
        sources: 254_425,
        edges: 359_204,
        width: 100,
    },
];

/// Reads one matrix and writes another, each once.
fn stream(read: &[f32], write: &mut [f32]) {
    const CHUNK: usize = 1 << 14;
    let total: f32 = read
        .par_chunks(CHUNK)
        .map(|chunk| {
            let mut lanes = [0.0f32; 64];
            for values in chunk.chunks_exact(64) {
                for (lane, value) in lanes.iter_mut().zip(values) {
                    *lane += value;
                }
            }
            lanes.iter().sum::<f32>()
        })
        .sum();
    write.par_chunks_mut(CHUNK).for_each(|chunk| chunk.fill(total));
}

fn encode(rows: &[&[f32]], row_type: RowType, bytes: &mut [u8]) {
    let row_bytes = row_type.row_bytes(rows[0].len());
    rows.par_iter()
        .zip(bytes.par_chunks_exact_mut(row_bytes))
        .for_each(|(row, bytes)| row_type.encode(row, bytes));
}

fn encoded(rows: &[&[f32]], row_type: RowType) -> Vec<u8> {
    let mut bytes = vec![0; rows.len() * row_type.row_bytes(rows[0].len())];
    encode(rows, row_type, &mut bytes);
    bytes
}

fn main() {
    let mut criterion = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for case in &CASES {
        let block = shapes::block(case.destinations, case.sources, case.edges);
        let transposed = TransposedBlock::new(&block).unwrap();
        let width = case.width;
        let rows = shapes::values(case.sources as usize * width);
        let mut scattered: Vec<&[f32]> = rows.chunks_exact(width).collect();
        // As a store hands them over: not in the order of the batch.
        greengnn_model::rng::shuffle(3, &mut scattered);
        let mut mean = vec![0.0; case.destinations as usize * width];
        let mut back = vec![0.0; rows.len()];

        let mut group = criterion.benchmark_group(case.name);
        group.throughput(Throughput::Bytes((case.edges as usize * width * 4) as u64));
        group.bench_function("forward", |bencher| {
            bencher.iter(|| segment_mean(&Columns::all(&rows, width), &block, width, black_box(&mut mean)).unwrap());
        });
        group.bench_function("forward, rows scattered", |bencher| {
            bencher.iter(|| segment_mean(&scattered[..], &block, width, black_box(&mut mean)).unwrap());
        });
        for row_type in [RowType::F16, RowType::Bf16, RowType::Int8] {
            let encoded = encoded(&scattered, row_type);
            let stored: Vec<StoredRow> = encoded
                .chunks_exact(row_type.row_bytes(width))
                .map(StoredRow::Remote)
                .collect();
            group.bench_function(
                format!("forward, {row_type} rows decoded where they are added"),
                |bencher| {
                    let rows = StoredRows {
                        rows: &stored,
                        row_type,
                    };
                    bencher.iter(|| segment_mean(&rows, &block, width, black_box(&mut mean)).unwrap());
                },
            );
            let mut decoded = vec![0.0; rows.len()];
            group.bench_function(
                format!("forward, {row_type} rows decoded into a matrix first"),
                |bencher| {
                    bencher.iter(|| {
                        let rows = encoded.par_chunks_exact(row_type.row_bytes(width));
                        rows.zip(decoded.par_chunks_exact_mut(width))
                            .for_each(|(bytes, row)| row_type.decode(bytes, row));
                        segment_mean(&Columns::all(&decoded, width), &block, width, black_box(&mut mean)).unwrap();
                    });
                },
            );
            let mut again = vec![0; encoded.len()];
            group.bench_function(format!("encoding the rows as {row_type}"), |bencher| {
                bencher.iter(|| encode(black_box(&scattered), row_type, &mut again));
            });
        }
        group.bench_function("forward, memory floor", |bencher| {
            bencher.iter(|| stream(black_box(&rows), black_box(&mut mean)));
        });
        group.bench_function("backward", |bencher| {
            bencher.iter(|| segment_mean_backward(&mean, &transposed, width, black_box(&mut back)).unwrap());
        });
        group.bench_function("backward, memory floor", |bencher| {
            bencher.iter(|| stream(black_box(&mean), black_box(&mut back)));
        });
        group.bench_function("transpose", |bencher| {
            bencher.iter(|| TransposedBlock::new(black_box(&block)).unwrap());
        });
        group.finish();
    }
    criterion.final_summary();
}
