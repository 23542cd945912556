//! What this computer can measure, and why not more.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use greengnn_energy::clocks::{ClockControl, ClockSettings};
use greengnn_energy::nvml::NvmlReader;
use greengnn_energy::source::SourceReport;
use greengnn_energy::{Meter, MeterConfig, Quality};
use greengnn_model::layers::{Device, DeviceChoice, cpu_fingerprint};
use serde::Serialize;

/// How long the counters are watched: some guests have counters that never move.
const WATCH: Duration = Duration::from_millis(1500);

/// How long a machine may take to accept a connection.
const REACH_WITHIN: Duration = Duration::from_secs(3);

/// Capabilities that decide what can be measured or set: name, number, and what it is for.
const CAPABILITIES: [(&str, u32, &str); 3] = [
    ("CAP_DAC_READ_SEARCH", 2, "reading RAPL without root"),
    ("CAP_SYS_ADMIN", 21, "setting GPU clocks in a container"),
    ("CAP_SYS_NICE", 23, "a meter that is never late"),
];

/// Everything that was found out.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Quality of the energy of a run here: the worst of the processors and, if there are any, the GPUs.
    pub quality: Quality,
    pub sources: Vec<SourceReport>,
    pub system: System,
    pub gpus: Vec<GpuClocks>,
    /// Where models would train, and why there.
    pub device: String,
    pub device_reason: String,
    pub cpu_fingerprint: String,
    pub reached: Vec<Reached>,
}

/// What decides what a process may read.
#[derive(Debug, Serialize)]
pub struct System {
    pub kernel: String,
    pub virtual_machine: bool,
    /// The kind of container, if this is one.
    pub container: Option<String>,
    pub user: u32,
    pub groups: Vec<u32>,
    /// Of those that matter, the capabilities that this process has.
    pub capabilities: Vec<&'static str>,
    /// And those that it lacks, with what each is for.
    pub missing_capabilities: Vec<(&'static str, &'static str)>,
}

/// Whether a GPU's clocks can be lowered.
#[derive(Debug, Serialize)]
pub struct GpuClocks {
    pub uuid: String,
    pub observed_mhz: Option<u32>,
    pub means: String,
}

/// A machine that others should reach.
#[derive(Debug, Serialize)]
pub struct Reached {
    pub address: String,
    /// Seconds until the connection was accepted, or why it was not.
    pub result: Result<f64, String>,
}

/// Looks at everything. Takes about two seconds, and three more per address that does not answer.
pub fn diagnose(addresses: &[String]) -> Diagnosis {
    let meter = Meter::start(MeterConfig::from_env());
    let reached = addresses.iter().map(|address| reach(address)).collect();
    let watched = Instant::now();
    // Counters only move while something runs.
    let mut spun = 0u64;
    while watched.elapsed() < WATCH {
        spun = std::hint::black_box(spun.wrapping_mul(31).wrapping_add(1));
    }
    let sources = meter.reports();
    let quality = quality_of(&sources);
    let device = Device::probe(DeviceChoice::Auto, 0);
    Diagnosis {
        quality,
        sources,
        system: system(),
        gpus: gpu_clocks(),
        device: device.as_ref().map_or_else(|_| "none".to_owned(), ToString::to_string),
        device_reason: device.map_or_else(|error| error.to_string(), |device| device.reason().to_owned()),
        cpu_fingerprint: cpu_fingerprint(),
        reached,
    }
}

impl Diagnosis {
    /// Whether everything that was asked for holds: energy of quality `wanted` or better, and all machines reached.
    pub fn is_well(&self, wanted: Quality) -> bool {
        self.quality <= wanted && self.reached.iter().all(|reached| reached.result.is_ok())
    }
}

/// Processors have RAPL or the estimate; GPUs count only where there are some.
fn quality_of(sources: &[SourceReport]) -> Quality {
    let of = |name: &str| {
        let found = sources.iter().find(|report| report.source == name);
        found.map_or(Quality::Unavailable, |report| report.quality)
    };
    let processors = of("rapl").min(of("estimate"));
    match of("nvml") {
        Quality::Unavailable => processors,
        gpus => processors.max(gpus),
    }
}

fn system() -> System {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().trim().to_owned()
    };
    let effective = u64::from_str_radix(&field("CapEff:"), 16).unwrap_or(0);
    let has = |number: u32| effective & (1 << number) != 0;
    System {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        virtual_machine: greengnn_energy::rapl::is_virtual_machine(),
        container: container(&read("/proc/1/environ")),
        user: field("Uid:")
            .split_whitespace()
            .nth(1)
            .and_then(|id| id.parse().ok())
            .unwrap_or(0),
        groups: field("Groups:")
            .split_whitespace()
            .filter_map(|id| id.parse().ok())
            .collect(),
        capabilities: CAPABILITIES
            .iter()
            .filter(|(_, number, _)| has(*number))
            .map(|(name, ..)| *name)
            .collect(),
        missing_capabilities: CAPABILITIES
            .iter()
            .filter(|(_, number, _)| !has(*number))
            .map(|(name, _, purpose)| (*name, *purpose))
            .collect(),
    }
}

/// Container engines leave a file, or a variable of the first process.
fn container(first_environment: &str) -> Option<String> {
    if std::path::Path::new("/.dockerenv").exists() {
        return Some("docker".to_owned());
    }
    if std::path::Path::new("/run/.containerenv").exists() {
        return Some("podman".to_owned());
    }
    let named = first_environment
        .split('\0')
        .find_map(|variable| variable.strip_prefix("container="));
    named.map(str::to_owned)
}

