# Steps that check the source: format, lints, docs, licences. Sourced by ./check.

format() {
    cargo fmt --all -- --check
}

# With verbs, and without device memory and verbs.
lints() {
    # shellcheck disable=SC2046 # a list of options
    cargo clippy $(everything) --all-targets -- -D warnings
    # shellcheck disable=SC2046
    cargo clippy $(packages) --all-targets --no-default-features -- -D warnings
}

docs() {
    # shellcheck disable=SC2046 # a list of options
    RUSTDOCFLAGS="-D warnings" cargo doc $(everything) --no-deps --document-private-items
}

# Licences, bans and sources need no network. Advisories do, because their database is downloaded.
deny() {
    local deny=$TOOLS/bin/cargo-deny
    [ -x "$deny" ] || { skip "there is no cargo-deny"; return 0; }
    "$deny" check licenses bans sources
    if timeout -k 5 60 "$deny" fetch db; then
        "$deny" check advisories
    else
        skip "advisories: their database cannot be fetched from here"
    fi
}

# Checks that the committed PTX is the result of compiling the kernels' source, and that the code that packs or reduces
# is right on the CPU.
kernels() {
    local fresh name status=0
    fresh=$(mktemp -d)
    common-cuda/kernels/compile "$fresh" || status=$?
    [ $status != 77 ] || { rm -r "$fresh"; skip "there is no clang-19 or no lld-19 to compile the kernels"; return 0; }
    [ $status = 0 ] || return $status
    for name in common-cuda/kernels/*.cu; do
        name=$(basename "$name" .cu)
        cmp "$fresh/$name.ptx" common-cuda/kernels/$name.ptx ||
            { echo "common-cuda/kernels/$name.ptx is not what $name.cu compiles to; run common-cuda/kernels/compile"; return 1; }
        # Another gzip may pack the same code differently.
        [ ! -e "$fresh/$name.hip.gz" ] || cmp <(gzip -dc "$fresh/$name.hip.gz") <(gzip -dc common-cuda/kernels/$name.hip.gz) ||
            { echo "common-cuda/kernels/$name.hip.gz is not what $name.cu compiles to; run common-cuda/kernels/compile"; return 1; }
    done
    rm -r "$fresh"
    common-cuda/kernels/test/run
}

# Checks that the code compiles for aarch64.
arm64() {
    local target=aarch64-unknown-linux-gnu
    if compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libstd-*" >/dev/null; then
        cargo check --workspace --exclude cableway-ompi --exclude cableway-coll-mpich --exclude cableway-btl-openib --target "$target"
    else
        skip "the standard library for $target is not installed"
    fi
}

# Each vendor of devices can be built without the other.
features() {
    local vendor
    for vendor in cuda rocm; do
        cargo check -p cableway --no-default-features --features "$vendor" || { echo "with the feature $vendor alone"; return 1; }
    done
}
