//! The energy of NVIDIA GPUs, through NVML, which is loaded when the program runs and may be missing.
//!
//! A GPU is known by its UUID: NVML's order is not CUDA's, and a handle may outlive its GPU. Newer GPUs (Volta on)
//! count energy; for all, power is integrated over real times as well, and its figure is used where there is no counter
//! or the counter stands still. Where both exist they are compared, and a warning tells when they differ. Of a GPU that is split (MIG) the whole board is metered. What cannot be read is a gap.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::clock::Clock;
use crate::counter::{Accumulated, CounterRange, CounterTotal, PowerIntegral, Unwrapper};
use crate::domain::DomainKind;
use crate::quality::Quality;
use crate::snapshot::DomainState;
use crate::source::{Source, SourceReport, SourceWarning};

mod cross_check;

use cross_check::CrossCheck;

/// Power that no GPU board draws, in watts.
const GPU_POWER_CAP_W: f64 = 3000.0;

/// After a driver went away it is asked for again this often.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Environment variable that names the library's file, for drivers that lie outside the system's search path.
pub const LIBRARY_VARIABLE: &str = "GREENGNN_NVML";

/// Why a GPU, or all of them, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error(
        "the library libnvidia-ml.so.1 is not there; install the NVIDIA driver, or give the container the GPU (--gpus all)"
    )]
    NoLibrary,
    #[error("the NVIDIA driver does not answer ({0}); look at nvidia-smi and the kernel's log")]
    NoDriver(String),
    #[error("NVML may not be used (permission denied); give this user the right to read /dev/nvidiactl")]
    NoPermission,
    #[error("the GPU has no such reading")]
    NotSupported,
    #[error("the GPU is lost; restart it or the computer")]
    Lost,
    #[error("the GPU does not answer ({0})")]
    Other(String),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => Self::NoLibrary,
            NvmlError::DriverNotLoaded
            | NvmlError::Uninitialized
            | NvmlError::LibRmVersionMismatch
            | NvmlError::Unknown => Self::NoDriver(error.to_string()),
            NvmlError::NoPermission => Self::NoPermission,
            NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
                Self::NotSupported
            }
            NvmlError::GpuLost | NvmlError::NotFound | NvmlError::ResetRequired => Self::Lost,
            other => Self::Other(other.to_string()),
        }
    }
}

/// What identifies a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    pub uuid: String,
    pub name: String,
    /// Whether it is split into instances that others may use: its energy is still that of the whole board.
    pub split: bool,
}

/// Reads GPUs.
pub trait GpuReader: Send {
    /// All GPUs of the computer that this process may see.
    ///
    /// # Errors
    /// Why none can be seen.
    fn gpus(&mut self) -> Result<Vec<GpuInfo>, GpuError>;

    /// Millijoules since the driver was loaded.
    ///
    /// # Errors
    /// `NotSupported` for a GPU without the counter; the others may pass.
    fn energy_mj(&mut self, uuid: &str) -> Result<u64, GpuError>;

    /// Power of the board in milliwatts.
    ///
    /// # Errors
    /// As [`Self::energy_mj`].
    fn power_mw(&mut self, uuid: &str) -> Result<u32, GpuError>;
}

/// NVML itself.
#[derive(Debug)]
pub struct NvmlReader {
    nvml: Option<Nvml>,
    /// The library's file; none leaves it to the system's search path.
    library: Option<PathBuf>,
    retry_after: Duration,
    retry_at: Option<Instant>,
}

