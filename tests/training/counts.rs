//! What is planned, what ranks count and what owners serve are the same numbers, and those that the traces predict.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use greengnn_model::book::{PartId, Rank};
use greengnn_model::rng::Purpose;
use greengnn_model::store::PartsManifest;
use greengnn_model::trace::TraceReader;
use serde_json::Value;

use crate::common::{TrainRun, debian_parts, number, serial, text, tiny_parts, train};
use crate::{POLICIES, small};

const RANKS: Rank = 4;

/// Feature requests and rows.
type Counts = (u64, u64);

fn counts_of(value: &Value) -> Counts {
    (number(&value["feature_requests"]), number(&value["feature_rows"]))
}

/// The run's lines by (epoch, rank, phase), checked for agreement and for the budget.
fn served(run: &TrainRun, epochs: u32) -> BTreeMap<(u64, u64, String), Counts> {
    let mut served = BTreeMap::new();
    for line in run.metrics("rank") {
        let (planned, counted) = (counts_of(&line["planned"]), counts_of(&line["counted"]));
        assert_eq!(planned, counted, "{line}");
        assert_eq!(planned, counts_of(&line["served"]), "{line}");
        let (deliveries, requests) = (number(&line["counted"]["deliveries"]), planned.0);
        match run.summary["delivery"].as_str() {
            Some("windowed") => assert_eq!(deliveries, requests, "{line}"),
            // One request for an epoch's deliveries, those of evaluation included.
            _ => assert!(deliveries >= requests && requests < u64::from(RANKS), "{line}"),
        }
        assert!(
            number(&line["held_rows_peak"]) <= number(&line["budget_rows"]),
            "{line}"
        );
        let phase = line["phase"].as_str().unwrap().to_owned();
        let key = (number(&line["epoch"]), number(&line["rank"]), phase);
        assert!(served.insert(key, planned).is_none(), "twice: {line}");
    }
    // Every epoch has one line per rank and phase.
    assert_eq!(served.len(), (epochs * u32::from(RANKS) * 2) as usize);
    for epoch in run.summary["epochs"].as_array().unwrap() {
        assert_eq!(counts_of(epoch), counts_of(&epoch["planned"]), "{epoch}");
        let of_epoch = served
            .iter()
            .filter(|((number, _, phase), _)| epoch["epoch"] == *number && phase == "training");
        assert_eq!(counts_of(epoch), sum(of_epoch.map(|(_, counts)| counts)), "{epoch}");
    }
    let evaluation = served.iter().filter(|((_, _, phase), _)| phase == "evaluation");
    assert_eq!(
        counts_of(&run.summary["evaluation"]),
        sum(evaluation.map(|(_, counts)| counts))
    );
    assert!(number(&run.summary["held_rows_peak"]) <= number(&run.summary["budget_rows"]));
    served
}

fn sum<'a>(counts: impl Iterator<Item = &'a Counts>) -> Counts {
    counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
}

#[test]
fn plans_ranks_and_owners_agree_and_the_policies_are_in_order() {
    let _serial = serial();
    let tiny = small(&["--budget", "25%"]);
    let debian = ["--epochs", "2", "--window", "4", "--budget", "25%"];
    for (parts, flags) in [(tiny_parts(2_000, 4), &tiny[..]), (debian_parts(4), &debian[..])] {
        let mut rows = BTreeMap::new();
        for policy in POLICIES {
            for machines in ["1", "4"] {
                let run = train(parts, &[flags, &["--policy", policy, "--machines", machines]].concat());
                let served = served(&run, 2);
                let (_, moved) = sum(served.values());
                // Where a rank runs changes nothing that is counted.
                let before = rows.insert(policy, moved);
                assert!(before.is_none_or(|before| before == moved), "{policy}");
            }
        }
        assert!(
            rows["bulk"] < rows["window"] && rows["window"] < rows["on-demand"],
            "{rows:?}"
        );
        assert_eq!(rows["full"], 0, "filled at set-up");
    }
}

