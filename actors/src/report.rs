//! What a person and a script see of a run: the summary, the run folder, the report, the table.

pub mod summary;
