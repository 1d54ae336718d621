# The packages and features that the checks build, and the target folder. All steps use the same selection, because
# cargo builds a crate again for each set of packages with other features. Sourced in the root of the checkout.

# Incremental builds and debug information take more time and space than everything else.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=none

# The checks' own target folder, as an absolute path.
checks_target() {
    echo "${CHECKS_TARGET:-$(realpath -m "${CARGO_TARGET_DIR:-target}")/check/build}"
}

has_libclang() {
    compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null || [ -n "${LIBCLANG_PATH:-}" ]
}

# Prints the reason why the bindings to verbs cannot be built here, if any.
no_bindings() {
    command -v cmake >/dev/null || { echo "there is no cmake, so the bindings to verbs cannot be built"; return 0; }
    has_libclang || echo "there is no libclang, so the bindings to verbs cannot be built"
}

# Lists all packages that this machine can build.
packages() {
    echo --workspace
    command -v mpicc >/dev/null || echo --exclude cableway-ompi
    command -v mpicc.mpich >/dev/null || echo --exclude cableway-coll-mpich
    [ -z "$(no_bindings)" ] || echo --exclude cableway-btl-openib
}

# The same packages with cudarc's slices, and with verbs if they can be built.
everything() {
    packages
    echo --features cableway/cudarc
    [ -z "$(no_bindings)" ] || return 0
    echo --features cableway/openib
    ! command -v mpicc >/dev/null || echo --features cableway-ompi/openib
}
