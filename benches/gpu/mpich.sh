# The section `mpich` of benches/gpu/run, which sources this and says what it does.

# Runs a program of MPICH with the library preloaded. With ISOLATED=yes each rank sees one device, as far as there are enough
# its own. Arguments: ranks, who performs collectives, then the program and its arguments.
mpich_run() {
    local ranks=$1 performer=$2 own=$CARRY/mpich
    shift 2
    # Internal parameters have small calls of ranks that share a device change, too.
    env LD_LIBRARY_PATH="$MPICH_LIBRARIES/lib" UCX_TLS=posix,self,cma CABLEWAY_COSTS=default CABLEWAY_COLL_PERFORMER="$performer" \
        CABLEWAY_TEST_INTERNAL=1 CABLEWAY_COLL_SHARED_LIMIT=0 DEVICES="$devices" "$own/bin/mpiexec.hydra" -n "$ranks" \
        sh -c '[ "$ISOLATED" != yes ] || export CUDA_VISIBLE_DEVICES=$((PMI_RANK % DEVICES))
            LD_PRELOAD=$0 exec "$@"' "$own/libcableway_coll_mpich.so" "$@"
}

# Every call with each type, or type and operation, beside a reference, and calls in random order.
mpich_checks() {
    local ranks
    for ranks in 1 2 3 4; do
        mpich_check "mpich, $ranks ranks, every call" "$ranks" auto "$CARRY/mpich/collectives" shapes 1
    done
    mpich_check "mpich, 2 ranks, every call from the first one on" 2 cableway "$CARRY/mpich/collectives" shapes 1
    mpich_check "mpich, 4 ranks, random calls" 4 auto "$CARRY/mpich/collectives" random 500
    mpich_check "mpich, 4 ranks, random calls of 2 threads" 4 auto "$CARRY/mpich/collectives" random 300 2
}

# A check, as a command that `row` can run. Arguments: label, then those of mpich_run.
mpich_check() {
    local label=$1
    shift
    row 100 "$label" env ISOLATED=yes bash -c 'mpich_run "$@"' mpich "$@"
}

mpich() {
    local round performer sizes=${COLLECTIVE_SIZES:-8,1024,65536,1048576,16777216} times=$results/log/mpich-times.txt
    [ -e "$CARRY/mpich/collectives" ] || { echo "no MPICH was packed"; return 0; }
    MPICH_LIBRARIES=$(mktemp -d)
    tar -C "$MPICH_LIBRARIES" -xzf "$CARRY/mpich/lib.tar.gz"
    export -f mpich_run
    export CARRY devices MPICH_LIBRARIES
    mpich_checks >"$results/mpich.txt"
    tally "$results/mpich.txt"
    for round in $(seq "${COLLECTIVE_ROUNDS:-3}"); do
        for performer in cableway mpi; do
            timeout -k 5 100 bash -c 'mpich_run "$@"' mpich 2 $performer "$CARRY/mpich/times" device \
                "${COLLECTIVE_SECONDS:-0.05}" "$sizes" allreduce reduce bcast allgather alltoall reduce-scatter \
                2>>"$results/log/mpich-errors.txt" | sed "s/^/$performer $round /"
            [ "${PIPESTATUS[0]}" = 0 ] || echo "$performer failed"
        done
    done >"$times"
    failed=$((failed + $(grep -c failed "$times")))
    awk "$MEDIAN"'
        # UCX warns on standard output.
        / calls\)$/ { key = $3 " " $4; if (!(key in seen)) { seen[key] = 1; keys[++count] = key }; all[$1, key] = all[$1, key] " " $5 }
        END {
            printf "%-18s %10s %12s %14s %8s\n", "operation", "bytes", "cableway/us", "host copies/us", "ratio"
            for (i = 1; i <= count; i++) {
                split(keys[i], word, " "); ours = median(all["cableway", keys[i]]); theirs = median(all["mpi", keys[i]])
                printf "%-18s %10d %12.2f %14.2f %8.3f\n", word[1], word[2], ours, theirs, theirs ? ours / theirs : 0
            }
            if (!count) print "FAILED: no operation was timed"
        }' "$times" | tee "$results/mpich-times.txt"
    failed=$((failed + $(grep -c FAILED "$results/mpich-times.txt")))
    rm -r "$MPICH_LIBRARIES"
}
