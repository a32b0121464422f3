# Sourced by ci/rig.sh. Builds what runs in the guest and lays it out as the guest's /work.

# The tests that the guest runs, by crate and name.
tests=(memory-kinds system-conformance fabric-conformance cluster-sync fulmen-processes fulmen-recovery)

as=(--message-format=json-render-diagnostics)

# stage_command DIR: the command, which measures, as users have it.
stage_command() {
    cargo build --release "${as[@]}" -p fulmen-cli --bin fulmen >"$rig/build.json" || return 1
    lay_out "$1"
}

# stage DIR: also the tests, and the example that they run, which they look for beside their own directory: those that `cargo test` builds
# for this machine.
stage() {
    cargo test "${as[@]}" --no-run --workspace --test kinds --test conformance --test processes --test recovery --test sync \
        >"$rig/build.json" || return 1
    lay_out "$1"
    cargo build "${as[@]}" --workspace --example all_reduce >"$rig/build.json" || return 1
    lay_out "$1"
    stage_command "$1" || return 1
    local path
    for path in fulmen "${tests[@]/#/tests/}" examples/all_reduce; do
        [ -x "$1/$path" ] || {
            echo "rig: cargo built no $path" >&2
            return 1
        }
    done
}

# Copies what cargo said that it built, as far as the guest runs it: all of it has to be unpacked there.
lay_out() {
    local crate kind name path
    mkdir -p "$1/tests" "$1/examples"
    sed -n 's|.*"package_id":"[^"]*/crates/\([a-z]*\)#[^"]*".*"kind":\["\([a-z]*\)"\].*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\1 \2 \3 \4|p' "$rig/build.json" |
        while read -r crate kind name path; do
            case $kind-$crate in
            test-*) [[ " ${tests[*]} " != *" $crate-$name "* ]] || slim "$path" "$1/tests/$crate-$name" ;;
            example-fulmen) slim "$path" "$1/examples/$name" ;;
            bin-*) slim "$path" "$1/$name" ;;
            esac
        done
}

# Symbols would only have to be unpacked by the guest.
slim() {
    strip -o "$2" "$1" 2>/dev/null || cp "$1" "$2"
}
