//! Every combination against `on-demand` at the same batch size: the row of differences below the paper's Table II.

use serde::{Deserialize, Serialize};

use super::standings::{MixedQuality, Row};

/// The policy that the others are held against: DistDGL's way, as in the paper.
pub const BASELINE: &str = "on-demand";

/// The columns for which changes are given.
pub const CHANGED: [&str; 6] = ["gpu_j", "cpu_j", "total_j", "epoch_s", "requests", "rows"];

/// What a combination changes of one figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The name of the column.
    pub name: String,
    /// In percent of the baseline's mean; negative is less. None if one of the two is not known, if they are energies of
    /// different quality and that was not asked for, or if the baseline's is not positive.
    pub percent: Option<f64>,
    /// Whether the two intervals lie apart. None without intervals.
    pub distinguishable: Option<bool>,
}

/// The changes of `row` against `baseline`, in the order of [`CHANGED`].
pub fn against(baseline: &Row, row: &Row, mixed: MixedQuality) -> Vec<Change> {
    CHANGED.map(|name| change(baseline, row, name, mixed)).into()
}

fn change(baseline: &Row, row: &Row, name: &str, mixed: MixedQuality) -> Change {
    let known = |row: &Row| {
        let figure = row.figure(name)?;
        Some((figure.estimate?, figure.quality))
    };
    let pair = known(baseline)
        .zip(known(row))
        .filter(|((_, base_quality), (_, quality))| base_quality == quality || mixed == MixedQuality::Allowed)
        .filter(|((base, _), _)| base.mean > 0.0);
    Change {
        name: name.to_owned(),
        percent: pair.map(|((base, _), (own, _))| (own.mean / base.mean - 1.0) * 100.0),
        distinguishable: pair.and_then(|((base, _), (own, _))| Some(!base.overlaps(&own)?)),
    }
}

/// Gives every row its changes, where its batch size has a baseline. The baseline itself has none.
pub fn add_changes(rows: &mut [Row], mixed: MixedQuality) {
    for block in rows.chunk_by_mut(|a, b| a.batch_size == b.batch_size) {
        let Some(baseline) = block.iter().find(|row| row.policy == BASELINE).cloned() else {
            continue;
        };
        for row in block.iter_mut().filter(|row| row.policy != BASELINE) {
            row.changes = against(&baseline, row, mixed);
        }
    }
}

impl Change {
    /// `-42.0 %`, with `n.d.` behind it where the difference is not distinguishable; nothing if it is not known.
    pub fn text(&self) -> String {
        let Some(percent) = self.percent else {
            return crate::report::units::NONE.to_owned();
        };
        let mark = if self.distinguishable == Some(false) {
            " n.d."
        } else {
            ""
        };
        format!("{percent:+.1} %{mark}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::comparison;
    use super::*;

    #[test]
    fn a_change_is_the_difference_of_the_means_in_percent() {
        let comparison = comparison();
        for row in &comparison.table {
            if row.policy == BASELINE {
                assert!(row.changes.is_empty());
                continue;
            }
            let names: Vec<_> = row.changes.iter().map(|change| change.name.as_str()).collect();
            assert_eq!(names, CHANGED);
            let base = comparison
                .table
                .iter()
                .find(|base| base.batch_size == row.batch_size)
                .unwrap();
            let (rows, base) = (row.mean("rows").unwrap(), base.mean("rows").unwrap());
            let change = row.changes.iter().find(|change| change.name == "rows").unwrap();
            assert!((change.percent.unwrap() - (rows - base) / base * 100.0).abs() < 1e-9);
            assert_eq!(change.distinguishable, Some(true));
            assert!(
                change.text().starts_with('-') && change.text().ends_with(" %"),
                "{}",
                change.text()
            );
        }
    }

    #[test]
    fn equal_figures_are_not_distinguishable_and_unknown_ones_have_no_change() {
        let comparison = comparison();
        let row = comparison.table.iter().find(|row| row.policy != BASELINE).unwrap();
        let of = |name: &str| row.changes.iter().find(|change| change.name == name).unwrap();
        assert_eq!(of("total_j").text(), "+0.0 % n.d.");
        assert_eq!((of("gpu_j").percent, of("gpu_j").text()), (None, "-".to_owned()));
    }
}
