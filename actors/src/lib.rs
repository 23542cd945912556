//! Who does it: the actors, the wire and the program.

pub mod cli;
pub mod metis_child;
pub mod report;
pub mod telemetry;
pub mod transport;
