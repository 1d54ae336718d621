# Steps that need another Open MPI than this machine's, or the tests of other projects. Sourced by ./check.

# The component under Debian 13's Open MPI 5.0: its tests, and the package as a user installs it.
debian13() {
    local why status=0
    why=$(ompi/tests/debian13 make) || status=$?
    [ $status != 77 ] || { skip "$why"; return 0; }
    [ $status = 0 ] || { echo "$why"; return $status; }
    ompi/tests/debian13 launch
    ompi/tests/debian13 test
    ompi/tests/debian13 package
}

# mpi4py's own tests under ob1 and under the component. The component must not fail or skip more of them than ob1: under
# this machine's Open MPI, and under Debian 13's, with 2 ranks, or with 1 to 4.
mpi4py() {
    local need why status=0 ranks=(2)
    ! all || ranks=(1 2 3 4)
    for need in mpicc mpirun python3-config venv; do
        present $need || { skip "there is no $need"; return 0; }
    done
    ompi/tests/mpi4py "$(tests/check/built debug/deps/libcableway_ompi.so)" "${ranks[@]}"
    why=$(ompi/tests/debian13 make) || status=$?
    [ $status != 77 ] || { skip "$why"; return 0; }
    [ $status = 0 ] || { echo "$why"; return $status; }
    ompi/tests/debian13 mpi4py "${ranks[@]}"
}
