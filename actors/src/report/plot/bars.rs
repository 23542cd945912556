//! Bars from left to right, each with a name, for things that are compared with each other.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{AXIS, FONT, GRID, PlotError, SERIES, TEXT, inline, text};

/// Pixels from one bar to the next.
const BAR_STEP: u32 = 60;
const WIDTH: u32 = 1240;
/// Above the bars, and for the axis and its description below.
const MARGINS: (u32, u32) = (16, 108);
const RIGHT_MARGIN: u32 = 24;
/// A character of the font is about so wide.
const CHARACTER: u32 = 20;
/// Names may take at most so much of the width.
const MOST_FOR_LABELS: u32 = 560;

/// A bar of one or more pieces, the first from 0 on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    pub label: String,
    /// One per series, of its colour. None may be negative.
    pub pieces: Vec<f64>,
    /// Half of an interval around the end of the bar.
    pub half_width: Option<f64>,
    /// What is said behind its end.
    pub note: String,
}

/// A chart of bars.
pub struct BarChart<'a> {
    /// Read out instead of the drawing.
    pub title: &'a str,
    pub x_label: &'a str,
    /// How a value on the x axis is written.
    pub x_text: &'a dyn Fn(f64) -> String,
    /// A value that has a line through all bars.
    pub mark: Option<f64>,
}

impl Bar {
    fn length(&self) -> f64 {
        self.pieces.iter().filter(|piece| piece.is_finite()).sum()
    }

    /// The end of the bar or of its interval.
    fn end(&self) -> f64 {
        self.length() + self.half_width.filter(|half| half.is_finite()).unwrap_or(0.0)
    }
}

impl BarChart<'_> {
    /// Draws the bars from top to bottom.
    pub fn draw(&self, bars: &[Bar]) -> Result<String, PlotError> {
        let size = (WIDTH, MARGINS.0 + BAR_STEP * bars.len() as u32 + MARGINS.1);
        let mut svg = String::new();
        self.draw_into(&mut svg, size, bars).map_err(|reason| PlotError {
            title: self.title.into(),
            reason,
        })?;
        Ok(inline(self.title, size, &svg))
    }

    fn draw_into(&self, svg: &mut String, size: (u32, u32), bars: &[Bar]) -> Result<(), String> {
        let root = SVGBackend::with_string(svg, size).into_drawing_area();
        let labels = bars
            .iter()
            .map(|bar| width_of(&bar.label))
            .max()
            .unwrap_or(0)
            .min(MOST_FOR_LABELS);
        let mut chart = ChartBuilder::on(&root)
            .margin_top(MARGINS.0)
            .margin_right(RIGHT_MARGIN)
            .x_label_area_size(MARGINS.1)
            .y_label_area_size(labels + CHARACTER)
            .build_cartesian_2d(0.0..self.x_max(bars, labels), 0.0..bars.len().max(1) as f64)
            .map_err(text)?;
        let style = FONT.into_font().color(&TEXT.light);
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.light.stroke_width(2))
            .axis_style(AXIS.light.stroke_width(2))
            .label_style(style.clone())
            .axis_desc_style(style.clone())
            .x_desc(self.x_label)
            .x_labels(6)
            .x_label_formatter(&|x| (self.x_text)(*x))
            .draw()
            .map_err(text)?;
        for (place, bar) in bars.iter().enumerate() {
            let middle = bars.len() as f64 - place as f64 - 0.5;
            let mut from = 0.0;
            for (piece, colour) in bar.pieces.iter().zip(&SERIES) {
                if piece.is_finite() && *piece > 0.0 {
                    let corners = [(from, middle - 0.32), (from + piece, middle + 0.32)];
                    let rectangle = Rectangle::new(corners, colour.light.filled());
                    chart.draw_series([rectangle]).map_err(text)?;
                    from += piece;
                }
            }
            if let Some(half) = bar.half_width.filter(|half| half.is_finite() && *half > 0.0) {
                let ends = vec![((from - half).max(0.0), middle), (from + half, middle)];
                let whisker = PathElement::new(ends, TEXT.light.stroke_width(4));
                chart.draw_series([whisker]).map_err(text)?;
            }
            let (left, y) = chart.backend_coord(&(0.0, middle));
            let (end, _) = chart.backend_coord(&(bar.end(), middle));
            let gap = CHARACTER as i32 / 2;
            let label = style.pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(bar.label.as_str(), (left - gap, y), label))
                .map_err(text)?;
            if !bar.note.is_empty() {
                let note = style.pos(Pos::new(HPos::Left, VPos::Center));
                root.draw(&Text::new(bar.note.as_str(), (end + gap, y), note))
                    .map_err(text)?;
            }
        }
        if let Some(mark) = self.mark.filter(|mark| mark.is_finite()) {
            let ends = vec![(mark, 0.0), (mark, bars.len() as f64)];
            let line = PathElement::new(ends, TEXT.light.stroke_width(3));
            chart.draw_series([line]).map_err(text)?;
        }
        root.present().map_err(text)
    }

    /// The end of the axis: every bar fits, and its note behind it.
    fn x_max(&self, bars: &[Bar], labels: u32) -> f64 {
        let width = f64::from(WIDTH - RIGHT_MARGIN - CHARACTER - labels);
        let needed = |bar: &Bar| {
            let note = f64::from(width_of(&bar.note) + CHARACTER).min(width * 0.8);
            bar.end() * width / (width - note)
        };
        let most = bars.iter().map(needed).chain(self.mark).filter(|x| x.is_finite());
        match most.fold(0.0, f64::max) {
            most if most > 0.0 => most * 1.02,
            _ => 1.0,
        }
    }
}

