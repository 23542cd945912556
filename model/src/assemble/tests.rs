use proptest::prelude::*;

use super::*;
use crate::rng::{CounterRng, mix64};
use crate::row_type::RowType;

/// A block with isolated destinations, repeated picks and sources that nobody picks.
pub(crate) fn random_block(seed: u64, destinations: u32, source_count: u32, fanout: u32) -> Block {
    let mut rng = CounterRng::new(seed);
    let mut block = Block {
        offsets: vec![0],
        sources: Vec::new(),
        source_count,
    };
    for _ in 0..destinations {
        for _ in 0..rng.below(fanout + 1) {
            block.sources.push(rng.below(source_count));
        }
        block.offsets.push(block.sources.len() as u32);
    }
    block
}

pub(crate) fn random_values(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = CounterRng::new(seed);
    (0..count).map(|_| rng.normal() as f32).collect()
}

/// The definition, row by row in f32: sum in the order of the picks, then divide.
fn naive_mean(rows: &[&[f32]], block: &Block, width: usize) -> Vec<f32> {
    let mut means = Vec::new();
    for range in block.offsets.windows(2) {
        let picks = &block.sources[range[0] as usize..range[1] as usize];
        means.extend((0..width).map(|column| {
            let values = picks.iter().map(|source| rows[*source as usize][column]);
            values
                .reduce(|sum, value| sum + value)
                .map_or(0.0, |sum| sum / picks.len() as f32)
        }));
    }
    means
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn pool(threads: usize) -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn means_are_the_definition_bit_for_bit(
        seed: u64, destinations in 0u32..150, more in 1u32..200, width in 1usize..70, fanout in 0u32..12,
    ) {
        let block = random_block(seed, destinations, destinations + more, fanout);
        let values = random_values(seed ^ 1, block.source_count as usize * width);
        let rows: Vec<&[f32]> = values.chunks_exact(width).collect();
        let wanted = naive_mean(&rows, &block, width);
        let mut scattered = vec![f32::NAN; destinations as usize * width];
        segment_mean(&rows[..], &block, width, &mut scattered).unwrap();
        prop_assert_eq!(bits(&scattered), bits(&wanted));
        let mut dense = vec![f32::NAN; destinations as usize * width];
        segment_mean(&Columns::all(&values, width), &block, width, &mut dense).unwrap();
        prop_assert_eq!(bits(&dense), bits(&wanted));
        let mut both = vec![f32::NAN; destinations as usize * 2 * width];
        own_and_mean(&Columns::all(&values, width), &block, width, &mut both).unwrap();
        for (destination, pair) in both.chunks_exact(2 * width).enumerate() {
            prop_assert_eq!(bits(&pair[..width]), bits(rows[destination]));
            prop_assert_eq!(bits(&pair[width..]), bits(&wanted[destination * width..][..width]));
        }
    }

    #[test]
    fn the_backward_pass_is_the_transposed_matrix(
        seed: u64, destinations in 0u32..80, more in 1u32..80, width in 1usize..20, fanout in 0u32..9,
    ) {
        let block = random_block(seed, destinations, destinations + more, fanout);
        let sources = block.source_count as usize;
        let gradient = random_values(seed ^ 2, destinations as usize * 2 * width);
        let mut exact = vec![0.0f64; sources * width];
        for destination in 0..destinations as usize {
            let picks = &block.sources[block.offsets[destination] as usize..block.offsets[destination + 1] as usize];
            for column in 0..width {
                let at = destination * 2 * width + column;
                exact[destination * width + column] += f64::from(gradient[at]);
                for source in picks {
                    exact[*source as usize * width + column] += f64::from(gradient[at + width]) / picks.len() as f64;
                }
            }
        }
        let transposed = TransposedBlock::new(&block).unwrap();
        let mut found = vec![f32::NAN; sources * width];
        own_and_mean_backward(&gradient, &transposed, width, &mut found).unwrap();
        for (found, exact) in found.iter().zip(&exact) {
            prop_assert!((f64::from(*found) - exact).abs() < 1e-5 * (1.0 + exact.abs()), "{} and {}", found, exact);
        }
    }

    #[test]
    fn both_ways_to_assemble_hold_the_same_values(
        seed: u64, destinations in 0u32..90, more in 0u32..90, width in 1usize..40,
    ) {
        let block = random_block(seed, destinations, (destinations + more).max(1), 7);
        let values = random_values(seed ^ 3, block.source_count as usize * width);
        let rows: Vec<&[f32]> = values.chunks_exact(width).collect();
        let mut buffers = InputBuffers::default();
        let gathered = assemble_input(&rows[..], &block, width, false, &mut buffers).unwrap();
        prop_assert_eq!(&gathered, &BatchInput::Rows(values.clone()));
        // Used buffers must not shine through.
        buffers.recycle(BatchInput::Rows(vec![f32::NAN; values.len() + 5]));
        buffers.recycle(gathered);
        let BatchInput::PreAggregated { own, mean } = assemble_input(&rows[..], &block, width, true, &mut buffers).unwrap()
        else { panic!("asked to aggregate") };
        prop_assert_eq!(bits(&own), bits(&values[..destinations as usize * width]));
        prop_assert_eq!(bits(&mean), bits(&naive_mean(&rows, &block, width)));
    }

    #[test]
    fn encoded_rows_count_as_what_they_decode_to(
        seed: u64, destinations in 0u32..90, more in 1u32..90, width in 0usize..40,
    ) {
        let block = random_block(seed, destinations, destinations + more, 11);
        let values = random_values(seed ^ 3, block.source_count as usize * width);
        let own = |row: usize| mix64(seed ^ row as u64).is_multiple_of(3);
        for row_type in RowType::ALL {
            let mut encoded = Vec::new();
            let mut exact = Vec::new();
            for row in 0..block.source_count as usize {
                let values = &values[row * width..(row + 1) * width];
                let mut bytes = vec![0; row_type.row_bytes(width)];
                row_type.encode(values, &mut bytes);
                let mut decoded = values.to_vec();
                if !own(row) {
                    row_type.decode(&bytes, &mut decoded);
                }
                encoded.push(bytes);
                exact.push(decoded);
            }
            let exact: Vec<&[f32]> = exact.iter().map(|row| &row[..]).collect();
            let stored = |row: usize| match own(row) {
                true => StoredRow::Own(exact[row]),
                false => StoredRow::Remote(&encoded[row]),
            };
            let rows: Vec<StoredRow> = (0..exact.len()).map(stored).collect();
            let rows = StoredRows { rows: &rows, row_type };
            for preaggregate in [false, true] {
                let mut buffers = InputBuffers::default();
                let found = assemble_input(&rows, &block, width, preaggregate, &mut buffers).unwrap();
                let wanted = assemble_input(&exact[..], &block, width, preaggregate, &mut buffers).unwrap();
                prop_assert_eq!(found, wanted, "{}", row_type);
            }
        }
    }
}

