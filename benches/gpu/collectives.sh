# The section `collectives` of benches/gpu/run, which sources this and says what it does.

# Targets for two devices of their own, in microseconds, by operation and bytes.
readonly TARGETS="allreduce 8 12, allreduce 65536 14, allreduce 1048576 18, allreduce 16777216 75, allreduce 67108864 210,
    bcast 67108864 185, alltoall 67108864 130, reduce-scatter 67108864 140"

# Where NCCL is: `python3` may have it from PyTorch.
nccl_library() {
    [ -z "${NCCL_LIBRARY:-}" ] || { echo "$NCCL_LIBRARY"; return; }
    python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null
}

collectives() {
    local work name own round performer performers=(cableway mpi) failures
    local sizes=8,64,1024,4096,32768,65536,262144,1048576,4194304,16777216,67108864
    command -v mpirun >/dev/null && [ -d "$CARRY/mpi" ] || { echo "no Open MPI here, or none packed for"; return 0; }
    work=$(mktemp -d)
    for name in mca_pml_cableway.so mca_coll_cableway.so mca_osc_cableway.so; do
        ln -s "$CARRY/mpi/libcableway_ompi.so" "$work/$name"
    done
    own=$(ompi_info --path pkglibdir --parsable | sed 's/.*://')
    NCCL_LIBRARY=$(nccl_library)
    # NVLink multicast stays off: where it fails, it fails for all users of the devices.
    export NCCL_LIBRARY NCCL_NVLS_ENABLE=0
    [ "$devices" -lt 2 ] || [ -z "$NCCL_LIBRARY" ] || performers+=(nccl)
    for round in $(seq "${COLLECTIVE_ROUNDS:-3}"); do
        for performer in "${performers[@]}"; do
            local place=device options=(--mca pml_cableway_coll_performer "$performer")
            [ "$performer" != nccl ] || { place=nccl && options=(); }
            timeout -k 5 120 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe \
                --mca mca_base_component_path "$work:$own" --mca pml cableway "${options[@]}" \
                -np 2 "$CARRY/mpi/collectives" $place "${COLLECTIVE_SECONDS:-0.1}" $sizes 2>>"$results/log/collectives.txt" |
                sed "s/^/$performer $round /" || echo "$performer failed"
        done
    done >"$results/log/collectives-times.txt"
    rm -r "$work"
    failures=$(grep -c failed "$results/log/collectives-times.txt")
    awk -v targets="$TARGETS" -v devices="$devices" '
        function median(list, n, i, j, t, a) {
            n = split(list, a, " ")
            for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
            return n ? a[int((n + 1) / 2)] : 0
        }
        NF > 5 { key = $3 " " $4; if (!(key in seen)) { seen[key] = 1; keys[++count] = key }; all[$1, key] = all[$1, key] " " $5 }
        END {
            for (n = split(targets, rows, ","); n; n--) { split(rows[n], word, " "); target[word[1] " " word[2]] = word[3] }
            printf "%-18s %10s %12s %14s %8s %10s %8s\n", "operation", "bytes", "cableway/us", "host copies/us", "ratio", "nccl/us", "target"
            for (i = 1; i <= count; i++) {
                split(keys[i], word, " "); ours = median(all["cableway", keys[i]]); theirs = median(all["mpi", keys[i]])
                nccl = median(all["nccl", keys[i]])
                missed = devices > 1 && (target[keys[i]] && ours > target[keys[i]] || nccl && ours > 1.05 * nccl)
                printf "%-18s %10d %12.2f %14.2f %8.3f %10s %8s %s\n", word[1], word[2], ours, theirs, theirs ? ours / theirs : 0, nccl ? sprintf("%.2f", nccl) : "-", target[keys[i]], missed ? "FAILED" : ""
            }
            if (!count) print "FAILED: no operation was timed"
        }' "$results/log/collectives-times.txt" >"$results/collectives.txt"
    cat "$results/collectives.txt"
    failures=$((failures + $(grep -c FAILED "$results/collectives.txt")))
    ok=$((ok + 1)) failed=$((failed + failures))
}
