//! The table as CSV (RFC 4180): one line per combination, in the order of the paper's Table II.
//!
//! Every column of the table is a mean, half the width of its 95 % interval (`_ci95`) and its standing (`_standing`);
//! energies have their quality besides (`_quality`). Changes against `on-demand` come last (`_change_percent`,
//! `_distinguishable`). What is not known is empty.

use std::fmt::Write;

use super::Comparison;
use super::changes::CHANGED;
use super::standings::{COLUMNS, Standing, Unit};

/// The whole file.
pub fn table(comparison: &Comparison) -> String {
    let mut text = String::from("dataset,batch,policy,budget,window,budget_rows,repeats");
    for column in &COLUMNS {
        let name = column.name;
        let _ = write!(text, ",{name},{name}_ci95,{name}_standing");
        if column.unit == Unit::Joules {
            let _ = write!(text, ",{name}_quality");
        }
    }
    for name in CHANGED {
        let _ = write!(text, ",{name}_change_percent,{name}_distinguishable");
    }
    text.push('\n');
    for row in &comparison.table {
        let window = row.window.map_or_else(String::new, |window| window.to_string());
        let budget = row.budget.map_or_else(String::new, |budget| budget.to_string());
        let _ = write!(
            text,
            "{},{},{},{budget},{window},{},{}",
            quoted(&comparison.dataset),
            row.batch_size,
            quoted(&row.policy),
            row.budget_rows,
            row.repeats
        );
        for (figure, column) in row.figures.iter().zip(&COLUMNS) {
            let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
            let _ = write!(
                text,
                ",{},{},{}",
                number(figure.estimate.map(|estimate| estimate.mean)),
                number(figure.estimate.and_then(|estimate| estimate.half_width)),
                standing(figure.standing)
            );
            if column.unit == Unit::Joules {
                let quality = figure.quality.map_or_else(String::new, |quality| quality.to_string());
                let _ = write!(text, ",{quality}");
            }
        }
        for place in 0..CHANGED.len() {
            let change = row.changes.get(place);
            let percent = change
                .and_then(|change| change.percent)
                .map(|percent| percent.to_string());
            let distinguishable = change
                .and_then(|change| change.distinguishable)
                .map(|known| known.to_string());
            let _ = write!(
                text,
                ",{},{}",
                percent.unwrap_or_default(),
                distinguishable.unwrap_or_default()
            );
        }
        text.push('\n');
    }
    text
}

fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Best => "best",
        Standing::NotDistinguishable => "not-distinguishable",
        Standing::Behind => "behind",
        Standing::NotCompared => "not-compared",
    }
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::tests::comparison;
    use super::*;

    /// One map per line, of a file without line breaks in its fields.
    fn read(text: &str) -> Vec<HashMap<String, String>> {
        let fields = |line: &str| {
            let mut fields = vec![String::new()];
            let mut inside = false;
            for c in line.chars() {
                match c {
                    '"' => inside = !inside,
                    ',' if !inside => fields.push(String::new()),
                    c => fields.last_mut().unwrap().push(c),
                }
            }
            fields
        };
        let mut lines = text.lines();
        let header = fields(lines.next().unwrap());
        let row = |line| {
            let fields = fields(line);
            assert_eq!(fields.len(), header.len(), "{line}");
            header.iter().cloned().zip(fields).collect()
        };
        lines.map(row).collect()
    }

    #[test]
    fn what_is_read_back_is_the_table() {
        let mut comparison = comparison();
        comparison.dataset = "a, b".into();
        let read = read(&table(&comparison));
        assert_eq!(read.len(), comparison.table.len());
        for (read, row) in read.iter().zip(&comparison.table) {
            assert_eq!((read["dataset"].as_str(), &read["policy"]), ("a, b", &row.policy));
            assert_eq!(read["batch"], row.batch_size.to_string());
            assert_eq!(read["budget"].parse().ok(), row.budget);
            for column in &COLUMNS {
                let figure = row.figure(column.name).unwrap();
                let estimate = figure.estimate;
                assert_eq!(read[column.name].parse().ok(), estimate.map(|estimate| estimate.mean));
                let half_width = read[&format!("{}_ci95", column.name)].parse().ok();
                assert_eq!(half_width, estimate.and_then(|estimate| estimate.half_width));
            }
            assert_eq!(read["total_j_quality"], "estimated");
            let percent = read["rows_change_percent"].parse().ok();
            let change = row.changes.iter().find(|change| change.name == "rows");
            assert_eq!(percent, change.and_then(|change| change.percent));
            assert_eq!((read["gpu_j"].as_str(), read["gpu_j_quality"].as_str()), ("", ""));
        }
        assert_eq!(read[0]["rows_standing"], "behind");
    }
}
