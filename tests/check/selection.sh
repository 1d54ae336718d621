# Which packages and features the checks build, and where. One selection for all steps, because cargo builds a crate anew
# for each set of packages of which its features differ. Sourced in the root of the checkout.

# What is kept for the next build, and for debuggers, takes more time and room than all the rest.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none

# The checks' own target folder, absolute.
checks_target() {
    echo "${CHECKS_TARGET:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/check/build}"
}

has_libclang() {
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ]
}

# Why the bindings to verbs cannot be built here; nothing if they can.
no_bindings() {
    command -v cmake >/dev/null || { echo "there is no cmake, so the bindings to verbs cannot be built"; return 0; }
    has_libclang || echo "there is no libclang, so the bindings to verbs cannot be built"
}

# All packages whose needs this machine meets.
packages() {
    echo --workspace
    command -v mpicc >/dev/null || echo --exclude cableway-ompi
    [ -z "$(no_bindings)" ] || echo --exclude cableway-btl-openib
}

# The same with verbs, where they can be built.
everything() {
    packages
    [ -z "$(no_bindings)" ] || return 0
    echo --features cableway/openib
    ! command -v mpicc >/dev/null || echo --features cableway-ompi/openib
}