#[test]
fn an_encoded_row_of_another_size_is_refused() {
    let block = random_block(1, 1, 2, 1);
    let rows = [StoredRow::Own(&[1.0, 2.0]), StoredRow::Remote(&[0; 4])];
    let rows = StoredRows {
        rows: &rows,
        row_type: RowType::Int8,
    };
    let error = assemble_input(&rows, &block, 2, true, &mut InputBuffers::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "row 1 of the batch came in 4 bytes, the features take 6 as int8"
    );
}

#[test]
fn the_number_of_threads_does_not_show() {
    let (destinations, width) = (3000, 37);
    let block = random_block(5, destinations, 9000, 25);
    let values = random_values(6, 9000 * width);
    let gradient = random_values(7, destinations as usize * width);
    let transposed = TransposedBlock::new(&block).unwrap();
    let run = |threads| {
        pool(threads).install(|| {
            let mut mean = vec![0.0; destinations as usize * width];
            segment_mean(&Columns::all(&values, width), &block, width, &mut mean).unwrap();
            let mut back = vec![0.0; 9000 * width];
            segment_mean_backward(&gradient, &transposed, width, &mut back).unwrap();
            (bits(&mean), bits(&back))
        })
    };
    let one = run(1);
    assert_eq!(run(2), one);
    assert_eq!(run(3), one);
}

