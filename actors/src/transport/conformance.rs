//! The rules of transports as one suite that every implementation passes.