fn width_of(text: &str) -> u32 {
    text.chars().count() as u32 * CHARACTER
}

#[cfg(test)]
mod tests {
    use super::super::{hex, trimmed};
    use super::*;

    const CHART: BarChart<'_> = BarChart {
        title: "a < b",
        x_label: "joules",
        x_text: &trimmed_value,
        mark: None,
    };

    fn trimmed_value(value: f64) -> String {
        trimmed(value)
    }

    fn bar(label: &str, pieces: &[f64]) -> Bar {
        Bar {
            label: label.into(),
            pieces: pieces.to_vec(),
            ..Bar::default()
        }
    }

    /// x, y, width and height of every bar of a series.
    fn rectangles(svg: &str, series: usize) -> Vec<[f64; 4]> {
        let colour = format!("fill=\"{}\"", hex(SERIES[series].light));
        let of = |line: &str, name: &str| -> f64 {
            let value = line.split(&format!(" {name}=\"")).nth(1).unwrap();
            value.split('"').next().unwrap().parse().unwrap()
        };
        let lines = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains(&colour));
        lines
            .map(|line| ["x", "y", "width", "height"].map(|name| of(line, name)))
            .collect()
    }

    #[test]
    fn pieces_stand_next_to_each_other_and_bars_do_not_overlap() {
        let svg = CHART
            .draw(&[bar("on-demand", &[3.0, 1.0]), bar("bulk 25%", &[1.0, f64::NAN])])
            .unwrap();
        let (first, second) = (rectangles(&svg, 0), rectangles(&svg, 1));
        assert_eq!((first.len(), second.len()), (2, 1), "{svg}");
        let [x, y, width, height] = first[0];
        assert!((second[0][0] - (x + width)).abs() <= 1.0 && second[0][1] == y, "{svg}");
        assert!(first[1][1] >= y + height, "{svg}");
        assert!((width / first[1][2] - 3.0).abs() < 0.05, "{svg}");
        assert!(
            svg.contains("on-demand") && svg.contains("bulk 25%") && !svg.contains("http"),
            "{svg}"
        );
    }

    #[test]
    fn a_note_stands_behind_its_bar_and_inside_the_drawing() {
        let with_note = Bar {
            half_width: Some(0.5),
            note: "-42.0 % n.d.".into(),
            ..bar("x", &[10.0])
        };
        let svg = CHART.draw(std::slice::from_ref(&with_note)).unwrap();
        let [x, _, width, _] = rectangles(&svg, 0)[0];
        let lines: Vec<_> = svg.lines().collect();
        let note = lines.iter().position(|line| line.contains("-42.0 %")).unwrap();
        let at: f64 = lines[..=note]
            .iter()
            .rev()
            .find_map(|line| line.split("<text x=\"").nth(1))
            .unwrap()
            .split('"')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(at > x + width, "{svg}");
        assert!(at + f64::from(width_of(&with_note.note)) <= f64::from(WIDTH), "{svg}");
    }

    #[test]
    fn nothing_to_draw_is_an_empty_drawing() {
        assert!(CHART.draw(&[]).unwrap().contains("</svg>"));
        assert!(CHART.draw(&[bar("x", &[f64::NAN])]).unwrap().contains("</svg>"));
    }
}
