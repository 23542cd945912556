//! What the choice is evaluated on: graphs, batch sizes, budgets and clusters, those that the simulator was made with and
//! others.

use greengnn_energy::simulator::{Coefficients, FetchCost};
use greengnn_model::policy::Budget;

use crate::graphs::{Graph, PARTS};

/// A kind of cluster of four ranks. They differ in what a request costs beside a row, and in their links.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    pub name: &'static str,
    pub request_j: f64,
    pub row_j: f64,
    pub request_s: f64,
    pub row_s: f64,
    pub bytes_per_s: f64,
    pub idle_w: f64,
    pub step_s: f64,
    /// How many times slower and dearer the last machine is: its steps, and what others ask of it.
    pub last_machine: f64,
}

/// A request costs as much as this many rows: 10,000, 50, and the paper's 965 with slow links, so that waiting decides.
pub const CLUSTERS: [Cluster; 3] = [
    Cluster {
        name: "initiation",
        request_j: 0.1,
        row_j: 1e-5,
        request_s: 2e-3,
        row_s: 2e-7,
        bytes_per_s: 1.2e9,
        idle_w: 10.0,
        step_s: 0.01,
        last_machine: 1.0,
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
        last_machine: 1.0,
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
        last_machine: 1.0,
    },
];

/// Clusters that were written down once the simulator was as it is: slow owners on fast links, steps that hide little, and
/// one machine that is slower than the others.
const HELD_OUT_CLUSTERS: [Cluster; 3] = [
    Cluster {
        name: "owners",
        request_j: 0.03,
        row_j: 8e-5,
        request_s: 4e-4,
        row_s: 8e-6,
        bytes_per_s: 1.2e9,
        idle_w: 50.0,
        step_s: 0.015,
        last_machine: 1.0,
    },
    Cluster {
        name: "short steps",
        request_j: 0.04,
        row_j: 2e-5,
        request_s: 2e-3,
        row_s: 1e-6,
        bytes_per_s: 2e8,
        idle_w: 100.0,
        step_s: 0.003,
        last_machine: 1.0,
    },
    Cluster {
        name: "mixed",
        request_j: 0.06,
        row_j: 6e-5,
        request_s: 1.5e-3,
        row_s: 1.5e-6,
        bytes_per_s: 1.5e8,
        idle_w: 35.0,
        step_s: 0.012,
        last_machine: 2.5,
    },
];

impl Cluster {
    /// By rank.
    pub fn coefficients(&self) -> Vec<Coefficients> {
        let last = usize::from(PARTS) - 1;
        let factor = |machine: usize| if machine == last { self.last_machine } else { 1.0 };
        let cost = |machine: usize| FetchCost {
            request_j: self.request_j * factor(machine),
            row_j: self.row_j * factor(machine),
            request_s: self.request_s * factor(machine),
            row_s: self.row_s * factor(machine),
        };
        let of_rank = |rank: usize| Coefficients {
            owners: (0..=last).map(cost).collect(),
            delivery: None,
            row_bytes: 400.0,
            bytes_per_s: self.bytes_per_s,
            idle_w: self.idle_w,
            // As the program does.
            ahead: 1,
            step_s: self.step_s * factor(rank),
            step_j: 1.0,
        };
        (0..=last).map(of_rank).collect()
    }
}

/// A graph, its name, and the batch sizes of its traces.
pub struct Subject {
    pub name: &'static str,
    pub graph: Graph,
    pub batch_sizes: Vec<u32>,
}

/// What is evaluated: every combination.
pub struct Study {
    pub subjects: Vec<Subject>,
    pub seed: u64,
    pub fanouts: Vec<u32>,
    pub budgets: Vec<Budget>,
    pub clusters: Vec<Cluster>,
}

impl Study {
    /// What the simulator was made with.
    pub fn known() -> Self {
        let subject = |name, graph, batch_sizes: [u32; 3]| Subject {
            name,
            graph,
            batch_sizes: batch_sizes.to_vec(),
        };
        Self {
            subjects: vec![
                subject("debian", Graph::debian(), [250, 500, 1000]),
                subject("synth", Graph::synthetic(1), [75, 150, 300]),
            ],
            seed: 1,
            fanouts: vec![10, 5],
            budgets: vec![percent(5), percent(25)],
            clusters: CLUSTERS.to_vec(),
        }
    }

    /// Other seeds, batch sizes, fanouts, budgets and clusters, none of which the simulator was changed for.
    pub fn held_out() -> Self {
        let subject = |name, graph, batch_sizes: [u32; 2]| Subject {
            name,
            graph,
            batch_sizes: batch_sizes.to_vec(),
        };
        Self {
            subjects: vec![
                subject("debian", Graph::debian(), [210, 600]),
                subject("synth", Graph::synthetic(11), [90, 260]),
            ],
            seed: 1234,
            fanouts: vec![15, 6],
            budgets: vec![percent(8), percent(33)],
            clusters: HELD_OUT_CLUSTERS.to_vec(),
        }
    }
}

pub fn percent(percent: u32) -> Budget {
    Budget::Share {
        millionths: percent * 10_000,
    }
}
