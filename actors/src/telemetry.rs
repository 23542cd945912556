//! The metrics of a running training, by the `metrics` facade, and a Prometheus endpoint that serves them.
//!
//! Recording goes to whatever recorder the process has: the one that [`serve`] installs, one that an embedding program
//! installed, or none, which costs next to nothing. The facade's counters hold whole numbers only, so totals of seconds
//! and joules are gauges that only grow.

use std::io;
use std::net::{SocketAddr, TcpListener};

use greengnn_energy::clocks::ClockPoint;
use greengnn_energy::domain::DomainKey;
use greengnn_energy::quality::Quality;
use greengnn_model::counters::Traffic;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder};
use tokio::runtime::Handle;

use crate::report::records::StepRecord;
use crate::report::summary::EpochSummary;

/// The names under which metrics are served; `rank`, `host`, `domain` and `quality` are labels.
pub mod names {
    /// Feature rows that moved to a rank.
    pub const FEATURE_ROWS: &str = "greengnn_feature_rows_total";
    /// Bytes of those rows.
    pub const FEATURE_BYTES: &str = "greengnn_feature_bytes_total";
    /// Questions of a rank for feature rows.
    pub const FEATURE_REQUESTS: &str = "greengnn_feature_requests_total";
    /// Arrivals of feature rows at a rank.
    pub const DELIVERIES: &str = "greengnn_deliveries_total";
    /// Questions of a rank for sampled neighbours.
    pub const SAMPLE_REQUESTS: &str = "greengnn_sample_requests_total";
    /// Bytes written to sockets.
    pub const WIRE_BYTES: &str = "greengnn_wire_bytes_total";
    /// Remote rows in a rank's cache.
    pub const HELD_ROWS: &str = "greengnn_held_rows";
    /// Training steps of a rank.
    pub const STEPS: &str = "greengnn_steps_total";
    /// Seconds that a rank computed.
    pub const COMPUTE_SECONDS: &str = "greengnn_compute_seconds_total";
    /// Seconds that a rank waited for an assembled batch.
    pub const STALL_SECONDS: &str = "greengnn_stall_seconds_total";
    /// Seconds that a rank waited for gradients.
    pub const SYNC_SECONDS: &str = "greengnn_sync_seconds_total";
    /// Joules of a domain of a host, by quality.
    pub const ENERGY_JOULES: &str = "greengnn_energy_joules_total";
    /// The graphics clock of a GPU, by `kind`: `requested` while it is lowered, else NaN, and `observed`.
    pub const GPU_CLOCK_MHZ: &str = "greengnn_gpu_clock_mhz";
    /// Whether the run holds the clocks of a GPU down: 1 or 0.
    pub const GPU_CLOCK_LEASE_ACTIVE: &str = "greengnn_gpu_clock_lease_active";
    /// The last finished epoch.
    pub const EPOCH: &str = "greengnn_epoch";
    /// Its training loss.
    pub const LOSS: &str = "greengnn_loss";
    /// Its validation accuracy.
    pub const VALID_ACCURACY: &str = "greengnn_valid_accuracy";
}

/// How often a free port is looked for when another process takes the one that was found.
const PORT_ATTEMPTS: usize = 8;

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("metrics cannot be served on {address}: {reason}; choose another --metrics-addr")]
    Bind { address: SocketAddr, reason: String },
    #[error("this process already has a metrics recorder; scrape that one, or serve once for all runs")]
    AlreadyInstalled,
    #[error("metrics are served from a Tokio runtime, and this thread is in none")]
    NoRuntime,
    #[error("the metrics exporter could not be set up: {reason}")]
    Exporter { reason: String },
}

/// Installs the process's recorder and serves it for Prometheus at `http://ADDRESS/metrics` until the runtime of the
/// caller ends. With port 0 a free port is taken. Returns the address that is served.
///
/// A process has one recorder for life, so this succeeds once: a program that runs several trainings serves once for
/// all of them.
pub fn serve(address: SocketAddr) -> Result<SocketAddr, TelemetryError> {
    let runtime = Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
    let (recorder, exporter, address) = listen(address)?;
    metrics::set_global_recorder(recorder).map_err(|_| TelemetryError::AlreadyInstalled)?;
    describe();
    runtime.spawn(async move {
        if let Err(error) = exporter.await {
            tracing::warn!(?error, "metrics are not served any more");
        }
    });
    Ok(address)
}

