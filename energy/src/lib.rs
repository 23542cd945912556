//! What GreenGNN costs: meters, and the quality of every figure that they give.
//!
//! In the order in which energy meets them:
//!
//! - [`rapl`] reads the processor's energy counters from the kernel's powercap tree, [`nvml`] those of NVIDIA GPUs, and
//!   [`estimate`] computes a figure from CPU use where there is no counter.
//! - [`counter`] turns raw counters, which wrap and reset, and power readings, which have holes, into joules and gaps.
//! - [`clocks`] lowers GPU clocks for a while and restores them whatever happens.
//! - [`domain`] names what is metered, so that a counter that several processes read is counted once.
//! - [`meter`] is one thread per process that reads all of them every 50 ms; [`timeline`] keeps the power over time, in
//!   bounded memory.
//! - [`snapshot`] holds what the meter saw at one time; two of them make a reading of all domains over one window, and
//!   the readings of all machines make a total, whose parts [`device`] sorts into GPUs, processors and memory.
//! - [`process`] has what is exact on every machine: CPU seconds and peak memory.
//! - [`probing`] says who fetches what in a probe of a cluster, and [`profile`] has what a request and a row cost there.
//! - [`simulator`] prices a plan before it runs, and says how good the choice that follows from it is.
//! - [`calibration`] learns what the simulator's order lacks, on the hardware that a [`fingerprint`] names.
//! - [`choice`] plans and prices every candidate of policy, budget and window, and picks one.
//! - [`statistics`] has means and intervals of repeated runs, and refuses savings between figures of different quality.
//! - [`quality`] says how a figure was obtained, and [`format`](mod@format) never prints a joule without it.
//!
//! Nothing here panics, blocks without a bound, or gives 0 for a thing that it could not read.

pub mod calibration;
pub mod choice;
pub mod clock;
pub mod clocks;
pub mod counter;
pub mod device;
pub mod domain;
pub mod estimate;
pub mod files;
pub mod fingerprint;
pub mod format;
pub mod meter;
pub mod nvml;
pub mod probing;
pub mod process;
pub mod profile;
pub mod quality;
pub mod rapl;
pub mod simulator;
pub mod snapshot;
pub mod source;
pub mod statistics;
pub mod timeline;

pub use device::{DeviceEnergy, DomainJoules, Joules};
pub use domain::{DomainKey, DomainKind};
pub use format::format_joules;
pub use meter::{GpuChoice, Meter, MeterConfig};
pub use quality::Quality;
pub use snapshot::{DomainEnergy, EnergyReading, EnergySnapshot, EnergyTotal, combine};
pub use timeline::TimelinePoint;
