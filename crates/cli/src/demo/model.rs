//! The demo's classifier: one hidden layer, trained by gradient descent with momentum, the same bits everywhere.
//!
//! Every sum runs in a fixed order and every function consists of operations that IEEE 754 defines to the last bit, so that a
//! gradient depends on the weights and the rows alone: not on the machine's mathematical library, nor on who computes it.
//! Data-parallel training gives the weights of [`train_alone`] bit for bit if the shards' gradients are summed in rank order.

use std::ops::Range;

use fulmen::parts::kernels::{ReduceError, ReduceOp, reduce_into};

use super::data::{CLASSES, Dataset, FEATURES, Rows};

/// Units of the hidden layer.
const HIDDEN: usize = 32;
/// A weight for each pair of units in neighbouring layers, and a bias for each unit; in this order in all vectors.
const HIDDEN_WEIGHTS: usize = HIDDEN * FEATURES;
const HIDDEN_BIASES: usize = HIDDEN;
const OUTPUT_WEIGHTS: usize = CLASSES * HIDDEN;
/// Elements of a gradient, and of the weights.
pub const PARAMETERS: usize = HIDDEN_WEIGHTS + HIDDEN_BIASES + OUTPUT_WEIGHTS + CLASSES;

/// How much of the last step goes into the next.
const MOMENTUM: f32 = 0.9;

/// How to train.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Passes over the training rows.
    pub epochs: usize,
    /// Rows of a step, over all ranks; the last step of an epoch takes what is left.
    pub batch: usize,
    /// Of the mean gradient.
    pub learning_rate: f32,
    /// For the first weights.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan { epochs: 40, batch: 96, learning_rate: 0.1, seed: 1 }
    }
}

impl Plan {
    /// The batches of one epoch over `rows` rows, in order.
    pub fn batches(&self, rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let batch = self.batch.max(1);
        (0..rows).step_by(batch).map(move |start| start..rows.min(start + batch))
    }

    /// Steps of the whole training over `rows` rows.
    pub fn steps(&self, rows: usize) -> usize {
        self.epochs * rows.div_ceil(self.batch.max(1))
    }
}

/// The rows of a batch that rank `rank` of `size` works on: neighbouring, almost equally many, possibly none.
pub fn shard(batch: Range<usize>, rank: usize, size: usize) -> Range<usize> {
    let cut = |rank: usize| batch.start + batch.len() * rank / size;
    cut(rank)..cut(rank + 1)
}

/// The classifier's weights and the state of its descent.
#[derive(Clone, Debug)]
pub struct Model {
    weights: Vec<f32>,
    velocity: Vec<f32>,
}

/// What the layers give for one row.
struct Activations {
    hidden: [f32; HIDDEN],
    probabilities: [f32; CLASSES],
}

impl Model {
    /// Weights that depend on `seed` alone.
    pub fn new(seed: u64) -> Model {
        let mut state = seed;
        let mut uniform = |inputs: usize| {
            // From -1 to 1 in steps of 2^-23, scaled to keep the spread of a layer's outputs near that of its inputs.
            let unit = (split_mix(&mut state) >> 40) as f32 / (1 << 23) as f32 - 1.0;
            unit * (3.0 / inputs as f32).sqrt()
        };
        let mut weights = vec![0.0; PARAMETERS];
        let (hidden, output) = weights.split_at_mut(HIDDEN_WEIGHTS + HIDDEN_BIASES);
        hidden[..HIDDEN_WEIGHTS].fill_with(|| uniform(FEATURES));
        output[..OUTPUT_WEIGHTS].fill_with(|| uniform(HIDDEN));
        Model { weights, velocity: vec![0.0; PARAMETERS] }
    }

