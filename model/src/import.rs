//! Reads a data set into a graph folder.
