# Sourced by ci/rig.sh. Builds what runs in the guest and lays it out as the guest's /work.

# stage DIR: the tests, the examples and the command. Tests look for examples beside their own directory.
stage() {
    local dir=$1 crate kind name path
    mkdir -p "$dir/tests" "$dir/examples"
    # Optimized, since each instruction of the guest is emulated.
    cargo test --release --no-run --message-format=json-render-diagnostics -p fulmen-system -p fulmen-fabric -p fulmen-cluster -p fulmen -p fulmen-cli -p fulmen-memory \
        --bin fulmen --test kinds --test conformance --test processes --test recovery --test sync --example '*' >"$rig/build.json"
    sed -n 's|.*"package_id":"[^"]*/crates/\([a-z]*\)#[^"]*".*"kind":\["\([a-z]*\)"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\1 \2 \3 \4|p' "$rig/build.json" |
        while read -r crate kind name path; do
            case $kind in
            test) slim "$path" "$dir/tests/$crate-$name" ;;
            example) slim "$path" "$dir/examples/$name" ;;
            # As a program, and not as the harness of its own tests.
            bin) case $path in */deps/*) ;; *) slim "$path" "$dir/$name" ;; esac ;;
            esac
        done
    for path in fulmen tests/{memory-kinds,system-conformance,fabric-conformance,cluster-sync,fulmen-processes,fulmen-recovery} examples/all_reduce; do
        [ -x "$dir/$path" ] || {
            echo "rig: cargo built no $path" >&2
            return 1
        }
    done
}

# Symbols would only have to be unpacked by the guest.
slim() {
    strip -o "$2" "$1" 2>/dev/null || cp "$1" "$2"
}