    /// The weights, to be compared bit by bit.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// The gradient of the loss (cross entropy) over a range of rows: their sum, in order, from zero.
    ///
    /// # Panics
    /// If `out` has not [`PARAMETERS`] elements or the range does not lie inside.
    pub fn gradient(&self, rows: &Rows, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(out.len(), PARAMETERS, "a gradient has as many elements as there are weights");
        out.fill(0.0);
        let (hidden_out, output_out) = out.split_at_mut(HIDDEN_WEIGHTS + HIDDEN_BIASES);
        let (hidden_weights_out, hidden_biases_out) = hidden_out.split_at_mut(HIDDEN_WEIGHTS);
        let (output_weights_out, output_biases_out) = output_out.split_at_mut(OUTPUT_WEIGHTS);
        let output_weights = &self.weights[HIDDEN_WEIGHTS + HIDDEN_BIASES..][..OUTPUT_WEIGHTS];
        for (features, label) in rows.range(range) {
            let Activations { hidden, probabilities } = self.activations(features);
            let mut hidden_error = [0.0; HIDDEN];
            for class in 0..CLASSES {
                let error = probabilities[class] - if class == label { 1.0 } else { 0.0 };
                add_scaled(&mut output_weights_out[class * HIDDEN..][..HIDDEN], error, &hidden);
                add_scaled(&mut hidden_error, error, &output_weights[class * HIDDEN..][..HIDDEN]);
                output_biases_out[class] += error;
            }
            for unit in (0..HIDDEN).filter(|&unit| hidden[unit] > 0.0) {
                add_scaled(&mut hidden_weights_out[unit * FEATURES..][..FEATURES], hidden_error[unit], features);
                hidden_biases_out[unit] += hidden_error[unit];
            }
        }
    }

    /// Goes one step down the mean of a gradient that was summed over `rows` rows.
    ///
    /// # Panics
    /// If the gradient has not [`PARAMETERS`] elements.
    pub fn step(&mut self, summed: &[f32], rows: usize, learning_rate: f32) {
        assert_eq!(summed.len(), PARAMETERS, "a gradient has as many elements as there are weights");
        let scale = learning_rate / rows.max(1) as f32;
        for ((weight, velocity), slope) in self.weights.iter_mut().zip(&mut self.velocity).zip(summed) {
            *velocity = MOMENTUM * *velocity - scale * slope;
            *weight += *velocity;
        }
    }

    /// The share of rows whose most probable class is their own, from 0 to 1.
    pub fn accuracy(&self, rows: &Rows) -> f64 {
        let right = rows.range(0..rows.len()).filter(|(features, label)| {
            let probabilities = self.activations(features).probabilities;
            let own = probabilities[*label];
            probabilities.iter().enumerate().all(|(class, &other)| class == *label || other < own)
        });
        right.count() as f64 / rows.len().max(1) as f64
    }

    fn activations(&self, features: &[f32]) -> Activations {
        let (hidden_layer, output_layer) = self.weights.split_at(HIDDEN_WEIGHTS + HIDDEN_BIASES);
        let (weights, biases) = hidden_layer.split_at(HIDDEN_WEIGHTS);
        let mut hidden = [0.0f32; HIDDEN];
        for ((unit, weights), bias) in hidden.iter_mut().zip(weights.chunks_exact(FEATURES)).zip(biases) {
            *unit = (dot(weights, features) + bias).max(0.0);
        }
        let (weights, biases) = output_layer.split_at(OUTPUT_WEIGHTS);
        let mut probabilities = [0.0f32; CLASSES];
        for ((class, weights), bias) in probabilities.iter_mut().zip(weights.chunks_exact(HIDDEN)).zip(biases) {
            *class = dot(weights, &hidden) + bias;
        }
        softmax(&mut probabilities);
        Activations { hidden, probabilities }
    }
}

/// Trains as `size` ranks together would, in one process: each shard's gradient, then their sum in rank order.
///
/// # Errors
/// If `size` is 0.
pub fn train_alone(data: &Dataset, plan: &Plan, size: usize) -> Result<Model, ReduceError> {
    let mut model = Model::new(plan.seed);
    let mut shards = vec![vec![0.0; PARAMETERS]; size];
    let mut sum = vec![0.0; PARAMETERS];
    for _ in 0..plan.epochs {
        for batch in plan.batches(data.train.len()) {
            for (rank, gradient) in shards.iter_mut().enumerate() {
                model.gradient(&data.train, shard(batch.clone(), rank, size), gradient);
            }
            let shards: Vec<&[f32]> = shards.iter().map(Vec::as_slice).collect();
            reduce_into(ReduceOp::Sum, &mut sum, &shards)?;
            model.step(&sum, batch.len(), plan.learning_rate);
        }
    }
    Ok(model)
}

/// Eight partial sums, so that compilers may use vectors; their order is fixed all the same.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    for (a, b) in a.chunks_exact(8).zip(b.chunks_exact(8)) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum()
}

