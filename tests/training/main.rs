//! `greengnn train` as a person runs it, with real processes on loopback.
//!
//! - [`bits`]: policies, machines, threads and memory change what a run costs, never the weights;
//! - [`counts`]: what is planned, counted and served are the same numbers, and the numbers that a trace predicts;
//! - [`levels`]: rows that stay on the device change what is uploaded, and nothing else;
//! - [`rows`]: feature rows that are owned apart from their nodes;
//! - [`shapes`]: graphs and models that are not as one expects;
//! - [`files`]: what a run prints and leaves behind;
//! - [`row_types`]: remote rows in fewer bits;
//! - [`joules`] and [`domains`]: energy counters that a test advances; [`gpus`]: those of a GPU that is a file;
//! - [`streams`]: delivery by streams, one request per owner and epoch;
//!
//! And that training learns from the graph, below.

#[path = "../common/mod.rs"]
mod common;

mod bits;
mod counts;
mod domains;
mod files;
mod gpus;
mod joules;
mod levels;
mod row_types;
mod rows;
mod shapes;
mod streams;

use common::{debian_parts, serial, train_json};

const POLICIES: [&str; 12] = [
    "on-demand",
    "degree",
    "presample",
    "vip",
    "two-level",
    "lru",
    "lfu",
    "fifo",
    "epoch",
    "window",
    "bulk",
    "full",
];
/// Flags for the small graphs: a few steps per epoch, in windows shorter than an epoch. `flags` override and add.
fn small<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let defaults = [
        ["--epochs", "2"],
        ["--batch-size", "20"],
        ["--fanouts", "5,3"],
        ["--hidden", "16"],
        ["--window", "2"],
    ];
    let kept = defaults.into_iter().filter(|[name, _]| !flags.contains(name));
    kept.flatten().chain(flags.iter().copied()).collect()
}

/// Five epochs on the Debian graph are worth more with neighbours than without.
#[test]
fn the_graph_makes_the_difference() {
    let _serial = serial();
    let parts = debian_parts(4);
    let accuracy = |fanouts: &str| {
        let summary = train_json(
            parts,
            &[
                "--epochs",
                "5",
                "--fanouts",
                fanouts,
                "--policy",
                "full",
                "--machines",
                "1",
            ],
        );
        summary["test_accuracy"].as_f64().unwrap()
    };
    let (with, without) = (accuracy("25,10"), accuracy("0,0"));
    // Measured: 0.68 and 0.55.
    assert!(with > without + 0.05, "{with} with neighbours, {without} without");
}
