//! The order of candidates, and how well two orders agree.

/// Why candidates cannot be ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    #[error("there is no candidate to choose from; give at least one window")]
    NoCandidate,
    #[error("the cost of window {window} is not a finite number; simulate or measure it again")]
    NotFinite { window: u32 },
    #[error("window {window} stands twice among the candidates; give each once")]
    Twice { window: u32 },
    #[error("{what}: {found} figures for {expected} windows; give one for each")]
    Lengths {
        what: String,
        found: usize,
        expected: usize,
    },
    #[error("{name} has other windows than the first configuration; evaluate the same candidates everywhere")]
    OtherWindows { name: String },
    #[error("{found} windows are too many to find the best constant order; evaluate at most {most}")]
    TooMany { found: usize, most: usize },
}

/// Candidates that cannot be told apart.
#[derive(Clone, Debug, PartialEq)]
pub struct TieGroup {
    /// 1 is the cheapest; after a group of two the next rank is left out.
    pub rank: u32,
    /// Ascending. The first stands for all.
    pub windows: Vec<u32>,
    pub joules: f64,
}

/// Gives candidates that are the same program the mean of their costs.
///
/// An epoch of `steps` steps has one window for every `W >= steps`: the schedules do not differ, and differences between
/// their measurements are noise.
pub(super) fn tie_same_programs(windows: &[u32], steps: u32, costs: &[f64]) -> Vec<f64> {
    let program = |window: u32| window.min(steps);
    windows
        .iter()
        .zip(costs)
        .map(|(window, cost)| {
            let same: Vec<f64> = windows
                .iter()
                .zip(costs)
                .filter(|(other, _)| program(**other) == program(*window))
                .map(|(_, cost)| *cost)
                .collect();
            // A mean of equal figures need not be that figure to the last bit.
            if same.iter().all(|other| other == cost) {
                *cost
            } else {
                same.iter().sum::<f64>() / same.len() as f64
            }
        })
        .collect()
}

/// Checks that there is one finite cost for each window, and each window once.
pub(super) fn check_candidates(windows: &[u32], costs: &[f64], what: &str) -> Result<(), RankError> {
    if windows.is_empty() {
        return Err(RankError::NoCandidate);
    }
    if windows.len() != costs.len() {
        return Err(RankError::Lengths {
            what: what.to_owned(),
            found: costs.len(),
            expected: windows.len(),
        });
    }
    let mut sorted = windows.to_vec();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(RankError::Twice { window: pair[0] });
    }
    match windows.iter().zip(costs).find(|(_, cost)| !cost.is_finite()) {
        Some((window, _)) => Err(RankError::NotFinite { window: *window }),
        None => Ok(()),
    }
}

/// Orders candidates by cost, cheapest first. Those of one program (`W >= steps`), and those of exactly the same cost,
/// are one group.
///
/// # Errors
/// There is no candidate, one stands twice, or a cost is not finite.
pub fn rank_windows(costs: &[(u32, f64)], steps: u32) -> Result<Vec<TieGroup>, RankError> {
    let mut sorted = costs.to_vec();
    sorted.sort_unstable_by_key(|(window, _)| *window);
    let (windows, joules): (Vec<u32>, Vec<f64>) = sorted.into_iter().unzip();
    check_candidates(&windows, &joules, "costs")?;
    let joules = tie_same_programs(&windows, steps, &joules);
    let mut order: Vec<(u32, f64)> = windows.into_iter().zip(joules).collect();
    order.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut groups: Vec<TieGroup> = Vec::new();
    for (index, (window, joules)) in order.into_iter().enumerate() {
        match groups.last_mut() {
            Some(group) if group.joules == joules => group.windows.push(window),
            _ => groups.push(TieGroup {
                rank: index as u32 + 1,
                windows: vec![window],
                joules,
            }),
        }
    }
    Ok(groups)
}

/// -1, 0 or 1, where 0 is a tie.
pub(super) fn sign(difference: f64) -> f64 {
    if difference > 0.0 {
        1.0
    } else if difference < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// Pairs of a list, and how many of them are not ties.
pub(super) fn untied_pairs(values: &[f64]) -> usize {
    let mut untied = 0;
    for (index, a) in values.iter().enumerate() {
        untied += values[index + 1..].iter().filter(|b| *b != a).count();
    }
    untied
}

/// Kendall's tau-b between two lists of costs or ranks: 1 for the same order, -1 for the opposite one; ties are neither
/// for nor against (Kendall 1945). Without ties it is the tau of the paper, `1 - 2 D / (n (n - 1) / 2)` with `D`
/// discordant pairs.
///
/// `None` where it has no value: the lengths differ, or one list is all ties.
pub fn kendall_tau_b(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() {
        return None;
    }
    let mut agreement = 0.0;
    for i in 0..a.len() {
        for j in i + 1..a.len() {
            agreement += sign(a[j] - a[i]) * sign(b[j] - b[i]);
        }
    }
    let (untied_a, untied_b) = (untied_pairs(a), untied_pairs(b));
    (untied_a > 0 && untied_b > 0).then(|| agreement / (untied_a as f64 * untied_b as f64).sqrt())
}
