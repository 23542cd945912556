//! The plots of a report, as inline SVG: lines over time or epochs, and bars per epoch.
//!
//! Colours are written as those of the light theme; [`theme_css`] has the rules that turn them into those of the dark
//! one, since a drawing cannot know which it will be seen in.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

mod bars;

pub use bars::{Bar, BarChart};

/// Drawn at twice the size at which it is shown: the back end places everything on whole pixels.
const SIZE: (u32, u32) = (1240, 560);
const FONT: (&str, u32) = ("sans-serif", 38);
const STROKE: u32 = 4;
/// Up to as many epochs, each has a dot of its own on a line.
const MOST_DOTS: usize = 60;
/// Up to as many epochs, series stand beside each other as bars; beyond, bars would be hairs.
const MOST_BARS: usize = 40;

/// A colour in the light theme and in the dark one.
struct Themed {
    light: RGBColor,
    dark: RGBColor,
}

const SERIES: [Themed; 6] = [
    themed(0x2a78d6, 0x3987e5),
    themed(0xeb6834, 0xd95926),
    themed(0x1baf7a, 0x199e70),
    themed(0x4a3aa7, 0x9085e9),
    themed(0xe87ba4, 0xd55181),
    themed(0xeda100, 0xc98500),
];
const TEXT: Themed = themed(0x6b6a65, 0xa5a39b);
const GRID: Themed = themed(0xe6e5df, 0x31312f);
const AXIS: Themed = themed(0xc3c2b7, 0x4a4a47);

const fn themed(light: u32, dark: u32) -> Themed {
    Themed {
        light: rgb(light),
        dark: rgb(dark),
    }
}

const fn rgb(hex: u32) -> RGBColor {
    RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

/// More series than this would have to share colours.
pub const MOST_SERIES: usize = SERIES.len();

/// A plot that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot {title} could not be drawn: {reason}")]
pub struct PlotError {
    pub title: String,
    pub reason: String,
}

/// What a plot shows.
pub struct Plot<'a> {
    /// Read out instead of the drawing.
    pub title: &'a str,
    pub x_label: &'a str,
    /// How a value on the y axis is written.
    pub y_text: &'a dyn Fn(f64) -> String,
    /// The y axis starts at 0, or below the lowest value if that is negative, and ends here if given.
    pub y_max: Option<f64>,
    pub x: XAxis,
}

/// What stands on the x axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum XAxis {
    /// Values from 0 on.
    Values,
    /// Epochs, so that only whole numbers stand on it.
    Epochs,
    /// Powers of this number, at equal distances.
    Powers(f64),
}

/// One line, in pieces: between two pieces nothing is known.
pub type Pieces = Vec<Vec<(f64, f64)>>;

/// The values of one series, one per x.
pub type Values = Vec<f64>;

