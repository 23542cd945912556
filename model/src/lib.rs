//! What GreenGNN computes. Everything in this crate is a deterministic function of its inputs: no sockets, no clocks, no
//! actors.
//!
//! The modules in the order in which data meets them:
//!
//! 1. [`npy`] and [`store`]: arrays and graph folders on disk; [`import`] and [`synth`] make a graph folder.
//! 2. [`partition`]: cuts a graph into parts; [`book`] says who owns what afterwards, and [`rows`] who owns feature rows
//!    where that is not the same.
//! 3. [`rng`] and [`sampling`]: draws the neighbours of every mini-batch ([`batch`]), by key.
//! 4. [`trace`]: an epoch's batches on disk, presampled ahead of training; [`locality`]: how often nodes repeat in them.
//! 5. [`policy`] and [`plan`]: what is fetched when, and what stays; [`executor`] runs a plan in memory.
//! 6. [`row_type`]: how remote rows are encoded on the wire and in caches.
//! 7. [`assemble`] and [`layers`]: features into batches, batches into gradients.
//!
//! [`counters`] is shared by all of them.

pub mod assemble;
pub mod batch;
pub mod book;
pub mod counters;
pub mod executor;
pub mod import;
pub mod layers;
pub mod locality;
pub mod npy;
pub mod partition;
pub mod plan;
pub mod policy;
pub mod rng;
pub mod row_type;
pub mod rows;
pub mod sampling;
pub mod store;
pub mod synth;
pub mod trace;