type Exporter = (
    metrics_exporter_prometheus::PrometheusRecorder,
    metrics_exporter_prometheus::ExporterFuture,
    SocketAddr,
);

/// Binds the address. The exporter does not tell which port it got for port 0, so a free one is found for it first;
/// that another process takes it in between is found out by the bind, and tried again.
fn listen(address: SocketAddr) -> Result<Exporter, TelemetryError> {
    let attempts = if address.port() == 0 { PORT_ATTEMPTS } else { 1 };
    let mut reason = String::new();
    for _ in 0..attempts {
        let bound = free_port(address).map_err(|error| TelemetryError::Bind {
            address,
            reason: error.to_string(),
        })?;
        match PrometheusBuilder::new().with_http_listener(bound).build() {
            Ok((recorder, exporter)) => return Ok((recorder, exporter, bound)),
            Err(BuildError::FailedToCreateHTTPListener(why)) => reason = why,
            Err(error) => {
                return Err(TelemetryError::Exporter {
                    reason: error.to_string(),
                });
            }
        }
    }
    Err(TelemetryError::Bind { address, reason })
}

/// The address itself, or with port 0 one that was free a moment ago.
fn free_port(address: SocketAddr) -> io::Result<SocketAddr> {
    match address.port() {
        0 => TcpListener::bind(address)?.local_addr(),
        _ => Ok(address),
    }
}

/// Gives every metric its unit and its help text.
pub fn describe() {
    let counters = [
        (names::FEATURE_ROWS, Unit::Count, "Feature rows that moved to a rank"),
        (
            names::FEATURE_BYTES,
            Unit::Bytes,
            "Bytes of the feature rows that moved to a rank",
        ),
        (
            names::FEATURE_REQUESTS,
            Unit::Count,
            "Questions of a rank for feature rows",
        ),
        (names::DELIVERIES, Unit::Count, "Arrivals of feature rows at a rank"),
        (
            names::SAMPLE_REQUESTS,
            Unit::Count,
            "Questions of a rank for sampled neighbours",
        ),
        (
            names::WIRE_BYTES,
            Unit::Bytes,
            "Bytes written to sockets, counted at the sender",
        ),
        (names::STEPS, Unit::Count, "Training steps of a rank"),
    ];
    for (name, unit, help) in counters {
        describe_counter!(name, unit, help);
    }
    let gauges = [
        (names::HELD_ROWS, Unit::Count, "Remote rows in the cache of a rank"),
        (
            names::COMPUTE_SECONDS,
            Unit::Seconds,
            "Seconds that a rank computed; only grows",
        ),
        (
            names::STALL_SECONDS,
            Unit::Seconds,
            "Seconds that a rank waited for an assembled batch; only grows",
        ),
        (
            names::SYNC_SECONDS,
            Unit::Seconds,
            "Seconds that a rank waited for gradients; only grows",
        ),
        (
            names::ENERGY_JOULES,
            Unit::Count,
            "Joules of a domain, with the quality of the figure; only grows",
        ),
        (
            names::GPU_CLOCK_MHZ,
            Unit::Count,
            "Graphics clock of a GPU in MHz, requested while it is lowered and observed",
        ),
        (
            names::GPU_CLOCK_LEASE_ACTIVE,
            Unit::Count,
            "Whether the run holds the clocks of a GPU down",
        ),
        (names::EPOCH, Unit::Count, "The last finished epoch"),
        (names::LOSS, Unit::Count, "Training loss of the last finished epoch"),
        (
            names::VALID_ACCURACY,
            Unit::Count,
            "Validation accuracy of the last finished epoch",
        ),
    ];
    for (name, unit, help) in gauges {
        describe_gauge!(name, unit, help);
    }
}