impl Plot<'_> {
    /// Draws a line per series; series `i` has colour `i` of [`swatch`]. Points that are not finite are left out.
    pub fn lines(&self, series: &[Pieces]) -> Result<String, PlotError> {
        let series: Vec<Pieces> = series
            .iter()
            .map(|pieces| finite_pieces(&self.placed(pieces)))
            .collect();
        let points = || series.iter().flatten().flatten();
        let x_range = self.x_range(points().map(|point| point.0));
        let y_range = self.y_range(points().map(|point| point.1));
        self.draw(|root| {
            let mut chart = self.chart(root, x_range, y_range)?;
            for (pieces, colour) in series.iter().zip(&SERIES) {
                let colour = colour.light;
                for piece in pieces {
                    let line = LineSeries::new(piece.iter().copied(), colour.stroke_width(STROKE));
                    chart.draw_series(line).map_err(text)?;
                    let dots = if piece.len() == 1 || (self.x == XAxis::Epochs && piece.len() <= MOST_DOTS) {
                        &piece[..]
                    } else {
                        &[]
                    };
                    let dots = dots.iter().map(|&point| Circle::new(point, 6, colour.filled()));
                    chart.draw_series(dots).map_err(text)?;
                }
            }
            Ok(())
        })
    }

    /// Draws the series beside each other at every epoch; as lines where there are too many epochs for bars.
    pub fn bars(&self, epochs: &[u32], series: &[Values]) -> Result<String, PlotError> {
        if epochs.len() > MOST_BARS {
            let x = || epochs.iter().map(|&epoch| f64::from(epoch));
            let lines: Vec<Pieces> = series
                .iter()
                .map(|values| vec![x().zip(values.iter().copied()).collect()])
                .collect();
            return self.lines(&lines);
        }
        let x_range = self.x_range(epochs.iter().map(|&epoch| f64::from(epoch)));
        let y_range = self.y_range(series.iter().flatten().copied());
        let width = 0.76 / series.len().max(1) as f64;
        self.draw(|root| {
            let mut chart = self.chart(root, x_range, y_range)?;
            for (index, (values, colour)) in series.iter().zip(&SERIES).enumerate() {
                let left = -0.38 + width * index as f64;
                let bars = bars(epochs, values, left, width * 0.96, |_| 0.0);
                chart
                    .draw_series(bars.map(|corners| Rectangle::new(corners, colour.light.filled())))
                    .map_err(text)?;
            }
            Ok(())
        })
    }

    /// Draws the series on top of each other at every epoch.
    pub fn stacked_bars(&self, epochs: &[u32], series: &[Values]) -> Result<String, PlotError> {
        let below = |count: usize, index: usize| -> f64 {
            let values = series[..count].iter().filter_map(|values| values.get(index));
            values.filter(|value| value.is_finite()).sum()
        };
        // Many bars have no gaps between them.
        let width = if epochs.len() > MOST_BARS { 1.0 } else { 0.7 };
        let x_range = self.x_range(epochs.iter().map(|&epoch| f64::from(epoch)));
        let y_range = self.y_range((0..epochs.len()).map(|index| below(series.len(), index)));
        self.draw(|root| {
            let mut chart = self.chart(root, x_range, y_range)?;
            for (count, (values, colour)) in series.iter().zip(&SERIES).enumerate() {
                let bars = bars(epochs, values, -width / 2.0, width, |index| below(count, index));
                chart
                    .draw_series(bars.map(|corners| Rectangle::new(corners, colour.light.filled())))
                    .map_err(text)?;
            }
            Ok(())
        })
    }

    /// The points where the axis puts them.
    fn placed(&self, pieces: &Pieces) -> Pieces {
        let XAxis::Powers(base) = self.x else {
            return pieces.clone();
        };
        let place = |piece: &Vec<(f64, f64)>| piece.iter().map(|(x, y)| (x.log(base), *y)).collect();
        pieces.iter().map(place).collect()
    }

    fn x_range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| {
            (low.min(x), high.max(x))
        });
        match (low <= high, self.x) {
            (false, _) => (0.0, 1.0),
            (true, XAxis::Epochs) => (low - 0.5, high + 0.5),
            (true, XAxis::Values) => (0.0, if high > 0.0 { high } else { 1.0 }),
            (true, XAxis::Powers(_)) => (low.floor(), high.ceil().max(low.floor() + 1.0)),
        }
    }

    fn y_range(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) = finite.fold((0.0, 0.0), |(low, high): (f64, f64), y| (low.min(y), high.max(y)));
        let room = if high > low { high + (high - low) * 0.06 } else { 1.0 };
        (low * 1.06, self.y_max.unwrap_or(room))
    }

    fn draw<F>(&self, content: F) -> Result<String, PlotError>
    where
        F: FnOnce(&DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String>,
    {
        let mut svg = String::new();
        let drawn = {
            let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            content(&root).and_then(|()| root.present().map_err(text))
        };
        drawn.map_err(|reason| PlotError {
            title: self.title.into(),
            reason,
        })?;
        Ok(inline(self.title, SIZE, &svg))
    }

    fn chart<'b, 'c>(
        &self,
        root: &'c DrawingArea<SVGBackend<'b>, Shift>,
        (x_low, x_high): (f64, f64),
        (y_low, y_high): (f64, f64),
    ) -> Result<ChartContext<'c, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>, String> {
        let mut chart = ChartBuilder::on(root)
            .margin_top(16)
            .margin_right(24)
            .x_label_area_size(108)
            .y_label_area_size(156)
            .build_cartesian_2d(x_low..x_high, y_low..y_high)
            .map_err(text)?;
        let label = FONT.into_font().color(&TEXT.light);
        let is_whole = |x: f64| (x - x.round()).abs() < 1e-6;
        let x_text = |x: &f64| match self.x {
            XAxis::Values => trimmed(*x),
            XAxis::Epochs if is_whole(*x) => format!("{x:.0}"),
            XAxis::Powers(base) if is_whole(*x) => trimmed(base.powf(x.round())),
            XAxis::Epochs | XAxis::Powers(_) => String::new(),
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID.light.stroke_width(2))
            .axis_style(AXIS.light.stroke_width(2))
            .label_style(label.clone())
            .axis_desc_style(label)
            .x_desc(self.x_label)
            .x_labels(match self.x {
                XAxis::Values => 8,
                XAxis::Epochs => ((x_high - x_low) as usize).clamp(1, 12),
                XAxis::Powers(_) => ((x_high - x_low) as usize + 1).clamp(2, 12),
            })
            .y_labels(6)
            .x_label_formatter(&x_text)
            .y_label_formatter(&|y| (self.y_text)(*y))
            .draw()
            .map_err(text)?;
        Ok(chart)
    }
}

