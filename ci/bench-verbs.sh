#!/usr/bin/env bash
# Measures perftest, unmodified, over the software device, between two processes with plain memory; beside it what a bare
# process_vm_writev gives. Prints rows for docs/benchmarks.md. Needs `cargo build --release -p fulmen-cli`, perftest and cc.
#
#   ci/bench-verbs.sh [ROUNDS]     9 rounds; in each, everything once, in turns that begin with another one each time
#
# It asserts no time; a program that fails ends it.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=${1:-9}
fulmen=${CARGO_TARGET_DIR:-target}/release/fulmen
[ -x "$fulmen" ] || {
    echo "bench-verbs: $fulmen is missing; run cargo build --release first" >&2
    exit 2
}
for need in ib_send_lat cc taskset; do
    command -v "$need" >/dev/null || {
        echo "SKIPPED: perftest over the software device: no $need (apt-get install perftest gcc util-linux)"
        exit 0
    }
done

work=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
cc -O2 -o "$work/roof" ci/verbs/roof.c
processors=$(getconf _NPROCESSORS_ONLN)
# Two processors, where there are two.
far=$((processors > 1 ? 1 : 0))

listens() {
    awk -v end="$(printf ':%04X' "$1")" 'FNR > 1 && $4 == "0A" && substr($2, length($2) - 4) == end { found = 1 } END { exit !found }' \
        /proc/net/tcp /proc/net/tcp6 2>/dev/null
}

# pair FIELD SERVER_CPU CLIENT_CPU PROGRAM ARGS…: a field of the client's result.
pair() {
    local field=$1 ours=$2 theirs=$3 port=$((20000 + RANDOM % 10000)) run=("$fulmen" run --verbs --no-labels --timeout 120 --)
    shift 3
    while listens "$port"; do port=$((port + 1)); done
    "${run[@]}" taskset -c "$ours" "$@" -F -p "$port" >"$work/server" 2>&1 &
    server=$!
    until listens "$port"; do
        kill -0 "$server" 2>/dev/null || { cat "$work/server" >&2; exit 1; }
        sleep 0.02
    done
    "${run[@]}" taskset -c "$theirs" "$@" -F -p "$port" 127.0.0.1 >"$work/client" 2>&1 || { cat "$work/server" "$work/client" >&2; exit 1; }
    wait "$server" || { cat "$work/server" >&2; exit 1; }
    server=
    # The row of numbers.
    awk -v field="$field" '/^ *[0-9]+ +[0-9]+ +[0-9.]/ { value = $field } END { if (value == "") exit 1; print value }' "$work/client" || {
        cat "$work/client" >&2
        exit 1
    }
}

# A result's fields: bytes, rounds, then least, most and typical time, or the best and the mean MiB/s.
case_latency() { echo "latency $(pair 5 0 "$far" ib_send_lat -s 64 -n "$1")"; }
case_latency_old() { echo "latency-old $(pair 5 0 "$far" ib_send_lat -s 64 -n "$1" --use_old_post_send)"; }
case_write() { echo "write $(pair 4 0 "$far" ib_write_bw -s 65536 -n "$1" | awk '{ print $1 * 1.048576e-3 }')"; }
case_roof() { echo "roof $("$work/roof" 65536 0.3 "$far" 0 || echo -)"; }
case_latency_one() { echo "latency-one $(pair 5 0 0 ib_send_lat -s 64 -n "$(($1 / 4))")"; }
case_write_one() { echo "write-one $(pair 4 0 0 ib_write_bw -s 65536 -n "$1" | awk '{ print $1 * 1.048576e-3 }')"; }
case_roof_one() { echo "roof-one $("$work/roof" 65536 0.3 0 0 || echo -)"; }

cases=(latency latency_old write roof latency_one write_one roof_one)
for ((round = 0; round < rounds; round++)); do
    for ((turn = 0; turn < ${#cases[@]}; turn++)); do
        line=$("case_${cases[(round + turn) % ${#cases[@]}]}" "${BENCH_VERBS_COUNT:-20000}")
        echo "figure $round $line"
    done
done | tee "$work/figures" >&2

printf '| perftest 4.5 over the software device, plain memory | two processors | one processor | rounds |\n|---|--:|--:|--:|\n'
awk -f ci/verbs/table.awk "$work/figures"
