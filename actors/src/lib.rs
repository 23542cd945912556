//! Who does it: the actors, the wire and the program.
//!
//! The parts in the order in which a run meets them:
//!
//! 1. [`cli`] reads the command line into a [`config`]; [`launcher`] starts the processes of a run on one computer.
//! 2. [`supervisor`] waits for machines to join over the [`control`] plane, where [`gate`]s speak the [`protocol`], and
//!    decides the [`placement`] of ranks.
//! 3. [`machine`] connects its lanes ([`wiring`], [`owner`], [`transport`], [`shard`]) and starts its [`rank`]s.
//! 4. A rank is a [`presampler`], its initial [`filling`], a [`planner`], a [`prefetcher`] with its [`arena`], the
//!    [`residency`] of rows on the device and the assembly of batches, and a [`trainer`] that averages gradients in a
//!    [`collective`]. With [`push_pull`] no rows move, and the ranks compute the first layer together.
//!    Until they train, [`gpu_clocks`] may be low.
//! 5. [`recorder`] checks and adds up what machines report; [`run_output`], [`report`] and [`telemetry`] show it.
//!
//! Where windows are to be chosen, a [`tuning`] of all ranks does so before every epoch.
//! A [`probe`] measures what requests and rows cost between the machines; [`work`] says which of all this a run is.
//! [`doctor`] says beforehand what a computer can measure.
//! [`offline`] samples what a run will need without any of this, to tell what it will cost; [`kept_traces`] says where a run
//! may leave the traces that it has sampled.

pub mod arena;
mod assembly;
pub mod causes;
pub mod cli;
pub mod collective;
pub mod config;
pub mod control;
pub mod doctor;
pub mod filling;
pub mod gate;
pub mod gpu_clocks;
pub mod kept_traces;
mod landing;
pub mod launcher;
pub mod lifetime;
pub mod machine;
pub mod metis_child;
pub mod offline;
pub mod owner;
pub mod placement;
pub mod planner;
pub mod prefetcher;
pub mod presampler;
pub mod probe;
pub mod protocol;
pub mod push_pull;
pub mod rank;
pub mod recorder;
pub mod report;
pub mod residency;
pub mod rmp;
pub mod run_output;
pub mod shard;
mod silence;
mod streams;
pub mod supervisor;
pub mod telemetry;
pub mod trainer;
pub mod transport;
pub mod tuning;
pub mod wiring;
pub mod work;