#[test]
fn where_ranks_run_changes_only_what_the_wire_carries() {
    let _serial = serial();
    let parts = tiny_parts(2_000, 4);
    let traffic = |machines: &str| {
        let run = train(parts, &small(&["--machines", machines]));
        let period = |value: &Value| {
            let names = ["feature_requests", "deliveries", "sample_requests", "feature_rows"];
            names.map(|name| number(&value[name]))
        };
        let mut periods: Vec<_> = run.summary["epochs"].as_array().unwrap().iter().map(period).collect();
        periods.push(period(&run.summary["setup"]));
        periods.push(period(&run.summary["evaluation"]));
        let wire = number(&run.summary["epochs"][0]["wire_bytes"]);
        (periods, wire)
    };
    let (apart, wire) = traffic("4");
    let (together, nothing) = traffic("1");
    assert_eq!(apart, together);
    assert!(wire > 0);
    assert_eq!(nothing, 0, "one process writes to no socket");
}

/// Distinct remote rows, and what `on-demand` asks and moves by (epoch, phase), read from the traces of one rank.
struct Needed {
    distinct: BTreeSet<(PartId, u32)>,
    on_demand: BTreeMap<(u64, &'static str), Counts>,
}

fn needed(traces: &Path, rank: Rank, epochs: u64) -> Needed {
    let mut needed = Needed {
        distinct: BTreeSet::new(),
        on_demand: BTreeMap::new(),
    };
    let evaluation = TraceReader::open(traces.join(format!("evaluation/rank-{rank}.trace"))).unwrap();
    for epoch in 0..epochs {
        let training = TraceReader::open(traces.join(format!("epoch-{epoch}/rank-{rank}.trace"))).unwrap();
        for (reader, phase) in [(&training, "training"), (&evaluation, "evaluation")] {
            let header = reader.header();
            let counts = needed.on_demand.entry((epoch, phase)).or_default();
            for step in 0..header.steps() {
                if header.spec.purpose_of(step) == Purpose::Test && epoch + 1 < epochs {
                    continue;
                }
                let remote = reader.remote_rows(step).unwrap();
                counts.0 += remote.owners.len() as u64;
                counts.1 += remote.len() as u64;
                needed.distinct.extend(remote.iter());
            }
        }
    }
    needed
}

#[test]
fn on_demand_moves_what_the_traces_say() {
    let _serial = serial();
    let traces = tempfile::tempdir().unwrap();
    let flags = [
        "--policy",
        "on-demand",
        "--epochs",
        "2",
        "--keep-trace",
        text(traces.path()),
    ];
    let run = train(debian_parts(4), &flags);
    let served = served(&run, 2);
    for rank in 0..RANKS {
        for ((epoch, phase), counts) in needed(traces.path(), rank, 2).on_demand {
            assert!(counts.1 > 0);
            assert_eq!(
                served[&(epoch, u64::from(rank), phase.to_owned())],
                counts,
                "rank {rank}"
            );
        }
    }
}

#[test]
fn with_memory_for_all_rows_bulk_moves_each_row_to_a_rank_once_in_a_run() {
    let _serial = serial();
    let epochs = ["--epochs", "3"];
    for (parts, flags) in [
        (tiny_parts(2_000, 4), small(&epochs)),
        (debian_parts(4), epochs.to_vec()),
    ] {
        let traces = tempfile::tempdir().unwrap();
        let run = train(
            parts,
            &[
                &flags[..],
                &[
                    "--policy",
                    "bulk",
                    "--budget",
                    "100%",
                    "--keep-trace",
                    text(traces.path()),
                ],
            ]
            .concat(),
        );
        let served = served(&run, 3);
        for rank in 0..RANKS {
            let of_rank = served.iter().filter(|((_, number, _), _)| *number == u64::from(rank));
            let (_, moved) = sum(of_rank.map(|(_, counts)| counts));
            // No fewer rows than are needed can do, so as many means that none came twice.
            let needed = needed(traces.path(), rank, 3).distinct.len();
            assert_eq!(moved, needed as u64, "rank {rank}");
        }
        assert_eq!(number(&run.summary["setup"]["feature_rows"]), 0);
    }
}

#[test]
fn full_moves_all_rows_at_set_up() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    let book = PartsManifest::open(parts).unwrap().book;
    let run = train(parts, &small(&["--policy", "full"]));
    let remote: u64 = (0..RANKS).map(|rank| u64::from(book.remote_nodes(rank))).sum();
    // One request per rank and owner.
    assert_eq!(counts_of(&run.summary["setup"]), (12, remote));
}
