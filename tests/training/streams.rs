//! Delivery by streams: the same weights, the fewest rows at every budget, and one request per owner and epoch.

use std::collections::BTreeMap;

use greengnn_model::policy::RemoteTrace;
use greengnn_model::policy::bound::RunUses;
use greengnn_model::store::PartsManifest;
use greengnn_model::trace::TraceReader;
use serde_json::Value;

use crate::common::{TrainRun, debian_parts, number, serial, text, tiny_parts, train};
use crate::{POLICIES, small};

const RANKS: u64 = 4;
const NAMES: [&str; 3] = ["feature_requests", "deliveries", "feature_rows"];

fn counts(value: &Value) -> [u64; 3] {
    NAMES.map(|name| number(&value[name]))
}

/// Per epoch and phase what all ranks asked and moved, after a check that plans, ranks and owners agree.
fn counted(run: &TrainRun) -> BTreeMap<(u64, String), [u64; 3]> {
    let mut sums: BTreeMap<(u64, String), [u64; 3]> = BTreeMap::new();
    for line in run.metrics("rank") {
        let counted = counts(&line["counted"]);
        assert_eq!(counted, counts(&line["planned"]), "{line}");
        assert_eq!(counted, counts(&line["served"]), "{line}");
        let key = (number(&line["epoch"]), line["phase"].as_str().unwrap().to_owned());
        let sum = sums.entry(key).or_default();
        sum.iter_mut().zip(counted).for_each(|(sum, count)| *sum += count);
    }
    sums
}

#[test]
fn on_the_debian_graph_streams_move_the_fewest_rows_in_twelve_requests_an_epoch() {
    let _serial = serial();
    let parts = debian_parts(4);
    let book = PartsManifest::open(parts).unwrap().book;
    let traces = tempfile::tempdir().unwrap();
    let base = ["--epochs", "1", "--policy", "bulk"];
    let keep = ["--keep-trace", text(traces.path()), "--budget", "25%"];
    let windowed = train(parts, &[&base[..], &keep].concat());
    for budget in ["0", "10%", "100%"] {
        let run = train(
            parts,
            &[&base[..], &["--delivery", "stream", "--budget", budget]].concat(),
        );
        assert_eq!(run.weights(), windowed.weights(), "budget {budget}");
        assert_eq!(run.summary["delivery"], "stream");
        let counted = counted(&run);
        // Four ranks with three owners each; evaluation comes in the same streams.
        assert_eq!(
            counted[&(0, "training".to_owned())][0],
            RANKS * (RANKS - 1),
            "budget {budget}"
        );
        assert_eq!(counted[&(0, "evaluation".to_owned())][0], 0, "budget {budget}");
        let moved: u64 = counted.values().map(|counts| counts[2]).sum();
        let budget_rows: Vec<u64> = run
            .metrics("rank")
            .iter()
            .map(|line| number(&line["budget_rows"]))
            .collect();
        let fewest: u64 = (0..RANKS as u16)
            .map(|rank| {
                let trace =
                    |name: &str| TraceReader::open(traces.path().join(format!("{name}/rank-{rank}.trace"))).unwrap();
                let readers = [trace("epoch-0"), trace("evaluation")];
                let epochs = readers.iter().map(|reader| reader as &dyn RemoteTrace);
                let uses = RunUses::new(epochs, 0, &book, rank).unwrap();
                // Two lines per rank, in order.
                uses.fewest_rows(budget_rows[2 * usize::from(rank)] as u32)
            })
            .sum();
        assert_eq!(moved, fewest, "MIN at {budget}");
    }
}

#[test]
fn every_policy_can_be_streamed_wherever_its_ranks_run() {
    let _serial = serial();
    let parts = tiny_parts(600, 4);
    for policy in POLICIES {
        let flags = ["--policy", policy, "--budget", "10%", "--machines", "4"];
        let windowed = train(parts, &small(&flags));
        let mut streamed = Vec::new();
        for machines in ["1", "2", "4"] {
            let flags = [
                "--policy",
                policy,
                "--budget",
                "10%",
                "--machines",
                machines,
                "--delivery",
                "stream",
            ];
            let run = train(parts, &small(&flags));
            assert_eq!(run.weights(), windowed.weights(), "{policy} on {machines}");
            streamed.push(counted(&run));
        }
        assert!(
            streamed.iter().all(|counts| *counts == streamed[0]),
            "{policy}: {streamed:?}"
        );
        for ((epoch, phase), [requests, deliveries, rows]) in &streamed[0] {
            let owners = if phase == "training" && *deliveries > 0 {
                RANKS * (RANKS - 1)
            } else {
                0
            };
            assert!(*requests <= owners, "{policy}, epoch {epoch}, {phase}: {requests}");
            assert!(deliveries <= rows, "{policy}");
        }
        if policy != "bulk" {
            let moved =
                |counts: &BTreeMap<(u64, String), [u64; 3]>| -> u64 { counts.values().map(|counts| counts[2]).sum() };
            assert_eq!(moved(&streamed[0]), moved(&counted(&windowed)), "{policy}");
        }
    }
}
