#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS (60) from its corpus, two at a time. A crash ends it with the input that did it. What is
# found on the way stays under target/, and the corpus as it is. Needs a nightly compiler and cargo-fuzz, or says loudly that
# it skips.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

seconds=${FUZZ_SECONDS:-60}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$(realpath ../target)}/fuzz
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo "SKIPPED: no nightly compiler for fuzzing (rustup toolchain install nightly)" >&2
    exit 0
fi
if ! command -v cargo-fuzz >/dev/null && ! CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug cargo-fuzz; then
    echo "SKIPPED: no cargo-fuzz, and none can be had here (cargo install --locked cargo-fuzz)" >&2
    exit 0
fi

# For a few seconds what is fuzzed is optimized alone (Cargo.toml); to optimize all takes longer than they last.
[ "$seconds" -lt 20 ] && profile=dev || profile=release
cargo +nightly fuzz build "--$profile" --fuzz-dir . >/dev/null
programs=$CARGO_TARGET_DIR/$(rustc +nightly -vV | sed -n 's/^host: //p')/${profile/dev/debug}
work=$CARGO_TARGET_DIR/work
mkdir -p "$work"

# run TARGET
run() {
    local target=$1 found=$work/$1 log=$work/$1.log
    mkdir -p "$found" "corpus/$target"
    if "$programs/$target" -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=1024 -timeout=20 -print_final_stats=1 \
        -artifact_prefix="$work/crash-$target-" "$found" "corpus/$target" >"$log" 2>&1; then
        echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs, no crash"
    else
        echo "$target CRASHED; its input is below $work, and this is what it said:" >&2
        tail -n 60 "$log" >&2
        return 1
    fi
}
export -f run
export programs work seconds

sed -n 's/^name = "\(.*\)"$/\1/p' Cargo.toml | grep -v '^fulmen-fuzz$' |
    xargs -P "${FUZZ_JOBS:-2}" -I{} bash -euo pipefail -c 'run {}'
echo "fuzz: no crash"
