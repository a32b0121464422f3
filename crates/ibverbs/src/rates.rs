//! Rates of links, as the specification encodes them.

use std::ffi::c_int;

use crate::export::export;
use crate::ffi::*;

/// Each rate, with its Mbit/s.
const RATES: [(ibv_rate, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 2500),
    (IBV_RATE_5_GBPS, 5000),
    (IBV_RATE_10_GBPS, 10_000),
    (IBV_RATE_20_GBPS, 20_000),
    (IBV_RATE_30_GBPS, 30_000),
    (IBV_RATE_40_GBPS, 40_000),
    (IBV_RATE_60_GBPS, 60_000),
    (IBV_RATE_80_GBPS, 80_000),
    (IBV_RATE_120_GBPS, 120_000),
    (IBV_RATE_14_GBPS, 14_062),
    (IBV_RATE_56_GBPS, 56_250),
    (IBV_RATE_112_GBPS, 112_500),
    (IBV_RATE_168_GBPS, 168_750),
    (IBV_RATE_25_GBPS, 25_781),
    (IBV_RATE_100_GBPS, 103_125),
    (IBV_RATE_200_GBPS, 206_250),
    (IBV_RATE_300_GBPS, 309_375),
    (IBV_RATE_28_GBPS, 28_125),
    (IBV_RATE_50_GBPS, 53_125),
    (IBV_RATE_400_GBPS, 425_000),
    (IBV_RATE_600_GBPS, 637_500),
    (IBV_RATE_800_GBPS, 850_000),
    (IBV_RATE_1200_GBPS, 1_275_000),
];

/// Each rate that is called a multiple of 2.5 Gbit/s, with that multiple.
const MULTIPLES: [(ibv_rate, c_int); 15] = [
    (IBV_RATE_2_5_GBPS, 1),
    (IBV_RATE_5_GBPS, 2),
    (IBV_RATE_10_GBPS, 4),
    (IBV_RATE_20_GBPS, 8),
    (IBV_RATE_30_GBPS, 12),
    (IBV_RATE_40_GBPS, 16),
    (IBV_RATE_60_GBPS, 24),
    (IBV_RATE_80_GBPS, 32),
    (IBV_RATE_120_GBPS, 48),
    (IBV_RATE_28_GBPS, 11),
    (IBV_RATE_50_GBPS, 20),
    (IBV_RATE_400_GBPS, 160),
    (IBV_RATE_600_GBPS, 240),
    (IBV_RATE_800_GBPS, 320),
    (IBV_RATE_1200_GBPS, 480),
];

fn number_of(table: &[(ibv_rate, c_int)], rate: ibv_rate) -> c_int {
    table.iter().find(|(known, _)| *known == rate).map_or(-1, |(_, number)| *number)
}

fn rate_of(table: &[(ibv_rate, c_int)], number: c_int) -> ibv_rate {
    table.iter().find(|(_, known)| *known == number).map_or(IBV_RATE_MAX, |(rate, _)| *rate)
}

export! {
    /// A rate as a multiple of 2.5 Gbit/s; -1 if it is called none.
    "IBVERBS_1.0" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
        number_of(&MULTIPLES, rate)
    }

    /// A multiple of 2.5 Gbit/s as a rate; the maximum if there is no such rate.
    "IBVERBS_1.0" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
        rate_of(&MULTIPLES, mult)
    }

    /// A rate in Mbit/s; -1 if it is unknown.
    "IBVERBS_1.1" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
        number_of(&RATES, rate)
    }

    /// Mbit/s as a rate; the maximum if there is no such rate.
    "IBVERBS_1.1" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
        rate_of(&RATES, mbps)
    }
}
