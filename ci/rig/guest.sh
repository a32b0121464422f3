# Sourced by ci/rig.sh. Makes the guest and boots it. Nothing is installed: packages of this machine's own Debian release are
# unpacked below $rig.

# Everything that the guest is made of can be had, or the reason is told and the rig's work is over.
skip() {
    echo "SKIPPED: kernel verbs: $*" >&3
    exit 0
}

# The packages, with all that they need, as apt would install them on a machine that has nothing (guest) or on this one (host).
needed() {
    apt-get -qq -o APT::Install-Recommends=0 "$@" 2>/dev/null | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p"
}

fetch() {
    local into=$1
    shift
    mkdir -p "$into"
    (cd "$into" && apt-get -qq -o APT::Sandbox::User= download "$@") >>"$rig/log" 2>&1 ||
        skip "the download of $* failed: $(tail -n 1 "$rig/log")"
}

# The kernel's package is large, and the guest needs few of its modules.
unpack_kernel() {
    local package=$1 release=$2 kernel="*/lib/modules/$2/kernel"
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$rig/kernel" --wildcards "./boot/vmlinuz-$release" "*/lib/modules/$release/modules.*" \
        "$kernel/drivers/infiniband/core/*" "$kernel/drivers/infiniband/sw/rxe/*" "$kernel/crypto/crc32*" "$kernel/lib/libcrc32c*" \
        "$kernel/net/ipv4/udp_tunnel*" "$kernel/net/ipv6/ip6_udp_tunnel*" "$kernel/fs/configfs/*" "$kernel/drivers/net/dummy*" \
        "$kernel/drivers/net/veth*"
}

build_guest() {
    local begin=$SECONDS stamp
    [ "$(uname -sm)" = "Linux x86_64" ] || skip "the guest is made for x86-64 Linux only"
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no Debian-like machine, so no packages for the guest"
    stamp=$(cat ci/rig/guest.sh ci/rig/init /etc/os-release | sha256sum)
    if [ "$(cat "$rig/stamp" 2>/dev/null)" = "$stamp" ] && [ -s "$rig/base.cpio.gz" ]; then
        return 0
    fi
    rm -rf "$rig"
    mkdir -p "$rig"/{packages,root,kernel,host}

    local release kernel_package guest host
    # The cloud flavour of the kernel has no Soft-RoCE.
    kernel_package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    if [ -z "$kernel_package" ] && apt-get -qq update >"$rig/log" 2>&1; then
        kernel_package=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
    fi
    [ -n "$kernel_package" ] || skip "apt has no package of Debian's kernel (apt-get update)"
    release=${kernel_package#linux-image-}
    # Of a whole system: libraries and their programs, not what sets users or log-ins up.
    guest=$(needed install -y --print-uris -o Dir::State::status=/dev/null busybox-static ibverbs-utils ibverbs-providers perftest iproute2 |
        grep -Ev '^(debconf|gcc-[0-9]+-base|libaudit.*|libpam.*|libsemanage.*|libsepol.*|passwd|adduser|libdb5.3.*|pci.ids|libcap2-bin|libcap-ng0|libtirpc-common)$')
    [ -n "$guest" ] || skip "apt cannot tell what the guest needs (apt-get update)"
    command -v qemu-system-x86_64 >/dev/null || host=$(needed install -y --print-uris qemu-system-x86)
    fetch "$rig/packages/kernel" "$kernel_package"
    # shellcheck disable=SC2086 # Names of packages, apart.
    fetch "$rig/packages/guest" $guest
    # shellcheck disable=SC2086
    [ -z "${host:-}" ] || fetch "$rig/packages/host" $host

    local package root=$rig/root
    for package in "$rig"/packages/guest/*.deb; do dpkg-deb -x "$package" "$root"; done
    for package in "$rig"/packages/host/*.deb; do [ ! -e "$package" ] || dpkg-deb -x "$package" "$rig/host"; done
    unpack_kernel "$rig"/packages/kernel/*.deb "$release" >>"$rig/log" 2>&1 || true
    cp "$rig/kernel/boot/vmlinuz-$release" "$rig/vmlinuz" || skip "the kernel's package has no image at the expected place"
    find "$rig/kernel" -name 'rdma_rxe.ko*' | grep -q . || skip "the kernel of this release has no Soft-RoCE driver"

    rm -rf "$root"/usr/share/{doc,man,locale,lintian,bash-completion,bug,info,perl5} "$root"/var "$root"/usr/lib/x86_64-linux-gnu/{gconv,audit}
    local busybox
    busybox=$(find "$root" -path '*/bin/busybox' | head -n 1)
    mkdir -p "$root"/{bin,sbin,lib/modules,proc,sys,dev,tmp,run,work}
    cp -a "$(find "$rig/kernel" -path "*/lib/modules/$release" -type d)" "$root/lib/modules/"
    "$busybox" depmod -b "$root" "$release"
    ln -sf busybox "$root/bin/sh"
    # The kernel itself asks for modules by this path.
    ln -sf /bin/busybox "$root/sbin/modprobe"
    install -m 755 ci/rig/init "$root/init"
    # The same program packs what is added at each boot.
    cp "$busybox" "$rig/busybox"
    pack "$root" | gzip -1 >"$rig/base.cpio.gz"
    # The kernel takes several archives one after the other, if each begins at a multiple of four.
    truncate -s %4 "$rig/base.cpio.gz"
    rm -rf "$rig/packages" "$rig/kernel" "$root"
    echo "$stamp" >"$rig/stamp"
    echo "rig: the guest is made, Linux $release, in $((SECONDS - begin)) s"
}

