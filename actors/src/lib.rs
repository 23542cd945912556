//! Who does it: the actors, the wire and the program.

pub mod cli;
pub mod collective;
pub mod report;
pub mod shard;
pub mod transport;
