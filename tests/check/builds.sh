# Steps about what is in a build. Sourced by ./check.

# Every crate with its tests and with verbs, which most steps use.
build() {
    tests/check/built
}

# What users build: the default features, without verbs; and a build without device support, without any name of the
# driver. The folder is the one for Debian 13, whose component has the default features, too.
plain() {
    local names
    export CARGO_TARGET_DIR=$CHECKS_TARGET/plain
    cargo build -p cableway
    knows_no_verbs "$CARGO_TARGET_DIR/debug/cableway"
    if command -v mpicc >/dev/null; then
        cargo build -p cableway-ompi
        knows_no_verbs "$CARGO_TARGET_DIR/debug/libcableway_ompi.so"
    fi

    cargo build -p cableway --no-default-features
    names=$(grep -aoE '\b(cu|hip|hsa_amd_)(Init|Ctx|Mem|Pointer|Device|Stream|Event|Ipc|Launch|Module|Graph|Thread|GetProcAddress|Pointer|Host|Malloc|portable)[A-Za-z0-9_]*' \
        "$CARGO_TARGET_DIR/debug/cableway" | grep -v '_t$' | sort -u || true) # types are not functions
    [ -z "$names" ] || { echo "names of driver functions in a build without device support:"; echo "$names"; return 1; }
}

knows_no_verbs() {
    ! grep -aq ibverbs "$1" || { echo "$1, built without the feature openib, names libibverbs"; return 1; }
}

# The optimised build, which takes minutes.
release() {
    local component=()
    all || { skip "the optimised build, which ./check all makes"; return 0; }
    ! command -v mpicc >/dev/null || component=(-p cableway-ompi -p cableway-ompi-preload -p cableway-ompi-mpix -p cableway-ompi-mp)
    CARGO_TARGET_DIR=$CHECKS_TARGET/plain cargo build --release -p cableway -p cableway-capi "${component[@]}"
}

# A build with verbs runs without libibverbs until verbs are requested.
verbs() {
    local reason binary component
    reason=$(no_bindings)
    [ -z "$reason" ] || { skip "$reason"; return 0; }
    binary=$(tests/check/built debug/cableway)
    grep -aq ibverbs "$binary" || { echo "a build with the feature openib does not name libibverbs"; return 1; }
    # Read the output to its end: otherwise the writer could fail and the test seem to pass.
    ! LD_DEBUG=libs "$binary" pingpong --sizes 8 --iterations 10 2>&1 | grep libibverbs >"$LOGS/loaded" ||
        { echo "libibverbs is loaded where nothing asked for it"; cat "$LOGS/loaded"; return 1; }

    command -v mpicc >/dev/null || { skip "there is no mpicc, so no component with verbs"; return 0; }
    component=$(tests/check/built debug/deps/libcableway_ompi.so)
    grep -aq ibverbs "$component" || { echo "a component with the feature openib does not name libibverbs"; return 1; }
    ! objdump -p "$component" | grep -q 'NEEDED.*ibverbs' || { echo "the component needs libibverbs to be loaded"; return 1; }
}

# Builds Debian packages, and installs and removes them in a temporary root.
deb() {
    command -v dpkg-deb >/dev/null && command -v mpicc >/dev/null ||
        { skip "a Debian package needs dpkg-deb, and its component mpicc"; return 0; }
    local binary component
    binary=$(tests/check/built debug/cableway)
    component=$(tests/check/built debug/deps/libcableway_ompi.so)
    packaging/test "$binary" "$component"
}

# Builds a Python wheel, and installs, uses and removes it in a virtual environment.
wheel() {
    python3 -c 'import ensurepip, venv' 2>/dev/null || { skip "there is no python3 with venv to install a wheel"; return 0; }
    command -v strip >/dev/null || { skip "there is no strip to make a wheel"; return 0; }
    local files
    files=("$(tests/check/built debug/cableway)" "$(tests/check/built debug/deps/libcableway_capi.so)")
    ! command -v mpicc >/dev/null || files+=("$(tests/check/built debug/deps/libcableway_ompi.so)")
    packaging/test-wheel "${files[@]}"
}