pack() {
    (cd "$1" && find . | "$rig/busybox" cpio -o -H newc 2>/dev/null)
}

# boot DIR [LIMIT]: DIR is /work in the guest, and its run.sh runs there. Gives that script's status; 125 where the guest came up
# but did not say it in time. A machine that cannot bring the guest up at all is no failure of the project.
boot() {
    local dir=$1 limit=${2:-170} work log status=0
    work=$(mktemp -d "$rig/boot.XXXXXX")
    log=$work/log
    mkdir -p "$work/root"
    cp -a "$dir" "$work/root/work"
    { cat "$rig/base.cpio.gz" && pack "$work/root"; } >"$work/initrd"
    rm -rf "$work/root"

    local qemu=(qemu-system-x86_64)
    if ! command -v qemu-system-x86_64 >/dev/null; then
        local host=$rig/host
        qemu=(env "LD_LIBRARY_PATH=$host/usr/lib/x86_64-linux-gnu:$host/lib/x86_64-linux-gnu" "QEMU_MODULE_DIR=$host/usr/lib/x86_64-linux-gnu/qemu"
            "$host/usr/bin/qemu-system-x86_64" -L "$host/usr/share/qemu" -L "$host/usr/share/seabios" -L "$host/usr/lib/ipxe/qemu")
    fi
    timeout --kill-after=10 "$limit" "${qemu[@]}" -accel "${RIG_ACCEL:-tcg}" -cpu "${RIG_CPU:-qemu64}" -smp "${RIG_CPUS:-2}" -m "${RIG_MEMORY:-1536}" \
        -M q35 -nodefaults -no-reboot -nographic -serial stdio -monitor none -kernel "$rig/vmlinuz" -initrd "$work/initrd" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on tsc=reliable clocksource=tsc" </dev/null 2>&1 | sed -u 's,[\r\x1b],,g' | tee "$log" || status=$?
    local said
    said=$(sed -n 's/^rig: status \([0-9]*\)$/\1/p' "$log" | tail -n 1)
    if ! grep -q 'rig: ready after' "$log"; then
        said=$(tail -n 1 "$log")
        rm -rf "$work"
        skip "the guest did not come up (status $status, last words: $said)"
    fi
    rm -rf "$work"
    return "${said:-125}"
}
