#!/bin/sh
# Runs in the guest: the tests over rxe0, one after the other. Says how each ended, and all that a failed one said.
export FULMEN_TEST_DEVICE=rxe0 RUST_BACKTRACE=1
# Soft-RoCE takes every page of registered memory at once, and the guest has few.
export FULMEN_POOL=64M
failed=0

# check NAME SECONDS WORDS COMMAND…: it has to succeed, and to say these words. What fails once runs again, since an emulated
# machine has hiccups; that is told in the summary, with all that the first run said above it.
check() {
    attempt "$@" && return
    attempt "$@" || {
        failed=$((failed + 1))
        return
    }
    echo "SKIPPED: a clear verdict over kernel verbs: \"$1\" failed once and then passed"
}

attempt() {
    name=$1 limit=$2 words=$3 begin=$(cut -d. -f1 /proc/uptime)
    shift 3
    # Functions of this script have a limit of their own.
    case $1 in
    late | limited) "$@" ;;
    *) timeout "$limit" "$@" ;;
    esac >/tmp/said 2>&1 </dev/null
    status=$?
    took=$(($(cut -d. -f1 /proc/uptime) - begin))
    grep -E '^test result:|cases passed|^SKIPPED|^skipped' /tmp/said
    if [ "$status" = 0 ] && grep -q '^test result: ok. 0 passed\|^SKIPPED.*FULMEN_TEST_DEVICE' /tmp/said; then
        status="0, but without a test,"
    fi
    if [ "$status" = 0 ] && ! grep -qF -e "$words" /tmp/said; then
        status="0, but not a word of \"$words\","
    fi
    if [ "$status" = 0 ]; then
        echo "rig: ok: $name, $took s"
        return 0
    fi
    echo "rig: FAILED: $name: status $status after $took s; it said:"
    tail -n 200 /tmp/said
    return 1
}

# Reserved while memory is still in one piece, and given back afterwards.
echo 32 >/proc/sys/vm/nr_hugepages
check "memory: kinds" 120 "" tests/memory-kinds --nocapture
echo 0 >/proc/sys/vm/nr_hugepages

gids="tests/fabric-conformance --nocapture the_first_address"

# A port that is down and has no address when the ranks start, and both a little later.
late() {
    /bin/ip address flush dev d0
    /bin/ip link set d0 down
    timeout 100 ./fulmen run -n 2 --device rxe0 -- examples/all_reduce &
    sleep 3
    /bin/ip link set d0 up
    /bin/ip address add 10.9.0.1/24 dev d0
    wait $!
}

# An agent in a cgroup that was handed to it whole, which most machines that run tests do not have.
limited() {
    group=/sys/fs/cgroup/agent state=/tmp/agent
    mkdir -p /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup
    echo "+cpu +memory" >/sys/fs/cgroup/cgroup.subtree_control
    mkdir -p "$group"
    sh -c "echo \$\$ >$group/cgroup.procs && exec ./fulmen up --name guest --state $state" || return
    ./fulmen spawn --state "$state" --timeout 60 --limit cpu=0.5,mem=100M -- sh -c \
        "cat /proc/self/cgroup $group/fulmen-*-*/cpu.max; dd if=/dev/zero bs=300M count=1 | sleep 100"
    code=$?
    ./fulmen down --state "$state"
    [ "$code" = 253 ] && [ -z "$(ls -d "$group"/fulmen-*-* 2>/dev/null)" ]
}

check "GIDs: a link-local one first" 60 "rxe0 port 1 has 0: fe80::" $gids
check "GIDs: one of IPv4 behind it" 60 "rxe0 port 1 has 1: ::ffff:10.9.0.1" $gids
check "GIDs: that of IPv4 is taken" 60 "rxe0 port 1 takes 1: ::ffff:10.9.0.1" $gids
/bin/ip address add 10.9.7.1/24 dev d0
check "GIDs: the first of two" 60 "rxe0 port 1 takes 1: ::ffff:10.9.0.1" $gids
/bin/ip address del 10.9.0.1/24 dev d0
check "GIDs: the one that is left" 60 "rxe0 port 1 takes 2: ::ffff:10.9.7.1" $gids
check "GIDs: port and address come late" 120 "every sum is" late
check "fulmen spawn --limit" 120 "50000 100000" limited
check "fulmen run" 120 "rank 3 of 4: every sum is 10" ./fulmen run -n 4 --device rxe0 -- examples/all_reduce
check "fulmen bench, right results" 120 '"wrong":0' ./fulmen bench all-reduce -n 4 --device rxe0 --min 64 --max 64K --factor 32 \
    --dtype f32 --json
# Warnings are no failure: this device is slow, for one.
check "fulmen doctor" 120 "::ffff:10.9.0.1" sh -c './fulmen doctor; [ $? -le 1 ]'
check "fulmen probe symbols" 60 '"passed":true' ./fulmen probe symbols --json
for kind in memory "mr-limit --most 500" "queue-pairs --most 50" "mr-pool --most 128M" link; do
    # Without quotes: the kind and its options.
    check "fulmen probe $kind" 120 '"passed":true' ./fulmen probe $kind --device rxe0 --json
done
check "system: conformance" 300 "" tests/system-conformance --nocapture
check "fabric: conformance over RC" 300 "" tests/fabric-conformance --nocapture --test-threads=2 machine::rc
# Every second case: the protocol of UC is held against all of them over the soft device.
check "fabric: conformance over UC, each second case" 300 "" tests/fabric-conformance --nocapture --test-threads=2 machine::uc_first
check "fulmen: four processes, one killed, examples" 300 "" tests/fulmen-processes --nocapture --test-threads=2 \
    processes_work_together a_killed_process the_examples_work
check "fulmen: shrink, rejoin, stop" 300 "" tests/fulmen-recovery --nocapture --test-threads=2
check "cluster: locks" 300 "" tests/cluster-sync --nocapture --test-threads=2

exit $((failed > 0))