/// Adds what a rank asked and got since it was recorded last.
pub fn record_traffic(rank: u32, traffic: &Traffic) {
    let rank = rank.to_string();
    for (name, value) in [
        (names::FEATURE_ROWS, traffic.feature_rows),
        (names::FEATURE_BYTES, traffic.feature_bytes),
        (names::FEATURE_REQUESTS, traffic.feature_requests),
        (names::DELIVERIES, traffic.deliveries),
        (names::SAMPLE_REQUESTS, traffic.sample_requests),
    ] {
        counter!(name, "rank" => rank.clone()).increment(value);
    }
}

/// Adds bytes that were written to sockets.
pub fn record_wire_bytes(bytes: u64) {
    counter!(names::WIRE_BYTES).increment(bytes);
}

/// The remote rows that the cache of a rank holds now.
pub fn record_held_rows(rank: u32, rows: u64) {
    gauge!(names::HELD_ROWS, "rank" => rank.to_string()).set(rows as f64);
}

/// Adds one training step of a rank.
pub fn record_step(step: &StepRecord) {
    let rank = step.rank.to_string();
    counter!(names::STEPS, "rank" => rank.clone()).increment(1);
    for (name, seconds) in [
        (names::COMPUTE_SECONDS, step.compute_s()),
        (names::STALL_SECONDS, step.stall_s),
        (names::SYNC_SECONDS, step.sync_s),
    ] {
        gauge!(name, "rank" => rank.clone()).increment(seconds);
    }
}

/// Adds joules of a domain. Energy that is not known is not recorded at all: a series that is missing is not 0.
pub fn record_energy(domain: &DomainKey, quality: Quality, joules: f64) {
    if quality != Quality::Unavailable && joules.is_finite() {
        let labels = [
            ("host", domain.host.clone()),
            ("domain", domain.domain.clone()),
            ("quality", quality.to_string()),
        ];
        gauge!(names::ENERGY_JOULES, &labels).increment(joules);
    }
}

/// The clock of a GPU. One that is not known is NaN: a run that lowers no clocks has no such series.
pub fn record_clock(point: &ClockPoint) {
    for (kind, megahertz) in [("requested", point.requested_mhz), ("observed", point.observed_mhz)] {
        gauge!(names::GPU_CLOCK_MHZ, "gpu" => point.gpu.clone(), "kind" => kind)
            .set(megahertz.map_or(f64::NAN, f64::from));
    }
    let is_active = f64::from(u8::from(point.requested_mhz.is_some()));
    gauge!(names::GPU_CLOCK_LEASE_ACTIVE, "gpu" => point.gpu.clone()).set(is_active);
}

