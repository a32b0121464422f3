#!/usr/bin/env bash
# Runs the tests of the kernels, and the unit tests of the memory that they work on, as programs for aarch64-unknown-linux-gnu: with
# QEMU's emulation of a processor that has no more than the architecture's first version, and of one that has all that QEMU knows. It says
# nothing about speed, nor about the order in which processors see each other's writes.
#
# The standard library of that target is built from its source (ci/sysroot.sh), since the toolchain at hand may have no other target.
# What else it takes is installed: the C library of that target, a linker for it, and the emulator.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
libraries=/usr/aarch64-linux-gnu
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/aarch64
mkdir -p "$work"

skip() {
    echo "SKIPPED: tests for aarch64: $*" >&2
    exit 0
}

[ "$(uname -m)" != aarch64 ] || skip "this machine is one, and cargo test runs them on it"

missing=()
command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
[ -e $libraries/lib/libc.so ] || missing+=(libc6-dev-arm64-cross)
command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
if [ "${#missing[@]}" -gt 0 ]; then
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || skip "${missing[*]} not installed, and it takes root of a Debian-like machine to do so"
    { apt-get -qq update && apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends "${missing[@]}"; } >"$work/apt.log" 2>&1 ||
        skip "${missing[*]} cannot be installed: $(tail -n 1 "$work/apt.log")"
fi

. ci/sysroot.sh

# None of the dependencies runs for long.
export RUSTC_BOOTSTRAP=1 RUSTC="$compiler" CARGO_PROFILE_DEV_DEBUG=false
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
for processor in cortex-a72 max; do
    echo "as on $processor:"
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $processor -L $libraries" \
        cargo test -Zbuild-std --config 'profile.dev.package."*".opt-level = 0' --target "$target" \
        --target-dir "$work/build" -p fulmen-kernels -p fulmen-memory --lib "$@"
done
