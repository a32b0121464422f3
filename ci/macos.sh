#!/usr/bin/env bash
# Type-checks the macOS code (cargo check's work, done by clippy with -D warnings) for aarch64-apple-darwin.
#
# The standard library of that target is built from its source (ci/sysroot.sh), since the toolchain at hand may have no other target.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/macos
mkdir -p "$work"

skip() {
    echo "SKIPPED: macOS type-check: $*" >&2
    exit 0
}

. ci/sysroot.sh

# Build scripts (that of `ring`) compile C and assembly for the target, and this machine has neither its compiler nor its SDK.
# Checking types reads no object file and links nothing, so that empty files will do, from a compiler and an archiver that make
# whatever they are asked for; what they would hold is checked by nobody here. The compiler is asked who it is first, by a file
# whose preprocessed text names it.
cat >"$work/cc" <<'END'
#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
    -E) echo clang && exit 0 ;;
    -o) shift && : >"$1" ;;
    *.a) : >"$1" ;;
    esac
    shift
done
END
chmod +x "$work/cc"
export CC_aarch64_apple_darwin=$work/cc AR_aarch64_apple_darwin=$work/cc
# Of whatever kind, as long as it is there.
export SDKROOT=$work

# Clippy's driver asks the environment for the sysroot, cargo asks the compiler. Nothing that is built here runs for long.
SYSROOT=$root RUSTC_BOOTSTRAP=1 RUSTC="$compiler" CARGO_PROFILE_DEV_DEBUG=false \
    cargo clippy -Zbuild-std --config 'profile.dev.package."*".opt-level = 0' --target aarch64-apple-darwin \
    --target-dir "$work/build" --workspace --lib --bins "$@" -- -D warnings
echo "macOS code type-checks for aarch64-apple-darwin"
