//! Charts as SVG: small multiples on one page, in plain text, without a library.

use std::fmt::Write;

/// Charts side by side.
const COLUMNS: usize = 3;
/// Of one chart with its title and labels, in pixels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 326.0;
/// Around the area that is drawn in: left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (52.0, 34.0, 16.0, 92.0);
/// Lines of a grid, each way.
const TICKS: u32 = 5;
/// Told apart by people who see colours differently, too.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#999999", "#000000"];
/// Characters of a legend's entry beside its name, and pixels of a character.
const ENTRY_CHARS: usize = 4;
const CHAR_WIDTH: f64 = 6.0;

/// Points of one name, joined by a line where there are several.
#[derive(Debug, Clone)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// Finite numbers of 0 and more.
    pub points: Vec<(f64, f64)>,
}

/// One chart. Both axes begin at 0.
#[derive(Debug, Clone)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// What goes right.
    pub x: String,
    /// What goes up.
    pub y: String,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// All charts on one page.
pub fn page(charts: &[Chart]) -> String {
    let columns = charts.len().clamp(1, COLUMNS);
    let rows = charts.len().div_ceil(columns);
    let (width, height) = (columns as f64 * WIDTH, rows as f64 * HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (number, chart) in charts.iter().enumerate() {
        let (x, y) = ((number % columns) as f64 * WIDTH, (number / columns) as f64 * HEIGHT);
        let _ = writeln!(svg, "<g transform=\"translate({x} {y})\">{}</g>", chart.body());
    }
    svg + "</svg>\n"
}

impl Chart {
    fn body(&self) -> String {
        let (left, top, right, bottom) = MARGINS;
        let (wide, high) = (WIDTH - left - right, HEIGHT - top - bottom);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let most_x = rounded_up(points().map(|point| point.0).fold(0.0, f64::max));
        let most_y = rounded_up(points().map(|point| point.1).fold(0.0, f64::max));
        let at = |(x, y): (f64, f64)| (left + x / most_x * wide, top + high - y / most_y * high);
        let middle = left + wide / 2.0;
        let mut body = format!(
            "<text x=\"{middle}\" y=\"20\" text-anchor=\"middle\" font-size=\"13\">{}</text>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escaped(&self.title),
            top + high + 32.0,
            escaped(&self.x),
            top + high / 2.0,
            escaped(&self.y),
        );
        for tick in 0..=TICKS {
            let share = f64::from(tick) / f64::from(TICKS);
            let (x, y) = at((share * most_x, share * most_y));
            let _ = write!(
                body,
                "<path d=\"M{x:.1} {top}V{:.1}M{left} {y:.1}H{:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                top + high,
                left + wide,
                top + high + 15.0,
                figure(share * most_x),
                left - 5.0,
                y + 4.0,
                figure(share * most_y),
            );
        }
        let mut legend = (left, top + high + 52.0);
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            body.push_str(&series.body(colour, at));
            let entry_width = (series.name.chars().count() + ENTRY_CHARS) as f64 * CHAR_WIDTH;
            if legend.0 > left && legend.0 + entry_width > WIDTH {
                legend = (left, legend.1 + 15.0);
            }
            let (x, y) = legend;
            let _ = write!(
                body,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                x + 4.0,
                y - 4.0,
                x + 12.0,
                escaped(&series.name),
            );
            legend.0 += entry_width;
        }
        body
    }
}

impl Series {
    fn body(&self, colour: &str, at: impl Fn((f64, f64)) -> (f64, f64)) -> String {
        let mut body = String::new();
        let mut line = String::new();
        for point in &self.points {
            let (x, y) = at(*point);
            let _ = write!(line, "{x:.1},{y:.1} ");
            let _ = write!(body, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
        }
        let _ = write!(body, "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\"/>", line.trim_end());
        body
    }
}

/// The next number that divides well: 1, 2 or 5 times a power of ten, in fifths.
fn rounded_up(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10.0_f64.powf(most.log10().floor());
    let steps = [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5, 10.0];
    let fits = |step: &&f64| **step * power >= most * (1.0 - 1e-9);
    steps.iter().find(fits).map_or(most, |step| step * power)
}

fn figure(value: f64) -> String {
    if value == value.round() { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let series = vec![Series { name: "a < b & c".into(), points }];
        Chart { title: "t".into(), x: "x".into(), y: "y".into(), series }
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (most, expected) in
            [(0.0, 1.0), (0.7, 0.75), (1.0, 1.0), (99.0, 100.0), (100.0, 100.0), (2_331.0, 2_500.0)]
        {
            assert!((rounded_up(most) - expected).abs() < 1e-9, "{most}: {}", rounded_up(most));
        }
    }

    #[test]
    fn points_lie_where_their_numbers_say() {
        let svg = page(&[chart(vec![(0.0, 0.0), (10.0, 100.0)])]);
        let (left, top, right, bottom) = MARGINS;
        for (x, y) in [(left, HEIGHT - bottom), (WIDTH - right, top)] {
            assert!(svg.contains(&format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\"")), "{svg}");
        }
        assert!(svg.contains("a &lt; b &amp; c") && !svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn charts_stand_side_by_side_then_below() {
        let svg = page(&vec![chart(Vec::new()); COLUMNS + 1]);
        assert!(svg.contains(&format!("translate({WIDTH} 0)")), "{svg}");
        assert!(svg.contains(&format!("translate(0 {HEIGHT})")), "{svg}");
        assert_eq!(svg.matches("<g ").count(), COLUMNS + 1);
    }
}
