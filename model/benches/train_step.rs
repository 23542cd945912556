//! One training step of one rank: forward, loss, backward and Adam, with the mean taken in the step or by the loader,
//! beside the floor: the step's matrix products alone, on one thread and on data that is at hand.
//!
//! All times are CPU times of all threads together. `cargo bench --workspace --bench train_step`

mod cpu_time;
mod shapes;

use std::hint::black_box;
use std::time::Duration;

use cpu_time::CpuTime;
use criterion::Criterion;
use greengnn_model::assemble::{InputBuffers, assemble_input};
use greengnn_model::layers::{AssembledBatch, Device, ModelConfig, build};
use greengnn_model::rng::{BatchKey, Purpose};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct Case {
    name: &'static str,
    seeds: u32,
    /// Destinations, sources and picks of the outermost block.
    outer: (u32, u32, u32),
    features: usize,
    hidden: usize,
    classes: usize,
}

const REDDIT: (u32, u32, u32) = (20_756, 202_787, 518_900);
const PRODUCTS: (u32, u32, u32) = (19_452, 254_425, 359_204);

#[rustfmt::skip]
const CASES: [Case; 6] = [
    Case { name: "debian", seeds: 1000, outer: (6_500, 22_000, 48_000), features: 128, hidden: 128, classes: 50 },
    Case { name: "products", seeds: 2000, outer: PRODUCTS, features: 100, hidden: 256, classes: 47 },
    Case { name: "products16", seeds: 2000, outer: PRODUCTS, features: 100, hidden: 16, classes: 47 },
    Case { name: "reddit", seeds: 2000, outer: REDDIT, features: 602, hidden: 16, classes: 41 },
    Case { name: "reddit128", seeds: 2000, outer: REDDIT, features: 602, hidden: 128, classes: 41 },
    Case { name: "papers", seeds: 1000, outer: (10_779, 190_023, 199_086), features: 128, hidden: 256, classes: 172 },
];

fn batch(case: &Case, preaggregate: bool) -> AssembledBatch {
    let (destinations, sources, edges) = case.outer;
    let inner = shapes::block(case.seeds, destinations, 10 * case.seeds);
    let outer = shapes::block(destinations, sources, edges);
    let values = shapes::values(sources as usize * case.features);
    let rows: Vec<&[f32]> = values.chunks_exact(case.features).collect();
    let input = assemble_input(
        &rows[..],
        &outer,
        case.features,
        preaggregate,
        &mut InputBuffers::default(),
    );
    AssembledBatch {
        key: BatchKey {
            seed: 1,
            purpose: Purpose::Train,
            epoch: 0,
            rank: 0,
            step: 0,
        },
        input: input.unwrap(),
        blocks: vec![inner, outer],
        labels: (0..i64::from(case.seeds))
            .map(|seed| seed % case.classes as i64)
            .collect(),
    }
}

/// The matrix products of a step of two layers with two weights each: forward, weight gradients, and the gradients that
/// layer 2 hands to layer 1.
struct Products {
    /// Rows, inputs and outputs of each layer.
    layers: [(usize, usize, usize); 2],
    values: Vec<f32>,
    out: Vec<f32>,
}

impl Products {
    fn new(case: &Case) -> Self {
        let layers = [
            (case.outer.0 as usize, case.features, case.hidden),
            (case.seeds as usize, case.hidden, case.classes),
        ];
        let most = |sizes: [usize; 2]| sizes.into_iter().max().unwrap_or(0);
        let values = most(layers.map(|(rows, inputs, outputs)| (rows + outputs) * inputs.max(outputs)));
        let out = most(layers.map(|(rows, inputs, outputs)| outputs * rows.max(inputs) + rows * inputs));
        Self {
            layers,
            values: shapes::values(values),
            out: vec![0.0; out],
        }
    }

    fn run(&mut self) {
        for (layer, (rows, inputs, outputs)) in self.layers.into_iter().enumerate() {
            for _weight in 0..2 {
                self.product((rows, inputs, outputs), (inputs, 1), (1, inputs));
                self.product((outputs, rows, inputs), (1, outputs), (inputs, 1));
                if layer > 0 {
                    self.product((rows, outputs, inputs), (outputs, 1), (inputs, 1));
                }
            }
        }
    }

    /// `[m, k] x [k, n]`, each factor with its row and column stride.
    fn product(&mut self, (m, k, n): (usize, usize, usize), left: (usize, usize), right: (usize, usize)) {
        assert!(m * k <= self.values.len() && k * n <= self.values.len() && m * n <= self.out.len());
        // SAFETY: by the assertion all three matrices, which have no gaps, lie inside their vectors.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                self.out.as_mut_ptr(),
                1,
                n as isize,
                false,
                self.values.as_ptr(),
                left.1 as isize,
                left.0 as isize,
                self.values.as_ptr(),
                right.1 as isize,
                right.0 as isize,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

fn main() {
    let mut criterion = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    for case in &CASES {
        let config = ModelConfig {
            features: case.features,
            hidden: case.hidden,
            layers: 2,
            classes: case.classes,
            dropout: 0.5,
            learning_rate: 0.003,
        };
        let mut group = criterion.benchmark_group(case.name);
        for (name, preaggregate) in [("mean in the step", false), ("mean by the loader", true)] {
            let batch = batch(case, preaggregate);
            let mut model = build(&Device::cpu(), &config, 1).unwrap();
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let outcome = model.gradients(black_box(&batch), case.seeds).unwrap();
                    model.apply(&outcome.gradients).unwrap();
                });
            });
        }
        let mut products = Products::new(case);
        group.bench_function("matrix products alone", |bencher| bencher.iter(|| products.run()));
        group.finish();
    }
    criterion.final_summary();
}
