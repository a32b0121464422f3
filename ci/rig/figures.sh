#!/bin/sh
# Runs in the guest: perftest and `fulmen probe link` over rxe0 in turn, and who begins changes from round to round. A line for
# each value: "figure ROUND WHAT WHO VALUE". Then all-reduce of four ranks.
rounds=$(cat rounds)
failed=0

# perf COMMAND…: both ends of it, the output of the one that measures.
perf() {
    "$@" >/tmp/server 2>&1 </dev/null &
    server=$!
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        # 18515, as the kernel writes it.
        grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break
        sleep 0.2
    done
    timeout 60 "$@" 127.0.0.1 2>&1 </dev/null
    kill "$server" 2>/dev/null
    wait "$server" 2>/dev/null
}

# The line of this many bytes, and of it one column.
column() {
    awk -v bytes="$1" -v column="$2" '$1 == bytes { print $column }'
}

perftest() {
    for bytes in 8 64 4096; do
        echo "figure $1 latency-$bytes perftest $(perf ib_send_lat -d rxe0 -x 1 -F -s $bytes -n 1000 | column $bytes 5)"
    done
    # In bytes a second.
    echo "figure $1 write-65536 perftest $(perf ib_write_bw -d rxe0 -x 1 -F -s 65536 -n 1000 --report_gbits | column 65536 4 | awk '{ printf "%.0f", $1 * 1e9 / 8 }')"
}

fulmen() {
    timeout 120 ./fulmen probe link --device rxe0 --json >/tmp/link.json 2>/tmp/link.error </dev/null || {
        failed=1
        cat /tmp/link.error
    }
    tr -d ' \n' </tmp/link.json >/tmp/link
    for bytes in 8 64 4096; do
        echo "figure $1 latency-$bytes fulmen $(grep -o "\"bytes\":$bytes,\"median_us\":[0-9.e-]*" /tmp/link | head -n 1 | sed 's/.*://')"
    done
    echo "figure $1 write-65536 fulmen $(grep -o '"operation":"WRITE","bytes":65536,"messages":[0-9]*,"bytes_per_second":[0-9.e+]*' /tmp/link | sed 's/.*://')"
}

round=0
while [ "$round" -lt "$rounds" ]; do
    if [ $((round % 2)) = 0 ]; then
        perftest "$round"
        fulmen "$round"
    else
        fulmen "$round"
        perftest "$round"
    fi
    round=$((round + 1))
done

timeout 120 ./fulmen bench all-reduce -n 4 --device rxe0 --min 64 --max 64K --factor 32 --dtype f32 --json >/tmp/bench 2>/tmp/bench.error </dev/null || {
    failed=1
    cat /tmp/bench.error
}
sed 's/^/bench /' /tmp/bench
exit "$failed"
