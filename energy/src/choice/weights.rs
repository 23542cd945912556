//! What owners cost beside each other, as weights for plans of `bulk`.

use greengnn_model::book::Rank;
use greengnn_model::policy::delivery::Search;

use crate::simulator::{Coefficients, FetchCost};

/// Weights between the cheapest owner's cost and twice that.
const RESOLUTION: f64 = 4.0;

/// An owner that costs more than this many cheapest ones weighs no more.
const MOST: f64 = 16.0;

/// The relative cost of each owner as a rank sees it, by part, for [`Bulk::owner_weights`]: what a request of
/// [`Search::CROSSOVER_ROWS`] rows costs in joules, with those of a rank that waits for it.
///
/// Costs are rounded to quarters of the cheapest owner's, bounded by 16 times that, and divided by what they have in common:
/// weights are 1 to 64. So owners that differ by less than an eighth of the cheapest one's cost are alike, and all weights
/// are 1 where all owners are alike, which leaves a plan as it is without weights. The rank's own part, which it never asks,
/// weighs as much as the cheapest. Where nothing has a price all weigh 1.
///
/// [`Bulk::owner_weights`]: greengnn_model::policy::bulk::Bulk::owner_weights
pub fn owner_weights(coefficients: &Coefficients, rank: Rank) -> Vec<u32> {
    let rows = f64::from(Search::CROSSOVER_ROWS);
    let cost = |owner: &FetchCost| {
        let seconds = owner.request_s + rows * owner.row_s;
        owner.request_j + rows * owner.row_j + coefficients.idle_w * seconds
    };
    let costs: Vec<f64> = coefficients.owners.iter().map(cost).collect();
    let others = costs.iter().enumerate().filter(|(part, _)| *part != usize::from(rank));
    let cheapest = others
        .map(|(_, cost)| *cost)
        .filter(|cost| cost.is_finite() && *cost > 0.0)
        .reduce(f64::min);
    let Some(cheapest) = cheapest else {
        return vec![1; costs.len()];
    };
    let in_quarters = |(part, cost): (usize, &f64)| {
        let ratio = if part == usize::from(rank) {
            1.0
        } else {
            cost / cheapest
        };
        let bounded = if ratio.is_nan() { 1.0 } else { ratio.clamp(1.0, MOST) };
        (bounded * RESOLUTION).round() as u32
    };
    let weights: Vec<u32> = costs.iter().enumerate().map(in_quarters).collect();
    let common = weights.iter().copied().fold(0, greatest_common_divisor).max(1);
    weights.into_iter().map(|weight| weight / common).collect()
}

fn greatest_common_divisor(mut one: u32, mut other: u32) -> u32 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn coefficients(row_costs: &[f64]) -> Coefficients {
        let owner = |row_j: &f64| FetchCost {
            request_j: 965.0 * row_j,
            row_j: *row_j,
            request_s: 0.0,
            row_s: 0.0,
        };
        Coefficients {
            owners: row_costs.iter().map(owner).collect(),
            delivery: None,
            row_bytes: 400.0,
            bytes_per_s: f64::INFINITY,
            idle_w: 10.0,
            ahead: 1,
            step_s: 0.1,
            step_j: 1.0,
        }
    }

    #[test]
    fn weights_are_quarters_of_the_cheapest_owner_without_what_they_share() {
        let weights = |costs: &[f64]| owner_weights(&coefficients(costs), 0);
        assert_eq!(weights(&[0.1, 1.0, 2.0, 1.5]), [2, 2, 4, 3]);
        assert_eq!(weights(&[9.0, 2.0, 2.0, 2.2]), [1, 1, 1, 1]);
        assert_eq!(weights(&[1.0, 1.0, 1.3, 1e9]), [4, 4, 5, 64]);
        // An owner without a price is like the cheapest that has one, and one whose price is no number too.
        assert_eq!(weights(&[1.0, 0.0, 3.0, f64::NAN]), [1, 1, 1, 1]);
        assert_eq!(weights(&[1.0, 0.0, 0.0]), [1, 1, 1]);
        assert!(weights(&[]).is_empty());
    }

    #[test]
    fn an_owner_that_takes_longer_weighs_more() {
        let mut slow = coefficients(&[1.0, 1.0, 1.0]);
        // Twice 965 joules, and 10 watts for 193 s.
        slow.owners[2].request_s = 193.0;
        assert_eq!(owner_weights(&slow, 0), [1, 1, 2]);
    }

    proptest! {
        #[test]
        fn weights_are_small_and_ordered_as_costs_are(
            costs in prop::collection::vec(prop_oneof![Just(0.0), 1e-9..1e9_f64, Just(f64::INFINITY)], 0..9),
            rank in 0..9_u16,
            unit in -20..20_i32,
        ) {
            let weights = owner_weights(&coefficients(&costs), rank);
            prop_assert_eq!(weights.len(), costs.len());
            prop_assert!(weights.iter().all(|weight| (1..=64).contains(weight)));
            for (one, other) in (0..costs.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
                let is_own = [one, other].contains(&usize::from(rank));
                if !is_own && costs[one] <= costs[other] {
                    prop_assert!(weights[one] <= weights[other], "{:?}", weights);
                }
            }
            // Joules or 2^n joules.
            let scaled: Vec<f64> = costs.iter().map(|cost| cost * 2_f64.powi(unit)).collect();
            prop_assert_eq!(weights, owner_weights(&coefficients(&scaled), rank));
        }

        #[test]
        fn like_owners_weigh_one(cost in 0.0..1e9_f64, owners in 0..9_usize, rank in 0..9_u16) {
            prop_assert_eq!(owner_weights(&coefficients(&vec![cost; owners]), rank), vec![1; owners]);
        }
    }
}
