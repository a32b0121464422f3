#!/usr/bin/env bash
# Runs tests over verbs of a real kernel, on a machine that has no RDMA hardware and need not allow loading of modules: Debian's
# kernel with its Soft-RoCE driver, in a QEMU guest that is made of packages of this machine's own release. No root is needed,
# and nothing is installed. What cannot be had is said ("SKIPPED: kernel verbs: …"), and is no failure.
#
#   ci/rig.sh build      makes the guest below the target directory, once
#   ci/rig.sh run DIR    boots it with DIR as /work, runs /work/run.sh there, and ends with its status
#   ci/rig.sh test       builds the tests that need a device, and runs them there
set -euo pipefail
cd "$(dirname "$0")/.."

rig=$(realpath -m "${CARGO_TARGET_DIR:-target}")/rig
. ci/rig/guest.sh
. ci/rig/stage.sh

case ${1:-} in
build)
    build_guest
    ;;
run)
    dir=$(realpath "${2:?the directory that is /work in the guest}")
    build_guest
    boot "$dir" "${RIG_SECONDS:-170}"
    ;;
test)
    build_guest
    dir=$(mktemp -d "$rig/work.XXXXXX")
    trap 'rm -rf "$dir"' EXIT
    stage "$dir"
    cp ci/rig/tests.sh "$dir/run.sh"
    boot "$dir" "${RIG_SECONDS:-400}"
    ;;
*)
    sed -n 's/^# \{0,1\}//p' ci/rig.sh
    exit 2
    ;;
esac
