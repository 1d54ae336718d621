# Steps that run Rust tests. Sourced by ./check.

# Excludes the tests that need a verbs device; the guest runs those.
readonly WITHOUT_DEVICE='not (package(cableway-btl-openib) and kind(test) and not binary(at_scale)) and not binary(openib)'

# Unit, property and multi-process tests.
tests() {
    # Random collectives, one-sided operations of each size and kind, and launches of a graph, of which the usual run
    # performs few.
    ! all || export CABLEWAY_TEST_COLLECTIVES=100000 CABLEWAY_TEST_ONE_SIDED=1000 CABLEWAY_TEST_GRAPHS=10000
    run_tests "not package(cableway-ompi) and not package(cableway-coll-mpich) and $WITHOUT_DEVICE"
}

# The component, under this machine's own Open MPI.
mpi() {
    local need
    for need in mpicc mpirun; do
        command -v $need >/dev/null || { skip "there is no $need, so no Open MPI to load the component"; return 0; }
    done
    ! all || export CABLEWAY_TEST_WHOLE=1
    run_tests "package(cableway-ompi) and $WITHOUT_DEVICE"
}

# The preloaded library, under this machine's MPICH.
mpich() {
    local need
    for need in mpicc.mpich mpiexec.hydra; do
        command -v $need >/dev/null || { skip "there is no $need, so no MPICH to preload the library into"; return 0; }
    done
    ! all || export CABLEWAY_TEST_WHOLE=1
    run_tests "package(cableway-coll-mpich)"
}

# Runs the tests that a nextest filter selects. Without nextest the step 'tests' runs all of them.
run_tests() {
    local status=0
    if cargo nextest --version >/dev/null 2>&1; then
        # shellcheck disable=SC2046 # a list of options
        cargo nextest run $(everything) -E "$1" --no-fail-fast || status=$?
        # nextest keeps it in the workspace, whatever cargo's target folder is. 1 says that no test was skipped.
        grep -aE '^ *(skipped: |SKIPPED: )' target/nextest/default/junit.xml || [ $? = 1 ]
        return $status
    elif [[ $1 == not* ]]; then
        # shellcheck disable=SC2046
        cargo test $(everything) --lib --bins --tests --no-fail-fast -- --show-output
    else
        skip "there is no cargo-nextest to run these tests apart: the step 'tests' runs them"
    fi
}

doctests() {
    # shellcheck disable=SC2046 # a list of options
    cargo test $(everything) --doc --no-fail-fast
}

# Tests every interleaving of the lock-free rings, within the bounds of the models.
loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$CHECKS_TARGET/loom" \
        cargo test -p cableway-base -p cableway-btl-sm --no-default-features --lib loom
}
