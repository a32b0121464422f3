#!/usr/bin/env bash
# Type-checks the macOS code (cargo check's work, done by clippy with -D warnings) for aarch64-apple-darwin.
#
# The standard library of that target is built from Debian's package of its source, of the compiler's own version, since
# the toolchain at hand may have no other target and nothing else may be reachable. Nothing is installed: the package is
# unpacked under target/.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/macos
mkdir -p "$work"
version=$(rustc --version | cut -d' ' -f2)
sysroot=$(rustc --print sysroot)

skip() {
    echo "SKIPPED: macOS type-check: $*" >&2
    exit 0
}

fetch_source() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no Debian-like machine, so no package of the compiler's source"
    # The archive that this machine uses already, asked for the release that carries new compilers.
    local archive
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n 1)
    [ -n "$archive" ] || skip "apt has no lists of Debian (apt-get update)"
    local apt=$work/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    printf 'deb %s trixie-backports main\ndeb %s sid main\n' "$archive" "$archive" >"$apt/sources.list"
    local options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update >"$apt/update.log" 2>&1 || skip "apt-get update failed: $(tail -n 1 "$apt/update.log")"
    local package
    package=$(apt-cache "${options[@]}" madison rust-src | awk -v v="$version" 'index($3, v "+") == 1 { print $3; exit }')
    [ -n "$package" ] || skip "Debian has no rust-src of version $version"
    (cd "$apt" && apt-get "${options[@]}" download "rust-src=$package" >download.log 2>&1) || skip "the download failed: $(tail -n 1 "$apt/download.log")"
    dpkg-deb -x "$apt"/rust-src_*.deb "$work/unpacked"
}

source=$work/unpacked/usr/src/rustc-$version/library
[ -d "$source" ] || fetch_source
[ -d "$source" ] || skip "the package holds no source at the expected place"

# A sysroot that is the toolchain's own, plus the source.
root=$work/sysroot
rm -rf "$root"
mkdir -p "$root/lib/rustlib/src/rust"
ln -s "$sysroot/bin" "$root/bin"
for entry in "$sysroot"/lib/* "$sysroot"/lib/rustlib/*; do
    case $entry in
    */lib/rustlib) ;;
    */lib/rustlib/src) ;;
    */lib/rustlib/*) ln -s "$entry" "$root/lib/rustlib/$(basename "$entry")" ;;
    *) ln -s "$entry" "$root/lib/$(basename "$entry")" ;;
    esac
done
ln -s "$source" "$root/lib/rustlib/src/rust/library"
printf '#!/bin/sh\nexec "%s" --sysroot "%s" "$@"\n' "$(rustup which rustc 2>/dev/null || command -v rustc)" "$root" >"$work/rustc"
chmod +x "$work/rustc"

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
SYSROOT=$root RUSTC_BOOTSTRAP=1 RUSTC="$work/rustc" CARGO_PROFILE_DEV_DEBUG=false \
    cargo clippy -Zbuild-std --config 'profile.dev.package."*".opt-level = 0' --target aarch64-apple-darwin \
    --target-dir "$work/build" --workspace --lib --bins "$@" -- -D warnings
echo "macOS code type-checks for aarch64-apple-darwin"