fn gpu_clocks() -> Vec<GpuClocks> {
    let Ok(mut nvml) = NvmlReader::load() else {
        // The meter's report says why.
        return Vec::new();
    };
    let uuids = nvml.uuids().unwrap_or_default();
    let clocks = |uuid: String| GpuClocks {
        observed_mhz: nvml.observed_mhz(&uuid).ok(),
        means: match nvml.settings(&uuid) {
            Ok(ClockSettings::Locked) => "locked clocks".to_owned(),
            Ok(ClockSettings::Application { .. }) => "application clocks".to_owned(),
            Err(error) => format!("none ({error})"),
        },
        uuid,
    };
    uuids.into_iter().map(clocks).collect()
}

/// Connects and hangs up. A supervisor takes that for a stranger and forgets it.
fn reach(address: &str) -> Reached {
    let started = Instant::now();
    let connected = address
        .to_socket_addrs()
        .map_err(|error| error.to_string())
        .and_then(|mut addresses| addresses.next().ok_or_else(|| "the name has no address".to_owned()))
        .and_then(|address| TcpStream::connect_timeout(&address, REACH_WITHIN).map_err(|error| error.to_string()));
    Reached {
        address: address.to_owned(),
        result: connected.map(|_| started.elapsed().as_secs_f64()),
    }
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "energy of a run here would be {}", self.quality)?;
        for report in &self.sources {
            writeln!(
                f,
                "  {:<9} {:<12} {}",
                report.source,
                report.quality.to_string(),
                report.detail
            )?;
            for warning in &report.warnings {
                writeln!(f, "            warning: {warning}")?;
            }
        }
        let system = &self.system;
        let container = system.container.as_deref().unwrap_or("no container");
        let virtual_machine = if system.virtual_machine {
            "a virtual machine"
        } else {
            "no virtual machine"
        };
        writeln!(f, "kernel {}, {virtual_machine}, {container}", system.kernel)?;
        let groups: Vec<String> = system.groups.iter().map(u32::to_string).collect();
        writeln!(f, "user {}, groups {}", system.user, groups.join(" "))?;
        for name in &system.capabilities {
            writeln!(f, "  has {name}")?;
        }
        for (name, purpose) in &system.missing_capabilities {
            writeln!(f, "  lacks {name}, for {purpose}")?;
        }
        for gpu in &self.gpus {
            let observed = gpu
                .observed_mhz
                .map_or_else(|| "unknown".to_owned(), |clock| format!("{clock} MHz"));
            writeln!(f, "GPU {}: clock {observed}, lowered by {}", gpu.uuid, gpu.means)?;
        }
        writeln!(f, "models train on {} ({})", self.device, self.device_reason)?;
        writeln!(f, "CPU fingerprint {}", self.cpu_fingerprint)?;
        for reached in &self.reached {
            match &reached.result {
                Ok(seconds) => writeln!(f, "{} answers after {:.1} ms", reached.address, seconds * 1e3)?,
                Err(reason) => writeln!(f, "{} cannot be reached: {reason}", reached.address)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(source: &str, quality: Quality) -> SourceReport {
        SourceReport::new(source, quality, "")
    }

    #[test]
    fn a_run_is_as_good_as_its_worst_part_and_gpus_count_where_there_are_some() {
        use Quality::{Estimated, Integrated, Measured, Unavailable};
        let quality = |rapl, estimate, nvml| {
            quality_of(&[report("rapl", rapl), report("estimate", estimate), report("nvml", nvml)])
        };
        assert_eq!(quality(Measured, Unavailable, Integrated), Integrated);
        assert_eq!(quality(Measured, Unavailable, Unavailable), Measured);
        assert_eq!(quality(Unavailable, Estimated, Measured), Estimated);
        assert_eq!(quality_of(&[]), Unavailable);
    }

    #[test]
    fn this_computer_is_diagnosed_and_addresses_are_tried() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap().to_string();
        let diagnosis = diagnose(&[
            open.clone(),
            "127.0.0.1:1".to_owned(),
            "no.such.name.invalid:1".to_owned(),
        ]);
        let reached: Vec<bool> = diagnosis.reached.iter().map(|reached| reached.result.is_ok()).collect();
        assert_eq!(reached, [true, false, false]);
        assert!(!diagnosis.is_well(Quality::Unavailable));
        let sources: Vec<&str> = diagnosis.sources.iter().map(|report| report.source.as_str()).collect();
        assert!(sources.contains(&"rapl") && sources.contains(&"nvml"), "{sources:?}");
        let text = diagnosis.to_string();
        assert!(
            text.contains(&open) && text.contains("127.0.0.1:1 cannot be reached"),
            "{text}"
        );
        assert!(serde_json::to_string(&diagnosis).unwrap().contains("\"quality\""));
    }

    #[test]
    fn containers_are_known_by_the_first_process() {
        if std::path::Path::new("/.dockerenv").exists() || std::path::Path::new("/run/.containerenv").exists() {
            eprintln!("skipped: this is a container itself");
            return;
        }
        assert_eq!(container("TERM=x\0container=lxc\0"), Some("lxc".to_owned()));
        assert_eq!(container("TERM=x\0"), None);
    }
}