impl NvmlReader {
    /// Loads the library and starts it: the file that [`LIBRARY_VARIABLE`] names, else what the system finds.
    ///
    /// # Errors
    /// `NoLibrary`, `NoDriver` or `NoPermission`.
    pub fn load() -> Result<Self, GpuError> {
        Self::start(std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from))
    }

    /// The same with the library in this file, for drivers that lie outside the system's search path.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_from(library: &Path) -> Result<Self, GpuError> {
        Self::start(Some(library.to_owned()))
    }

    fn start(library: Option<PathBuf>) -> Result<Self, GpuError> {
        Ok(Self {
            nvml: Some(start_nvml(library.as_deref())?),
            library,
            retry_after: RETRY_AFTER,
            retry_at: None,
        })
    }

    /// Asks NVML. When the driver has gone, it is closed, and started again after a while.
    pub(crate) fn ask<T>(&mut self, question: impl FnOnce(&Nvml) -> Result<T, NvmlError>) -> Result<T, GpuError> {
        if self.nvml.is_none() {
            if self.retry_at.is_some_and(|at| Instant::now() < at) {
                return Err(GpuError::Lost);
            }
            self.retry_at = Some(Instant::now() + self.retry_after);
            self.nvml = Some(start_nvml(self.library.as_deref())?);
        }
        let Some(nvml) = &self.nvml else {
            return Err(GpuError::Lost);
        };
        let answer = question(nvml).map_err(GpuError::from);
        // Of an answer that one GPU gives the others know nothing.
        if matches!(answer, Err(GpuError::NoDriver(_))) && nvml.device_count().is_err() {
            self.nvml = None;
            self.retry_at = Some(Instant::now() + self.retry_after);
        }
        answer
    }
}

fn start_nvml(library: Option<&Path>) -> Result<Nvml, GpuError> {
    let nvml = match library {
        Some(library) => Nvml::builder().lib_path(library.as_os_str()).init()?,
        None => Nvml::init()?,
    };
    if nvml.lib().nvmlShutdown.is_err() {
        // Its destructor panics without this symbol.
        std::mem::forget(nvml);
        return Err(GpuError::NoDriver("the library has no nvmlShutdown".to_owned()));
    }
    Ok(nvml)
}

impl GpuReader for NvmlReader {
    fn gpus(&mut self) -> Result<Vec<GpuInfo>, GpuError> {
        let count = self.ask(Nvml::device_count)?;
        let mut gpus = Vec::new();
        for index in 0..count {
            // One broken GPU does not hide the others.
            let gpu = self.ask(|nvml| {
                let device = nvml.device_by_index(index)?;
                let uuid = device.uuid()?;
                let name = device.name().unwrap_or_else(|_| "unknown GPU".to_owned());
                let split = device.mig_mode().is_ok_and(|mode| mode.current != 0);
                Ok(GpuInfo { uuid, name, split })
            });
            match gpu {
                Ok(gpu) => gpus.push(gpu),
                Err(error) => tracing::warn!(index, %error, "a GPU is left out of the energy figures"),
            }
        }
        Ok(gpus)
    }

    fn energy_mj(&mut self, uuid: &str) -> Result<u64, GpuError> {
        self.ask(|nvml| nvml.device_by_uuid(uuid)?.total_energy_consumption())
    }

    fn power_mw(&mut self, uuid: &str) -> Result<u32, GpuError> {
        self.ask(|nvml| nvml.device_by_uuid(uuid)?.power_usage())
    }
}

/// One GPU and its energy.
#[derive(Debug)]
struct Gpu {
    info: GpuInfo,
    domain: String,
    counter: Option<CounterTotal>,
    power: Option<PowerIntegral>,
    /// Compares the two.
    check: CrossCheck,
    /// Whether the log has been told that they differ.
    warned: bool,
    /// When a GPU that was lost is looked for again, in seconds of the meter's clock.
    retry_at_s: f64,
}

impl Gpu {
    fn sample(&mut self, reader: &mut dyn GpuReader, clock: &dyn Clock) {
        if clock.now_s() < self.retry_at_s {
            return;
        }
        let mut read = 0;
        if let Some(counter) = &mut self.counter {
            match reader.energy_mj(&self.info.uuid) {
                Ok(millijoules) => {
                    read += 1;
                    counter.feed(millijoules.saturating_mul(1000), clock.now_s());
                }
                Err(GpuError::NotSupported) => self.counter = None,
                Err(error) => {
                    counter.miss();
                    self.retry_after(&error, clock);
                }
            }
        }
        if let Some(power) = &mut self.power {
            // A board that is on draws power, so that 0 is a sensor that failed.
            match reader.power_mw(&self.info.uuid) {
                Ok(milliwatts) if milliwatts > 0 => {
                    read += 1;
                    power.feed(f64::from(milliwatts) * 1e-3, clock.now_s());
                }
                Err(GpuError::NotSupported) => self.power = None,
                Ok(_) => power.miss(),
                Err(error) => {
                    power.miss();
                    self.retry_after(&error, clock);
                }
            }
        }
        if read == 2 {
            self.compare(clock.now_s());
        }
    }

