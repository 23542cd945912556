//! What GreenGNN costs: meters, and the quality of every figure that they give.

pub mod quality;