#[test]
fn an_isolated_destination_has_the_zero_vector() {
    let block = Block {
        offsets: vec![0, 0, 2],
        sources: vec![1, 1],
        source_count: 2,
    };
    let mut out = [f32::NAN; 4];
    segment_mean(&Columns::all(&[1.0, 2.0, 3.0, 5.0], 2), &block, 2, &mut out).unwrap();
    assert_eq!(out, [0.0, 0.0, 3.0, 5.0]);
}

#[test]
fn gathering_keeps_the_order() {
    let rows: [&[f32]; 3] = [&[1.0, 2.0], &[3.0, 4.0], &[5.0, 6.0]];
    let mut out = [0.0; 6];
    gather_rows(&rows[..], 3, 2, &mut out).unwrap();
    assert_eq!(out, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut first = [0.0; 2];
    gather_rows(&rows[..], 1, 2, &mut first).unwrap();
    assert_eq!(first, [1.0, 2.0]);
    let none: [&[f32]; 0] = [];
    gather_rows(&none[..], 0, 2, &mut []).unwrap();
    let empty: [&[f32]; 2] = [&[], &[]];
    gather_rows(&empty[..], 2, 0, &mut []).unwrap();
}

#[test]
fn what_does_not_fit_is_refused_with_its_place() {
    let rows: [&[f32]; 2] = [&[1.0, 2.0], &[3.0]];
    assert_eq!(
        gather_rows(&rows[..], 2, 2, &mut [0.0; 4]).unwrap_err().to_string(),
        "row 1 of the batch has 1 values, the features are 2 wide"
    );
    let rows: [&[f32]; 2] = [&[1.0, 2.0], &[3.0, 4.0]];
    assert!(gather_rows(&rows[..], 2, 2, &mut []).is_err());
    assert!(gather_rows(&rows[..], 3, 2, &mut [0.0; 6]).is_err());
    assert!(gather_rows(&rows[..], 2, 2, &mut [0.0; 3]).is_err());

    let good = Block {
        offsets: vec![0, 1],
        sources: vec![1],
        source_count: 2,
    };
    check_block(&good).unwrap();
    let damaged = [
        Block {
            offsets: vec![],
            ..good.clone()
        },
        Block {
            offsets: vec![1, 1],
            ..good.clone()
        },
        Block {
            offsets: vec![0, 2],
            ..good.clone()
        },
        Block {
            offsets: vec![0, 2, 1],
            ..good.clone()
        },
        Block {
            sources: vec![2],
            ..good.clone()
        },
        Block {
            offsets: vec![0, 1, 1, 1],
            ..good.clone()
        },
    ];
    for block in damaged {
        assert!(matches!(check_block(&block), Err(AssembleError::Block(_))), "{block:?}");
        let rows: [&[f32]; 2] = [&[1.0], &[2.0]];
        for preaggregate in [false, true] {
            let _ = assemble_input(&rows[..], &block, 1, preaggregate, &mut InputBuffers::default());
        }
        assert!(assemble_input(&rows[..], &block, 1, true, &mut InputBuffers::default()).is_err());
    }
    let mut out = [0.0; 3];
    assert!(segment_mean(&Columns::all(&[0.0; 4], 2), &good, 2, &mut out).is_err());
    assert!(segment_mean(&Columns::all(&[0.0; 2], 2), &good, 2, &mut out[..2]).is_err());
    let transposed = TransposedBlock::new(&good).unwrap();
    assert!(segment_mean_backward(&[0.0; 3], &transposed, 2, &mut [0.0; 4]).is_err());
    assert!(segment_mean_backward(&[0.0; 2], &transposed, 2, &mut [0.0; 3]).is_err());
}