fn add_scaled(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn softmax(values: &mut [f32; CLASSES]) {
    let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for value in values.iter_mut() {
        *value = exp(*value - largest);
        sum += *value;
    }
    for value in values {
        *value /= sum;
    }
}

/// e to the power of `x` for `x <= 0`, to a few units in the last place, by operations that are the same everywhere:
/// mathematical libraries differ in their last bits.
fn exp(x: f32) -> f32 {
    // Below, the result is no longer a normal number.
    if x < -87.0 {
        return 0.0;
    }
    // x = whole · ln 2 + rest with |rest| <= ln 2 / 2; ln 2 in two parts, the first with few bits, so the product is exact.
    let whole = (x * std::f32::consts::LOG2_E).round();
    let rest = (x - whole * 0.693_359_4) + whole * 2.121_944_4e-4;
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = series.into_iter().fold(0.0, |sum, term: f32| sum * rest + term);
    power * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn the_exponential_is_close_to_the_library_s() {
        for step in 0..=8700 {
            let x = step as f32 * -0.01;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= exact * 4e-7, "exp({x}) = {} instead of {exact}", exp(x));
        }
        assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn shards_cover_a_batch_once() {
        for (batch, size) in [(0..96, 4), (96..97, 4), (1440..1437 + 40, 8), (5..5, 3), (3..10, 1)] {
            let mut next = batch.start;
            for rank in 0..size {
                let shard = shard(batch.clone(), rank, size);
                assert_eq!(shard.start, next);
                next = shard.end;
            }
            assert_eq!(next, batch.end);
        }
    }

    #[test]
    fn batches_cover_the_rows_of_every_epoch() {
        for (rows, batch) in [(0, 96), (1437, 96), (96, 96), (97, 96), (5, 0)] {
            let plan = Plan { epochs: 3, batch, ..Plan::default() };
            assert_eq!(plan.batches(rows).flatten().collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
            assert_eq!(plan.steps(rows), 3 * plan.batches(rows).count());
        }
    }

    /// The loss falls by the gradient's length squared for a small step against it.
    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let data = Dataset::load().unwrap();
        let rows = 0..40;
        let loss = |model: &Model| -> f64 {
            let losses = data.train.range(rows.clone());
            losses.map(|(features, label)| -f64::from(model.activations(features).probabilities[label]).ln()).sum()
        };
        let model = Model::new(7);
        let mut gradient = vec![0.0; PARAMETERS];
        model.gradient(&data.train, rows.clone(), &mut gradient);
        let length: f64 = gradient.iter().map(|&slope| f64::from(slope).powi(2)).sum();
        let small = (0.01 / length) as f32;
        let (mut forth, mut back) = (model.clone(), model.clone());
        forth.step(&gradient, 1, small);
        back.step(&gradient, 1, -small);
        let slope = (loss(&back) - loss(&forth)) / (2.0 * f64::from(small));
        assert!((slope / length - 1.0).abs() < 0.02, "slope {slope}, gradient squared {length}");
    }

    #[test]
    fn shards_by_threads_give_the_weights_of_one_process() {
        let data = Dataset::load().unwrap();
        let plan = Plan { epochs: 1, ..Plan::default() };
        let alone = train_alone(&data, &plan, 3).unwrap();
        let mut model = Model::new(plan.seed);
        for batch in plan.batches(data.train.len()) {
            let shards: Vec<Vec<f32>> = std::thread::scope(|scope| {
                let (model, data) = (&model, &data);
                let start = |rank| {
                    let batch = batch.clone();
                    scope.spawn(move || {
                        let mut gradient = vec![f32::NAN; PARAMETERS];
                        model.gradient(&data.train, shard(batch, rank, 3), &mut gradient);
                        gradient
                    })
                };
                let threads: Vec<_> = (0..3).map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let sum: Vec<f32> = (0..PARAMETERS).map(|at| shards[0][at] + shards[1][at] + shards[2][at]).collect();
            model.step(&sum, batch.len(), plan.learning_rate);
        }
        assert_eq!(bits(model.weights()), bits(alone.weights()));
        // Another order of sums shows: the equality above is no matter of course.
        assert_ne!(bits(train_alone(&data, &plan, 4).unwrap().weights()), bits(alone.weights()));
    }

    #[test]
    fn a_few_passes_recognise_most_digits() {
        let data = Dataset::load().unwrap();
        let plan = Plan { epochs: 5, ..Plan::default() };
        let accuracy = train_alone(&data, &plan, 2).unwrap().accuracy(&data.held_out);
        assert!(accuracy > 0.85, "{accuracy} on rows that were held out");
        assert!(Model::new(plan.seed).accuracy(&data.held_out) < 0.4);
    }
}
