//! The offline choice against a cluster on paper: how much worse than the best is what it picks, and does its order agree
//! more with the measured one than an order that is the same everywhere?

mod clock;
mod graphs;

use std::sync::Arc;

use clock::{Measurement, Plans};
use graphs::{Graph, PARTS};
use greengnn_energy::Quality;
use greengnn_energy::choice::{Candidates, Method, Prices, WINDOWS, Workload, choose};
use greengnn_energy::simulator::{Coefficients, Configuration, Evaluation, FetchCost, Measured, Mode, evaluate};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::{Budget, PlanInput, policy_by_name};

/// Batches that are assembled while one is trained, as the program does.
const AHEAD: usize = 1;

/// A kind of cluster. All have gigabit links and four ranks; they differ in what a request costs beside a row.
#[derive(Clone, Copy, Debug)]
struct Cluster {
    name: &'static str,
    request_j: f64,
    row_j: f64,
    request_s: f64,
    row_s: f64,
    bytes_per_s: f64,
    idle_w: f64,
    step_s: f64,
}

/// A request costs as much as this many rows: 10,000, 50, and the paper's 965 with slow links, so that waiting decides.
const CLUSTERS: [Cluster; 3] = [
    Cluster {
        name: "initiation",
        request_j: 0.1,
        row_j: 1e-5,
        request_s: 2e-3,
        row_s: 2e-7,
        bytes_per_s: 1.2e9,
        idle_w: 10.0,
        step_s: 0.01,
    },
    Cluster {
        name: "bytes",
        request_j: 5e-3,
        row_j: 1e-4,
        request_s: 1e-4,
        row_s: 2e-6,
        bytes_per_s: 1.2e8,
        idle_w: 10.0,
        step_s: 0.02,
    },
    Cluster {
        name: "budget",
        request_j: 0.0965,
        row_j: 1e-4,
        request_s: 1e-3,
        row_s: 2e-6,
        bytes_per_s: 1.2e8,
        idle_w: 40.0,
        step_s: 0.01,
    },
];

impl Cluster {
    fn coefficients(&self) -> Coefficients {
        let cost = FetchCost {
            request_j: self.request_j,
            row_j: self.row_j,
            request_s: self.request_s,
            row_s: self.row_s,
        };
        Coefficients {
            owners: vec![cost; usize::from(PARTS)],
            delivery: None,
            row_bytes: 400.0,
            bytes_per_s: self.bytes_per_s,
            idle_w: self.idle_w,
            ahead: AHEAD as u32,
            step_s: self.step_s,
            step_j: 1.0,
        }
    }
}

/// The plans of all ranks, epoch by epoch.
fn plans(workload: &Workload, policy: &str, budget: Budget, window: u32) -> Vec<Vec<Plans>> {
    let policy = policy_by_name(policy).unwrap();
    let mut epochs: Vec<Vec<Plans>> = vec![Vec::new(); workload.ranks[0].epochs.len()];
    for traces in &workload.ranks {
        let remote = workload.book.remote_nodes(traces.rank);
        let budget_rows = policy.budget_rows(&workload.book, traces.rank, budget.rows(workload.row_bytes, remote));
        let mut state = Default::default();
        for (epoch, trace) in traces.epochs.iter().enumerate() {
            let mut planner = policy
                .plan(PlanInput {
                    rank: traces.rank,
                    book: Arc::clone(&workload.book),
                    budget_rows,
                    window,
                    trace: Arc::clone(trace),
                    next: traces.epochs.get(epoch + 1).cloned(),
                    from_step: 0,
                    state,
                })
                .unwrap();
            epochs[epoch].push(std::iter::from_fn(|| planner.next_window().unwrap()).collect());
            state = planner.into_state();
        }
    }
    epochs
}

/// What the clock says of all epochs.
fn measure(epochs: &[Vec<Plans>], coefficients: &Coefficients) -> f64 {
    let run = |plans: &Vec<Plans>| clock::run(plans, coefficients, AHEAD);
    epochs.iter().map(run).map(|epoch: Measurement| epoch.joules).sum()
}

fn percent(percent: u32) -> Budget {
    Budget::Share {
        millionths: percent * 10_000,
    }
}

/// One evaluation per policy, of graphs x batch sizes x budgets x clusters.
fn evaluations(mode: Mode) -> Vec<(&'static str, Evaluation)> {
    let graphs = [
        ("debian", Graph::debian(), [250, 500, 1000], [10, 5]),
        ("synth", Graph::synthetic(), [75, 150, 300], [10, 5]),
    ];
    let policies = ["window", "bulk"];
    let mut configurations: Vec<Vec<Configuration>> = vec![Vec::new(); policies.len()];
    for (graph, traces, batch_sizes, fanouts) in &graphs {
        for batch_size in batch_sizes {
            let workload = traces.traces(*batch_size, fanouts);
            let steps = workload.ranks[0].epochs[0].steps();
            for budget in [percent(5), percent(25)] {
                for (policy, configurations) in policies.iter().zip(&mut configurations) {
                    let planned: Vec<_> = WINDOWS.map(|window| plans(&workload, policy, budget, window)).into();
                    for cluster in CLUSTERS {
                        let coefficients = cluster.coefficients();
                        let prices = Prices {
                            coefficients: coefficients.clone(),
                            quality: Quality::Estimated,
                            doubts: Vec::new(),
                            fingerprint: None,
                        };
                        let candidates = Candidates {
                            methods: vec![Method::new(policy, Delivery::Windowed)],
                            budgets: vec![budget],
                            windows: WINDOWS.to_vec(),
                        };
                        let choice = choose(&workload, &candidates, &prices, None, mode).unwrap();
                        let simulated = WINDOWS.map(|window| {
                            let mut all = choice.predictions.iter();
                            all.find(|one| one.window == window).unwrap().epoch_j
                        });
                        let measured: Vec<f64> = planned.iter().map(|epochs| measure(epochs, &coefficients)).collect();
                        configurations.push(Configuration {
                            name: format!("{graph}/{batch_size} ({steps}) {budget} {}", cluster.name),
                            windows: WINDOWS.to_vec(),
                            steps: Some(steps),
                            simulated: simulated.to_vec(),
                            measured: Measured::Joules(measured),
                        });
                    }
                }
            }
        }
    }
    let evaluated = configurations
        .iter()
        .map(|configurations| evaluate(configurations, 0.0).unwrap());
    policies.into_iter().zip(evaluated).collect()
}

#[test]
fn figures() {
    for mode in [Mode::Plan, Mode::Paper] {
        for (policy, evaluation) in evaluations(mode) {
            println!("{mode:?} {policy}\n{evaluation}");
        }
    }
}