/// Puts a drawing into a page: it takes the width that it gets, and needs no name space, whose address would be the only
/// one in a page that loads nothing.
fn inline(title: &str, (width, height): (u32, u32), svg: &str) -> String {
    let body = svg.split_once('>').map_or(svg, |(_, body)| body);
    let title = super::html::escape(title);
    format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">{body}")
}

fn text(error: impl Display) -> String {
    error.to_string()
}

/// Corners of the bars of one series; `base` is where the bar of an epoch stands. Values that are not finite have none.
fn bars<'a>(
    epochs: &'a [u32],
    values: &'a [f64],
    left: f64,
    width: f64,
    base: impl Fn(usize) -> f64 + 'a,
) -> impl Iterator<Item = [(f64, f64); 2]> + 'a {
    let finite = epochs
        .iter()
        .zip(values)
        .enumerate()
        .filter(|(_, (_, value))| value.is_finite());
    finite.map(move |(index, (&epoch, value))| {
        let (x, y) = (f64::from(epoch) + left, base(index));
        [(x, y), (x + width, y + value)]
    })
}

fn finite_pieces(pieces: &Pieces) -> Pieces {
    let is_finite = |&(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let parts = pieces
        .iter()
        .flat_map(|piece| piece.split(move |point| !is_finite(point)));
    parts.filter(|part| !part.is_empty()).map(<[_]>::to_vec).collect()
}

/// A number without zeros at its end.
pub fn trimmed(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The colour of series `index`, as a style for the key beside a plot.
pub fn swatch(index: usize) -> String {
    format!("s{}", index % MOST_SERIES)
}

/// Rules for [`swatch`], and for the colours of drawings in the dark theme.
pub fn theme_css() -> String {
    let swatches = SERIES
        .iter()
        .enumerate()
        .map(|(index, colour)| format!(".s{index}{{background:{}}}\n", hex(colour.light)));
    let dark_swatches = SERIES
        .iter()
        .enumerate()
        .map(|(index, colour)| format!(".s{index}{{background:{}}}\n", hex(colour.dark)));
    let dark = SERIES.iter().chain([&TEXT, &GRID, &AXIS]).map(|colour| {
        let (light, dark) = (hex(colour.light), hex(colour.dark));
        format!("svg [stroke=\"{light}\"]{{stroke:{dark}}}\nsvg [fill=\"{light}\"]{{fill:{dark}}}\n")
    });
    let light: String = swatches.collect();
    let dark: String = dark_swatches.chain(dark).collect();
    format!("{light}@media (prefers-color-scheme:dark){{\n{dark}}}\n")
}

/// As the SVG back end writes it.
fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Plot<'_> = Plot {
        title: "a < b",
        x_label: "epoch",
        y_text: &trimmed_value,
        y_max: None,
        x: XAxis::Epochs,
    };

    fn trimmed_value(value: f64) -> String {
        trimmed(value)
    }

    #[test]
    fn a_drawing_is_named_scales_and_loads_nothing() {
        let svg = PLAIN.lines(&[vec![vec![(0.0, 1.0), (1.0, 2.0)]]]).unwrap();
        assert!(
            svg.starts_with("<svg viewBox=\"0 0 1240 560\" role=\"img\" aria-label=\"a &lt; b\">"),
            "{svg}"
        );
        assert!(svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("http"));
        assert_eq!(svg.matches("<polyline").count(), svg.matches("points=").count());
    }

    #[test]
    fn every_point_of_a_short_line_has_a_dot_and_gaps_stay_gaps() {
        let line = vec![vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0), (3.0, 2.0)]];
        let svg = PLAIN.lines(&[line]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 3);
        let colour = format!("stroke=\"{}\"", hex(SERIES[0].light));
        let lines = svg
            .lines()
            .filter(|line| line.starts_with("<polyline") && line.contains(&colour));
        assert_eq!(lines.count(), 2, "{svg}");
    }

    #[test]
    fn bars_stand_beside_or_on_top_of_each_other() {
        let series = [vec![1.0, 2.0, f64::NAN], vec![3.0, 1.0, 1.0]];
        let filled = |svg: &str, index: usize| svg.matches(&format!("fill=\"{}\"", hex(SERIES[index].light))).count();
        for svg in [
            PLAIN.bars(&[0, 1, 2], &series).unwrap(),
            PLAIN.stacked_bars(&[0, 1, 2], &series).unwrap(),
        ] {
            assert_eq!((filled(&svg, 0), filled(&svg, 1)), (2, 3), "{svg}");
        }
    }

    #[test]
    fn many_epochs_are_lines_beside_each_other_and_bars_on_top_of_each_other() {
        let epochs: Vec<u32> = (0..=MOST_BARS as u32).collect();
        let series = [vec![1.0; epochs.len()]];
        let colour = hex(SERIES[0].light);
        let lines = PLAIN.bars(&epochs, &series).unwrap();
        assert!(
            lines
                .lines()
                .any(|line| line.starts_with("<polyline") && line.contains(&colour)),
            "{lines}"
        );
        let stacked = PLAIN.stacked_bars(&epochs, &series).unwrap();
        assert_eq!(stacked.matches(&format!("fill=\"{colour}\"")).count(), epochs.len());
    }

    #[test]
    fn nothing_to_draw_is_an_empty_drawing() {
        assert!(PLAIN.lines(&[]).unwrap().contains("</svg>"));
        assert!(PLAIN.bars(&[], &[vec![]]).unwrap().contains("</svg>"));
        assert!(PLAIN.lines(&[vec![vec![(0.0, f64::NAN)]]]).unwrap().contains("</svg>"));
    }

    #[test]
    fn every_colour_has_a_dark_one() {
        let css = theme_css();
        for colour in SERIES.iter().chain([&TEXT, &GRID, &AXIS]) {
            assert!(css.contains(&format!(
                "svg [stroke=\"{}\"]{{stroke:{}}}",
                hex(colour.light),
                hex(colour.dark)
            )));
        }
        assert_eq!(swatch(0), "s0");
    }
}
