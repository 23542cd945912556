//! What moves on the terminal while a run lasts: bars on a terminal, plain lines otherwise; always on standard error,
//! so that standard output stays free for `--json`.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::summary::EpochSummary;
use super::units;

/// The progress of one run.
pub struct Progress {
    epochs: u32,
    /// Epochs that have started.
    started: u32,
    output: Output,
}

enum Output {
    Quiet,
    /// A bar for the epoch that trains; finished epochs stay above it as lines.
    Bar(ProgressBar),
    /// One line per epoch.
    Lines(Box<dyn Write + Send>),
}

impl Progress {
    /// Bars if standard error is a terminal, lines if it is not, nothing if `quiet`. `steps` is the number of training
    /// steps of an epoch.
    pub fn new(epochs: u32, steps: u32, quiet: bool) -> Self {
        let output = if quiet {
            Output::Quiet
        } else if io::stderr().is_terminal() {
            Output::Bar(epoch_bar(steps))
        } else {
            Output::Lines(Box::new(io::stderr()))
        };
        Self::with_output(epochs, output)
    }

    /// Lines to a writer of the caller's.
    pub fn to_writer(epochs: u32, writer: Box<dyn Write + Send>) -> Self {
        Self::with_output(epochs, Output::Lines(writer))
    }

    fn with_output(epochs: u32, output: Output) -> Self {
        Self {
            epochs,
            started: 0,
            output,
        }
    }

    /// A line about what the run does outside its epochs, such as `partitioning` or `presampling epoch 1`.
    pub fn note(&mut self, text: &str) {
        match &mut self.output {
            Output::Quiet => {}
            Output::Bar(bar) => bar.println(text),
            Output::Lines(writer) => write_line(writer, text),
        }
    }

    pub fn epoch_started(&mut self) {
        self.started += 1;
        if let Output::Bar(bar) = &self.output {
            bar.set_prefix(format!("epoch {}/{}", self.started, self.epochs));
            bar.set_message("");
            bar.reset();
        }
    }

    /// `done` steps of the epoch are done; the loss of the last one, and the share of the epoch's time so far that
    /// ranks waited for a batch.
    pub fn step(&mut self, done: u32, loss: f64, stall_share: Option<f64>) {
        if let Output::Bar(bar) = &self.output {
            bar.set_position(done.into());
            bar.set_message(format!(
                "loss {}  stall {}",
                units::loss(loss),
                units::percent(stall_share)
            ));
        }
    }

    pub fn epoch_finished(&mut self, epoch: &EpochSummary) {
        let line = epoch_line(self.started, self.epochs, epoch);
        self.note(&line);
    }

    /// Clears what is not a line.
    pub fn finish(&mut self) {
        if let Output::Bar(bar) = &self.output {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let output = match self.output {
            Output::Quiet => "quiet",
            Output::Bar(_) => "bar",
            Output::Lines(_) => "lines",
        };
        f.debug_struct("Progress")
            .field("epochs", &self.epochs)
            .field("output", &output)
            .finish_non_exhaustive()
    }
}

fn epoch_bar(steps: u32) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps.into()), ProgressDrawTarget::stderr());
    // The template is a constant; if it were wrong, the default style would be drawn instead.
    if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// `epoch 3/10  loss 1.2345  valid 0.712  1.23 s  stall 4.0 %  45 requests  12,345 rows  24.1 MiB  123 J estimated`.
fn epoch_line(number: u32, epochs: u32, epoch: &EpochSummary) -> String {
    let period = &epoch.period;
    format!(
        "epoch {number}/{epochs}  loss {}  valid {}  {}  stall {}  {}  {}  {}  {}",
        units::loss(epoch.loss),
        units::accuracy(epoch.valid_accuracy),
        units::seconds(period.wall_s),
        units::percent(period.stall_share()),
        units::plural(period.traffic.feature_requests, "request"),
        units::plural(period.traffic.feature_rows, "row"),
        units::bytes(period.traffic.feature_bytes),
        units::energy(period.energy_j, period.energy_quality),
    )
}

/// Standard error may be closed; that must not end the run.
fn write_line(writer: &mut dyn Write, text: &str) {
    let _ = writeln!(writer, "{text}");
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::summary::tests::sample;
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    fn run(progress: &mut Progress) {
        let summary = sample();
        progress.note("presampling epoch 0");
        for epoch in &summary.epochs {
            progress.epoch_started();
            for done in 1..=3 {
                progress.step(done, 2.0, Some(0.1));
            }
            progress.epoch_finished(epoch);
        }
        progress.finish();
    }

    #[test]
    fn without_a_terminal_there_is_one_plain_line_an_epoch() {
        let shared = Shared::default();
        run(&mut Progress::to_writer(2, Box::new(shared.clone())));
        assert_eq!(
            shared.text(),
            "presampling epoch 0\n\
             epoch 1/2  loss 2.5000  valid 0.500  4.00 s  stall 25.0 %  40 requests  5,200 rows  2.54 MiB  200 J estimated\n\
             epoch 2/2  loss 1.2500  valid 0.600  2.00 s  stall 25.0 %  20 requests  2,600 rows  1.27 MiB  100 J measured\n"
        );
    }

    #[test]
    fn quiet_prints_nothing_and_bars_survive_a_whole_run() {
        let mut quiet = Progress::new(2, 3, true);
        assert!(matches!(quiet.output, Output::Quiet));
        run(&mut quiet);

        let bar = epoch_bar(3);
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let mut bars = Progress::with_output(2, Output::Bar(bar.clone()));
        run(&mut bars);
        assert!(bar.is_finished());
        assert_eq!(bar.prefix(), "epoch 2/2");
    }

    #[test]
    fn a_writer_that_fails_does_not_end_the_run() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut progress = Progress::to_writer(2, Box::new(Closed));
        run(&mut progress);
        assert_eq!(progress.started, 2);
    }
}
