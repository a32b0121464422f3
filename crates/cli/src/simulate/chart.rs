//! Charts of lines over two logarithmic axes, as SVG.

use std::fmt::Write as _;

pub struct Chart {
    pub title: String,
    pub lines: Vec<Line>,
}

pub struct Line {
    pub name: String,
    pub dashed: bool,
    /// Both numbers above 0.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Room around the lines: left, right, top, bottom.
const AROUND: [f64; 4] = [80.0, 180.0, 40.0, 40.0];
/// Told apart by people who see no red or green, too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// One chart below the other.
pub fn svg(charts: &[Chart]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (number, chart) in charts.iter().enumerate() {
        chart.draw(number as f64 * HEIGHT, &mut text);
    }
    text + "</svg>\n"
}

impl Chart {
    fn draw(&self, top: f64, text: &mut String) {
        let all = || self.lines.iter().flat_map(|line| &line.points);
        let span = |of: fn(&(f64, f64)) -> f64| {
            let values = all().map(of).map(f64::log2);
            let (least, most) =
                values.fold((f64::MAX, f64::MIN), |(least, most), value| (least.min(value), most.max(value)));
            (least.floor(), most.ceil().max(least.floor() + 1.0))
        };
        let ((x_least, x_most), (y_least, y_most)) = (span(|point| point.0), span(|point| point.1));
        let [left, right, above, below] = AROUND;
        let x = |value: f64| left + (value - x_least) / (x_most - x_least) * (WIDTH - left - right);
        let y = |value: f64| top + HEIGHT - below - (value - y_least) / (y_most - y_least) * (HEIGHT - above - below);
        let _ = writeln!(
            text,
            "<text x=\"{left}\" y=\"{}\" font-size=\"14\">{}</text>",
            top + above - 15.0,
            escaped(&self.title)
        );
        for tick in x_least as i64..=x_most as i64 {
            let at = x(tick as f64);
            let _ = writeln!(
                text,
                "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" \
                 text-anchor=\"middle\">{}</text>",
                y(y_least),
                y(y_most),
                y(y_least) + 18.0,
                2f64.powi(tick as i32)
            );
        }
        // A line for each doubling would be too many.
        let step = (((y_most - y_least) / 8.0).ceil() as usize).max(1);
        for tick in (y_least as i64..=y_most as i64).step_by(step) {
            let at = y(tick as f64);
            let _ = writeln!(
                text,
                "<line x1=\"{:.1}\" y1=\"{at:.1}\" x2=\"{:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                 text-anchor=\"end\">{}</text>",
                x(x_least),
                x(x_most),
                left - 8.0,
                at + 4.0,
                2f64.powi(tick as i32)
            );
        }
        let mut names: Vec<&str> = Vec::new();
        for line in &self.lines {
            let known = names.iter().position(|name| *name == line.name);
            let number = known.unwrap_or(names.len());
            let colour = COLOURS[number % COLOURS.len()];
            if known.is_none() {
                names.push(&line.name);
                let at = top + above + 20.0 * number as f64;
                let _ = writeln!(
                    text,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" \
                     y=\"{:.1}\">{}</text>",
                    WIDTH - right + 12.0,
                    at - 10.0,
                    WIDTH - right + 30.0,
                    at,
                    escaped(&line.name)
                );
            }
            let points: Vec<String> =
                line.points.iter().map(|point| format!("{:.1},{:.1}", x(point.0.log2()), y(point.1.log2()))).collect();
            let dashes = if line.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
            let _ = writeln!(
                text,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dashes} points=\"{}\"/>",
                points.join(" ")
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lie_inside_and_names_cannot_break_out() {
        let line = |dashed| Line { name: "a<b".into(), dashed, points: vec![(2.0, 3.0), (1024.0, 1e6)] };
        let text = svg(&[Chart { title: "x & y".into(), lines: vec![line(false), line(true)] }]);
        assert!(text.contains("a&lt;b") && text.contains("x &amp; y") && !text.contains("a<b"));
        assert_eq!((text.matches("polyline").count(), text.matches("stroke-dasharray").count()), (2, 1));
        for points in text.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap()) {
            for pair in points.split(' ') {
                let (x, y) = pair.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!((0.0..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{pair}");
            }
        }
    }
}
