#!/usr/bin/env bash
# Runs each benchmark of the command for a moment, over both device profiles and over shared memory, and checks that every result
# is right; then the comparison with the floor. It asserts no time. Needs `cargo build --release`.
set -euo pipefail
cd "$(dirname "$0")/.."

fulmen=${CARGO_TARGET_DIR:-target}/release/fulmen
[ -x "$fulmen" ] || {
    echo "bench-short: $fulmen is missing; run cargo build --release first" >&2
    exit 2
}

# check OP ARGS…: every line is a record of the operation, there is one at least, and none has a wrong element.
check() {
    local op=$1 out lines good
    out=$(timeout 60 "$fulmen" bench "$@" -n 2 --dtype f32 --time-budget 0.05 --json)
    lines=$(grep -c . <<<"$out") || true
    good=$(grep "\"op\": *\"$op\"" <<<"$out" | grep -cE '"wrong": *0[,}]') || true
    if [ "$lines" -eq 0 ] || [ "$good" -ne "$lines" ]; then
        echo "bench-short: fulmen bench $* gave $good right records of $lines lines:" >&2
        echo "$out" >&2
        exit 1
    fi
    echo "right: fulmen bench $* ($lines)"
}

for profile in "" infiniband thunderbolt; do
    for op in all-reduce all-gather reduce-scatter broadcast reduce gather scatter all-to-all scan latency bandwidth; do
        check "$op" --min 8 --max 32K --factor 64 ${profile:+--profile "$profile"}
    done
    check barrier ${profile:+--profile "$profile"}
done
check all-reduce --min 8 --max 32K --factor 64 --memory plain

BENCH_VERBS_COUNT=2000 ci/bench-verbs.sh 1

# As tests are built, which most of it is by then: to optimize it once more, with what tests need, would take a minute.
cargo bench -q --profile dev --bench compare --no-run
timeout 400 cargo bench -q --profile dev --bench compare -- --quick --skip peers
echo "bench-short: every result was right"