    /// Compares counter and power after a tick in which both could be read.
    fn compare(&mut self, now_s: f64) {
        if let (Some(counter), Some(power)) = (&self.counter, &self.power) {
            self.check.feed(now_s, counter.at(now_s), power.at(now_s));
        }
        if let Some(warning) = self.warning()
            && !self.warned
        {
            tracing::warn!("{warning}");
            self.warned = true;
        }
    }

    /// That counter and power differ, if they do.
    fn warning(&self) -> Option<SourceWarning> {
        let (counter_j, power_j) = self.check.difference()?;
        Some(SourceWarning::CounterAndPowerDiffer {
            domain: self.domain.clone(),
            counter_j,
            power_j,
        })
    }

    /// A GPU that is lost is not asked at every tick.
    fn retry_after(&mut self, error: &GpuError, clock: &dyn Clock) {
        if matches!(error, GpuError::Lost) {
            self.retry_at_s = clock.now_s() + RETRY_AFTER.as_secs_f64();
        }
    }
}

/// All GPUs of the computer.
pub struct Gpus {
    reader: Box<dyn GpuReader>,
    gpus: Vec<Gpu>,
}

impl Gpus {
    /// Meters the GPUs that `reader` sees.
    ///
    /// # Errors
    /// Why none can be seen.
    pub fn open(mut reader: Box<dyn GpuReader>) -> Result<Self, GpuError> {
        let gpus = reader
            .gpus()?
            .into_iter()
            .map(|info| Gpu {
                domain: format!("gpu/{}", info.uuid),
                info,
                counter: Some(CounterTotal::new(Unwrapper::new(
                    CounterRange::Unbounded,
                    GPU_POWER_CAP_W,
                ))),
                power: Some(PowerIntegral::default()),
                check: CrossCheck::default(),
                warned: false,
                retry_at_s: f64::NEG_INFINITY,
            })
            .collect();
        Ok(Self { reader, gpus })
    }
}

impl Source for Gpus {
    fn sample(&mut self, clock: &dyn Clock, _fresh: bool) {
        for gpu in &mut self.gpus {
            gpu.sample(self.reader.as_mut(), clock);
        }
    }

    fn states(&self, now_s: f64, into: &mut Vec<DomainState>) {
        for gpu in &self.gpus {
            let state = |quality, so_far| DomainState::new(&gpu.domain, DomainKind::Gpu, quality, so_far);
            if let Some(counter) = &gpu.counter {
                into.push(state(Quality::Measured, counter.at(now_s)));
            }
            if let Some(power) = &gpu.power {
                into.push(state(Quality::Integrated, power.at(now_s)));
            }
            if gpu.counter.is_none() && gpu.power.is_none() {
                // It is there and draws power that nobody knows: a total must not pass over it.
                into.push(state(Quality::Unavailable, Accumulated::default()));
            }
        }
    }

    fn report(&self) -> SourceReport {
        if self.gpus.is_empty() {
            return SourceReport::new("nvml", Quality::Unavailable, "NVML works and there is no GPU");
        }
        let mut quality = Quality::Measured;
        let mut parts = Vec::new();
        for gpu in &self.gpus {
            let (its, how) = match (&gpu.counter, &gpu.power) {
                (Some(_), _) => (Quality::Measured, "energy counter"),
                (None, Some(_)) => (Quality::Integrated, "integrated power"),
                (None, None) => (Quality::Unavailable, "neither energy nor power"),
            };
            quality = quality.max(its);
            let split = if gpu.info.split {
                ", the whole board of a split GPU"
            } else {
                ""
            };
            parts.push(format!("{} {} ({how}{split})", gpu.info.name, gpu.info.uuid));
        }
        SourceReport {
            warnings: self.gpus.iter().filter_map(Gpu::warning).collect(),
            ..SourceReport::new("nvml", quality, parts.join("; "))
        }
    }
}

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod library_tests;
#[cfg(test)]
mod tests;
