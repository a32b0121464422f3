//! The demo's data: 1,797 handwritten digits of 8 × 8 pixels.
//!
//! They come from "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine Learning Repository,
//! CC BY 4.0), as the `smartcore` crate carries them: nothing is downloaded.

use std::ops::Range;

use smartcore::dataset::digits;

/// Pixels of an image, row by row.
pub const FEATURES: usize = 64;
/// The digits 0 to 9.
pub const CLASSES: usize = 10;

/// Every `HELD_OUT`th row is kept out of training.
const HELD_OUT: usize = 5;

/// Rows of features with their classes.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// [`FEATURES`] values from 0 (white) to 1 (black) for each row.
    features: Vec<f32>,
    /// The class of each row, below [`CLASSES`].
    labels: Vec<u8>,
}

impl Rows {
    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The rows of a range, as features and class.
    ///
    /// # Panics
    /// If the range does not lie inside.
    pub fn range(&self, rows: Range<usize>) -> impl Iterator<Item = (&[f32], usize)> {
        let features = self.features[rows.start * FEATURES..rows.end * FEATURES].chunks_exact(FEATURES);
        features.zip(self.labels[rows].iter().map(|&label| usize::from(label)))
    }

    /// The share of the most frequent class: what guessing it always would get right.
    pub fn majority(&self) -> f64 {
        let mut counts = [0usize; CLASSES];
        for &label in &self.labels {
            counts[usize::from(label)] += 1;
        }
        counts.into_iter().max().unwrap_or(0) as f64 / self.len().max(1) as f64
    }

    fn push(&mut self, features: &[f32], label: u8) {
        self.features.extend(features.iter().map(|pixel| pixel / 16.0));
        self.labels.push(label);
    }
}

/// The digits, split once and for all.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Rows to learn from.
    pub train: Rows,
    /// Rows to judge by: every fifth of the set.
    pub held_out: Rows,
}

impl Dataset {
    /// The same rows in the same order on each call and every machine.
    ///
    /// # Errors
    /// If the crate that carries the digits has other data than this code was written for.
    pub fn load() -> Result<Dataset, DataError> {
        let digits = digits::load_dataset();
        let shape = (digits.num_samples, digits.num_features);
        let whole = digits.data.len() == shape.0 * shape.1 && digits.target.len() == shape.0;
        if shape.0 == 0 || shape.1 != FEATURES || !whole {
            return Err(DataError::Shape { rows: shape.0, features: shape.1 });
        }
        let mut dataset = Dataset { train: Rows::default(), held_out: Rows::default() };
        for (row, (features, &label)) in digits.data.chunks_exact(FEATURES).zip(&digits.target).enumerate() {
            if !(0.0..CLASSES as f32).contains(&label) || !features.iter().all(|pixel| (0.0..=16.0).contains(pixel)) {
                return Err(DataError::Value { row });
            }
            let part = if row % HELD_OUT == 0 { &mut dataset.held_out } else { &mut dataset.train };
            part.push(features, label as u8);
        }
        Ok(dataset)
    }
}

/// The data set is not the one that the demo knows; the build mixes versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Another number of rows or of features.
    #[error(
        "the digits have {rows} rows of {features} features instead of {FEATURES}; build with the committed Cargo.lock"
    )]
    Shape {
        /// Rows found.
        rows: usize,
        /// Features of each.
        features: usize,
    },
    /// A pixel or a class out of range.
    #[error("row {row} of the digits has a pixel or a class out of range; build with the committed Cargo.lock")]
    Value {
        /// The row, from 0.
        row: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_all_there() {
        let data = Dataset::load().unwrap();
        assert_eq!((data.train.len(), data.held_out.len()), (1437, 360));
        for rows in [&data.train, &data.held_out] {
            let mut seen = [false; CLASSES];
            for (features, label) in rows.range(0..rows.len()) {
                assert_eq!(features.len(), FEATURES);
                assert!(features.iter().all(|pixel| (0.0..=1.0).contains(pixel)));
                seen[label] = true;
            }
            assert_eq!(seen, [true; CLASSES]);
            assert!((0.1..0.15).contains(&rows.majority()), "{}", rows.majority());
        }
    }
}
