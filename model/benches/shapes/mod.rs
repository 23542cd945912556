//! Blocks with the sizes of real mini-batches, drawn at random.

use greengnn_model::batch::Block;
use greengnn_model::rng::CounterRng;

/// A block with exactly `edges` picks, every source picked or a destination, counts per destination as even as can be.
pub fn block(destinations: u32, sources: u32, edges: u32) -> Block {
    let mut rng = CounterRng::new(u64::from(edges));
    let fresh = sources - destinations;
    assert!(fresh <= edges, "each new source needs a pick");
    let mut picks: Vec<u32> = (0..edges)
        .map(|pick| {
            if pick < fresh {
                destinations + pick
            } else {
                rng.below(sources)
            }
        })
        .collect();
    greengnn_model::rng::shuffle(7, &mut picks);
    let offset = |destination: u32| (u64::from(edges) * u64::from(destination) / u64::from(destinations)) as u32;
    Block {
        offsets: (0..=destinations).map(offset).collect(),
        sources: picks,
        source_count: sources,
    }
}

/// Values in -1 .. 1.
pub fn values(count: usize) -> Vec<f32> {
    let mut rng = CounterRng::new(count as u64);
    (0..count).map(|_| (2.0 * rng.unit_f64() - 1.0) as f32).collect()
}
