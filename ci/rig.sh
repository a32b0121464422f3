#!/usr/bin/env bash
# Runs tests over verbs of a real kernel, on a machine that has no RDMA hardware and need not allow loading of modules: Debian's
# kernel with its Soft-RoCE driver, in a QEMU guest that is made of packages of this machine's own release. No root is needed,
# and nothing is installed. What cannot be had is said ("SKIPPED: kernel verbs: …"), and is no failure.
#
#   ci/rig.sh build              makes the guest below the target directory, once
#   ci/rig.sh stage            also builds what runs in it
#   ci/rig.sh run DIR            boots it with DIR as /work, runs /work/run.sh there, and ends with its status
#   ci/rig.sh test               builds the tests that need a device, and runs them there
#   ci/rig.sh figures [ROUNDS]   measures beside perftest (9 rounds), and prints rows for docs/benchmarks.md
#
# RIG_SECONDS bounds what happens in the guest.
set -euo pipefail
cd "$(dirname "$0")/.."

rig=$(realpath -m "${CARGO_TARGET_DIR:-target}")/rig
. ci/rig/guest.sh
. ci/rig/stage.sh

# Where what was skipped is said, whatever reads the rest.
exec 3>&1
work=
trap '[ -z "$work" ] || rm -rf "$work"' EXIT

case ${1:-} in
build)
    build_guest
    ;;
stage)
    build_guest
    work=$(mktemp -d "$rig/work.XXXXXX")
    stage "$work"
    ;;
run)
    dir=$(realpath "${2:?the directory that is /work in the guest}")
    build_guest
    boot "$dir" "${RIG_SECONDS:-170}"
    ;;
test)
    build_guest
    work=$(mktemp -d "$rig/work.XXXXXX")
    stage "$work"
    cp ci/rig/tests.sh "$work/run.sh"
    boot "$work" "${RIG_SECONDS:-900}"
    ;;
figures)
    build_guest
    work=$(mktemp -d "$rig/work.XXXXXX")
    stage_command "$work"
    cp ci/rig/figures.sh "$work/run.sh"
    echo "${2:-9}" >"$work/rounds"
    status=0
    boot "$work" "${RIG_SECONDS:-900}" | tee "$work.log" || status=$?
    printf '\n| over rxe0 | size | perftest | Fulmen | Fulmen / perftest | rounds |\n|---|--:|--:|--:|--:|--:|\n'
    awk -f ci/rig/ratios.awk "$work.log"
    sed -n 's/.*"op":"all-reduce","bytes":\([0-9]*\),"ranks":\([0-9]*\).*"p50_us":\([0-9.]*\).*"wrong":\([0-9]*\).*/| all-reduce, \2 ranks | \1 B | | \3 µs | | \4 wrong |/p' "$work.log"
    rm -f "$work.log"
    exit "$status"
    ;;
*)
    sed -n 's/^# \{0,1\}//p' ci/rig.sh
    exit 2
    ;;
esac
