//! What a person and a script see of a run. Plain data in, files and text out; nothing here knows an actor or a socket.
//!
//! In the order in which a run meets them:
//!
//! 1. [`run_folder`]: the folder of a run, opened before the first step; [`records`] are the lines written into it.
//! 2. [`progress`]: what moves on the terminal while the run lasts.
//! 3. [`bound`]: from the times of every step, what the run waited for.
//! 4. [`summary`]: the result, with the names that scripts read.
//! 5. [`table`]: the result on a terminal, and several runs side by side.
//! 6. [`html`]: the result as one page, with the plots of [`plot`].
//! 7. [`comparison`]: many runs, and what of them can be told apart.
//!
//! [`units`] writes figures for people. Every joule that anything here prints has its quality beside it.

pub mod bound;
pub mod clocks;
pub mod comparison;
pub mod html;
pub mod plot;
pub mod progress;
pub mod records;
pub mod run_folder;
pub mod summary;
pub mod table;
pub mod units;
