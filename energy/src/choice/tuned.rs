//! What policies are told that only measurements know.

use std::sync::Arc;

use greengnn_model::book::Rank;
use greengnn_model::plan::Delivery;
use greengnn_model::policy::bulk::Bulk;
use greengnn_model::policy::delivery::Search;
use greengnn_model::policy::streamed::for_delivery;
use greengnn_model::policy::{Policy, PolicyParameters, UnknownPolicy};

use super::Method;
use super::weights::owner_weights;
use crate::simulator::Coefficients;

/// A request never counts as more rows than this in a plan.
const MOST_ROWS_PER_DELIVERY: f64 = 1e6;

/// Makes the policies of one rank as they are planned and run: by name, with what was measured where a policy asks.
///
/// Windowed plans of `bulk` weigh requests against rows; measured coefficients say how many rows a request costs, and how
/// much an owner costs beside the others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuned {
    pub parameters: PolicyParameters,
    /// Rows that cost as many joules as a request; none takes the default of the policy.
    pub rows_per_request: Option<u32>,
    /// By part; empty if all owners cost the same.
    pub owner_weights: Vec<u32>,
}

impl Tuned {
    /// For a rank that pays these prices.
    pub fn by(coefficients: &Coefficients, rank: Rank, parameters: PolicyParameters) -> Self {
        let others = coefficients
            .owners
            .iter()
            .enumerate()
            .filter(|(part, _)| *part != usize::from(rank));
        let (request_j, row_j) = others.fold((0.0, 0.0), |(requests, rows), (_, cost)| {
            (requests + cost.request_j, rows + cost.row_j)
        });
        let weights = owner_weights(coefficients, rank);
        Self {
            parameters,
            rows_per_request: (row_j > 0.0)
                .then(|| (request_j / row_j).clamp(1.0, MOST_ROWS_PER_DELIVERY).round() as u32),
            owner_weights: if weights.iter().all(|weight| *weight == 1) {
                Vec::new()
            } else {
                weights
            },
        }
    }

    /// The policy of a method.
    ///
    /// # Errors
    /// [`UnknownPolicy`] lists the names.
    pub fn policy(&self, method: &Method) -> Result<Arc<dyn Policy>, UnknownPolicy> {
        let named = self.parameters.policy(&method.policy)?;
        let bulk = Bulk::default();
        if method.delivery != Delivery::Windowed || method.policy != bulk.name() {
            return Ok(for_delivery(named, method.delivery));
        }
        let default = Search::default();
        Ok(Arc::new(Bulk {
            search: Some(Search {
                rows_per_delivery: self.rows_per_request.unwrap_or(default.rows_per_delivery),
                ..default
            }),
            owner_weights: self.owner_weights.clone(),
            ..bulk
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::FetchCost;

    fn coefficients(costs: &[(f64, f64)]) -> Coefficients {
        let owner = |&(request_j, row_j): &(f64, f64)| FetchCost {
            request_j,
            row_j,
            request_s: 0.0,
            row_s: 0.0,
        };
        Coefficients {
            owners: costs.iter().map(owner).collect(),
            delivery: None,
            row_bytes: 400.0,
            bytes_per_s: f64::INFINITY,
            idle_w: 0.0,
            ahead: 1,
            step_s: 0.0,
            step_j: 0.0,
        }
    }

    #[test]
    fn the_crossover_is_that_of_the_other_owners() {
        let tuned = |costs: &[(f64, f64)]| Tuned::by(&coefficients(costs), 0, PolicyParameters::default());
        let alike = tuned(&[(9.0, 1.0), (0.5, 1e-3), (0.5, 1e-3)]);
        assert_eq!((alike.rows_per_request, alike.owner_weights.len()), (Some(500), 0));
        assert_eq!(tuned(&[(0.0, 0.0), (0.5, 0.0)]).rows_per_request, None);
        let mixed = tuned(&[(0.0, 0.0), (0.5, 1e-3), (1.5, 3e-3)]);
        assert_eq!(mixed.owner_weights, [1, 1, 3]);
    }

    #[test]
    fn methods_have_the_policies_of_their_names() {
        let tuned = Tuned::default();
        for (name, delivery) in [
            ("window", Delivery::Windowed),
            ("bulk", Delivery::Windowed),
            ("bulk", Delivery::Stream),
        ] {
            assert_eq!(tuned.policy(&Method::new(name, delivery)).unwrap().name(), name);
        }
        assert!(tuned.policy(&Method::new("none", Delivery::Windowed)).is_err());
    }
}
