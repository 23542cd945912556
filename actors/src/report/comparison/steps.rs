//! Where the time of training went, from the steps that a run has written down (`metrics.jsonl`).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::report::records::StepRecord;

/// Wall seconds of all training steps, summed over steps and ranks. The last five are the whole time of the ranks; the first
/// three were spent in the background and hide behind it, but for what is `stall_s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    pub sample_s: f64,
    pub fetch_s: f64,
    pub assemble_s: f64,
    /// Waiting for batches.
    pub stall_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    /// Exchanging gradients, and waiting for other ranks' ones.
    pub sync_s: f64,
}

impl StepTimes {
    /// Time of the ranks.
    pub fn elapsed_s(&self) -> f64 {
        self.stall_s + self.forward_s + self.backward_s + self.optimizer_s + self.sync_s
    }

    fn add(&mut self, step: &StepRecord) {
        self.sample_s += step.sample_s;
        self.fetch_s += step.fetch_s;
        self.assemble_s += step.assemble_s;
        self.stall_s += step.stall_s;
        self.forward_s += step.forward_s;
        self.backward_s += step.backward_s;
        self.optimizer_s += step.optimizer_s;
        self.sync_s += step.sync_s;
    }
}

/// A line that is a step, or is passed over.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line {
    Step(StepRecord),
    #[serde(other)]
    Other,
}

/// Adds up the steps of a run folder.
pub fn of_run(folder: &Path) -> io::Result<StepTimes> {
    let mut times = StepTimes::default();
    for line in BufReader::new(File::open(folder.join("metrics.jsonl"))?).lines() {
        if let Line::Step(step) = serde_json::from_str(&line?)? {
            times.add(&step);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::records::MetricsRecord;
    use crate::report::run_folder::RunFolder;
    use crate::report::summary::tests::sample;

    #[test]
    fn steps_add_up_and_other_lines_are_passed_over() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(scratch.path().join("run")).unwrap();
        let step = StepRecord {
            fetch_s: 4.0,
            stall_s: 0.5,
            forward_s: 1.0,
            backward_s: 2.0,
            optimizer_s: 0.25,
            sync_s: 0.25,
            ..StepRecord::default()
        };
        folder.append_metrics(&MetricsRecord::Step(step)).unwrap();
        folder
            .append_metrics(&MetricsRecord::Epoch(sample().epochs[0].clone()))
            .unwrap();
        folder.append_metrics(&MetricsRecord::Step(step)).unwrap();
        let times = of_run(folder.path()).unwrap();
        assert_eq!((times.fetch_s, times.backward_s, times.elapsed_s()), (8.0, 4.0, 8.0));
    }

    #[test]
    fn a_damaged_line_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("metrics.jsonl"), "{\"kind\":\"step\",").unwrap();
        assert!(of_run(scratch.path()).is_err());
    }
}
