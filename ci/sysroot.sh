# Read by scripts that build for targets of which the toolchain has no standard library: makes a sysroot in $root that has the
# library's source, and a compiler in $compiler that looks there, for cargo's -Zbuild-std.
#
# The source is Debian's package of it, of the compiler's own version, since nothing else may be reachable. Nothing is installed: the
# package is unpacked under target/. Who reads this has set $work, a directory of its own, and has a function `skip REASON` that ends it.

version=$(rustc --version | cut -d' ' -f2)
sysroot=$(rustc --print sysroot)
package=$(realpath -m "${CARGO_TARGET_DIR:-target}")/rust-src

fetch_source() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no Debian-like machine, so no package of the compiler's source"
    # The archive that this machine uses already, asked for the release that carries new compilers.
    local archive
    archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | grep -v security | head -n 1)
    [ -n "$archive" ] || skip "apt has no lists of Debian (apt-get update)"
    local apt=$package/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    printf 'deb %s trixie-backports main\ndeb %s sid main\n' "$archive" "$archive" >"$apt/sources.list"
    local options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache")
    apt-get "${options[@]}" update >"$apt/update.log" 2>&1 || skip "apt-get update failed: $(tail -n 1 "$apt/update.log")"
    local found
    found=$(apt-cache "${options[@]}" madison rust-src | awk -v v="$version" 'index($3, v "+") == 1 { print $3; exit }')
    [ -n "$found" ] || skip "Debian has no rust-src of version $version"
    (cd "$apt" && apt-get "${options[@]}" download "rust-src=$found" >download.log 2>&1) || skip "the download failed: $(tail -n 1 "$apt/download.log")"
    dpkg-deb -x "$apt"/rust-src_"$version"+*.deb "$package/unpacked"
}

source=$package/unpacked/usr/src/rustc-$version/library
[ -d "$source" ] || fetch_source
[ -d "$source" ] || skip "the package holds no source at the expected place"

# The toolchain's own sysroot, plus the source.
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
compiler=$work/rustc
printf '#!/bin/sh\nexec "%s" --sysroot "%s" "$@"\n' "$(rustup which rustc 2>/dev/null || command -v rustc)" "$root" >"$compiler"
chmod +x "$compiler"
