#!/bin/sh
# Runs in the guest: the tests over rxe0, one after the other. Says how each ended, and all that a failed one said.
export FULMEN_TEST_DEVICE=rxe0 RUST_BACKTRACE=1
failed=0

# check NAME SECONDS COMMAND…
check() {
    name=$1 limit=$2 begin=$(cut -d. -f1 /proc/uptime)
    shift 2
    timeout "$limit" "$@" >/tmp/said 2>&1 </dev/null
    status=$?
    took=$(($(cut -d. -f1 /proc/uptime) - begin))
    grep -E '^test result:|cases passed|^SKIPPED|^skipped' /tmp/said
    if [ "$status" = 0 ]; then
        echo "rig: ok: $name, $took s"
    else
        failed=$((failed + 1))
        echo "rig: FAILED: $name: status $status after $took s; it said:"
        tail -n 200 /tmp/said
    fi
}

# Reserved while memory is still in one piece, and given back afterwards.
echo 32 >/proc/sys/vm/nr_hugepages
check "memory: kinds" 120 tests/memory-kinds --nocapture
echo 0 >/proc/sys/vm/nr_hugepages
check "system: conformance" 150 tests/system-conformance --nocapture
check "fabric: conformance over RC" 150 tests/fabric-conformance --nocapture --test-threads=2 machine::rc
check "fabric: conformance over UC" 150 tests/fabric-conformance --nocapture --test-threads=2 machine::uc
check "fulmen: four processes, one killed, examples" 100 tests/fulmen-processes --nocapture --test-threads=2 \
    processes_work_together a_killed_process the_examples_work
check "fulmen: shrink, rejoin, stop" 150 tests/fulmen-recovery --nocapture --test-threads=2
check "cluster: locks" 100 tests/cluster-sync --nocapture --test-threads=2
check "fulmen run" 60 ./fulmen run -n 4 --device rxe0 -- examples/all_reduce

exit $((failed > 0))