/// The epoch that has just finished.
pub fn record_epoch(epoch: &EpochSummary) {
    gauge!(names::EPOCH).set(f64::from(epoch.epoch));
    gauge!(names::LOSS).set(epoch.loss);
    if let Some(accuracy) = epoch.valid_accuracy {
        gauge!(names::VALID_ACCURACY).set(accuracy);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;
    use crate::report::summary::tests::sample;

    /// Everything that is recorded by `record`, as Prometheus would read it.
    fn rendered(record: impl FnOnce()) -> String {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, || {
            describe();
            record();
        });
        recorder.handle().render()
    }

    #[test]
    fn traffic_and_steps_are_counted_by_rank() {
        let traffic = Traffic {
            feature_requests: 3,
            deliveries: 4,
            sample_requests: 5,
            feature_rows: 600,
            feature_bytes: 700,
            ..Traffic::default()
        };
        let step = StepRecord {
            rank: 2,
            forward_s: 0.25,
            stall_s: 0.5,
            sync_s: 0.125,
            ..StepRecord::default()
        };
        let text = rendered(|| {
            record_traffic(1, &traffic);
            record_traffic(1, &traffic);
            record_step(&step);
            record_step(&step);
            record_wire_bytes(99);
            record_held_rows(0, 12);
        });
        for line in [
            "# HELP greengnn_feature_rows_total Feature rows that moved to a rank",
            "# TYPE greengnn_feature_rows_total counter",
            "greengnn_feature_rows_total{rank=\"1\"} 1200",
            "greengnn_feature_bytes_total{rank=\"1\"} 1400",
            "greengnn_feature_requests_total{rank=\"1\"} 6",
            "greengnn_deliveries_total{rank=\"1\"} 8",
            "greengnn_sample_requests_total{rank=\"1\"} 10",
            "greengnn_steps_total{rank=\"2\"} 2",
            "greengnn_compute_seconds_total{rank=\"2\"} 0.5",
            "greengnn_stall_seconds_total{rank=\"2\"} 1",
            "greengnn_sync_seconds_total{rank=\"2\"} 0.25",
            "greengnn_wire_bytes_total 99",
            "greengnn_held_rows{rank=\"0\"} 12",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
    }

    #[test]
    fn joules_carry_their_quality_and_are_missing_rather_than_zero() {
        let text = rendered(|| {
            let package = |host: &str| DomainKey::new(host, "package-0");
            record_energy(&package("a"), Quality::Estimated, 1.5);
            record_energy(&package("a"), Quality::Estimated, 1.0);
            record_energy(&package("b"), Quality::Measured, 4.0);
            record_energy(&DomainKey::new("a", "gpu-0"), Quality::Unavailable, 0.0);
        });
        for line in [
            "greengnn_energy_joules_total{host=\"a\",domain=\"package-0\",quality=\"estimated\"} 2.5",
            "greengnn_energy_joules_total{host=\"b\",domain=\"package-0\",quality=\"measured\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert!(!text.contains("gpu-0"), "{text}");
    }

    #[test]
    fn a_clock_is_recorded_as_requested_and_as_observed() {
        let lowered = ClockPoint {
            unix_s: 1.0,
            gpu: "GPU-a".to_owned(),
            requested_mhz: Some(544),
            observed_mhz: Some(600),
        };
        let text = rendered(|| record_clock(&lowered));
        for line in [
            "greengnn_gpu_clock_mhz{gpu=\"GPU-a\",kind=\"requested\"} 544",
            "greengnn_gpu_clock_mhz{gpu=\"GPU-a\",kind=\"observed\"} 600",
            "greengnn_gpu_clock_lease_active{gpu=\"GPU-a\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
        let restored = ClockPoint {
            requested_mhz: None,
            ..lowered
        };
        let text = rendered(|| record_clock(&restored));
        assert!(text.contains("kind=\"requested\"} NaN"), "{text}");
        assert!(text.contains("lease_active{gpu=\"GPU-a\"} 0"), "{text}");
    }

    #[test]
    fn an_epoch_sets_its_gauges() {
        let mut epoch = sample().epochs[1].clone();
        let text = rendered(|| record_epoch(&epoch));
        for line in ["greengnn_epoch 1", "greengnn_loss 1.25", "greengnn_valid_accuracy 0.6"] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
        epoch.valid_accuracy = None;
        assert!(
            !rendered(|| record_epoch(&epoch))
                .lines()
                .any(|line| line.starts_with("greengnn_valid_accuracy"))
        );
    }

    fn scrape(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// One test, since a process has one recorder for life.
    #[test]
    fn metrics_are_served_once_on_a_port_that_is_told_until_the_runtime_ends() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(matches!(serve(any).unwrap_err(), TelemetryError::NoRuntime));

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let taken = TcpListener::bind(any).unwrap();
        let address = runtime.block_on(async {
            let error = serve(taken.local_addr().unwrap()).unwrap_err();
            assert!(matches!(error, TelemetryError::Bind { .. }), "{error}");
            assert!(error.to_string().contains("choose another --metrics-addr"), "{error}");
            serve(any).unwrap()
        });
        assert_ne!(address.port(), 0);

        record_wire_bytes(7);
        let answer = scrape(address);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(
            answer
                .lines()
                .any(|line| line.starts_with("greengnn_wire_bytes_total ")),
            "{answer}"
        );

        let error = runtime.block_on(async { serve(any).unwrap_err() });
        assert!(matches!(error, TelemetryError::AlreadyInstalled), "{error}");

        runtime.shutdown_timeout(Duration::from_secs(10));
        assert!(TcpStream::connect_timeout(&address, Duration::from_secs(10)).is_err());
    }
}
