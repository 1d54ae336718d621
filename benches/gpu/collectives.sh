# The section `collectives` of benches/gpu/run, which sources this and says what it does.

# Targets for two devices of their own, in microseconds, by operation and bytes.
readonly TARGETS="allreduce 8 12, allreduce 65536 14, allreduce 1048576 18, allreduce 16777216 75, allreduce 67108864 210,
    bcast 67108864 185, alltoall 67108864 130, reduce-scatter 67108864 140"

# Where NCCL is: `python3` may have it from PyTorch.
nccl_library() {
    [ -z "${NCCL_LIBRARY:-}" ] || { echo "$NCCL_LIBRARY"; return; }
    python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null
}

# Heat's redistribution of arrays, with device memory given to MPI and with copies of Heat's own. Heat comes from
# HEAT_FOLDER, where an unpacked Heat 1.8 lies, or from `python3`. Uses `work` and `own` of the section.
heat() {
    local way path=${HEAT_FOLDER:-$CARRY/heat} limit=1.5
    PYTHONPATH=$path python3 -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("heat", "torch", "mpi4py"))))' ||
        { echo "no Heat here, so its arrays are not redistributed"; return 0; }
    for way in direct staged; do
        row 170 "heat $way" env PYTHONPATH="$path" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe \
            --mca mca_base_component_path "$work:$own" --mca pml cableway -np 2 python3 "$CARRY/mpi/heat_arrays.py" $way
        grep -aE '^(direct|staged) ' "$results/log/heat_$way.txt"
    done >"$results/heat.txt"
    tally "$results/heat.txt"
    [ "$devices" -lt 2 ] || awk -v limit=$limit '/^direct +resplit 0 to 1 / { seen = 1; missed = $6 > limit } END { exit !seen || missed }' \
        "$results/heat.txt" || { echo "resplit 0 to 1 takes more than $limit ms  FAILED"; failed=$((failed + 1)); }
}

collectives() {
    local work name own round performer performers=(cableway mpi) failures
    local sizes=${COLLECTIVE_SIZES:-4,8,64,1024,4096,32768,65536,262144,1048576,4194304,16777216,67108864}
    local largest=${COLLECTIVE_LARGEST:-268435456,1073741824}
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
        timeout -k 5 120 "$CABLEWAY" collectives --memory device --seconds "${COLLECTIVE_SECONDS:-0.1}" --sizes "$sizes,$largest" \
            --operation allreduce,reduce,bcast,allgather,alltoall,reduce-scatter \
            2>>"$results/log/collectives.txt" | sed "/^#/d; s/^/library $round /"
        [ "${PIPESTATUS[0]}" = 0 ] || echo "library failed"
        for performer in "${performers[@]}"; do
            local place=device options=() all=$sizes
            [ "$performer" != mpi ] || options=(--mca pml_cableway_coll_performer mpi)
            [ "$performer" != nccl ] || { place=nccl && options=(); }
            # Host copies of the largest buffers take seconds.
            [ "$performer" = mpi ] || all+=,$largest
            # shellcheck disable=SC2086 # a list of operations
            timeout -k 5 120 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe \
                --mca mca_base_component_path "$work:$own" --mca pml cableway "${options[@]}" \
                -np 2 "$CARRY/mpi/collectives" $place "${COLLECTIVE_SECONDS:-0.1}" $all ${COLLECTIVES:-} 2>>"$results/log/collectives.txt" |
                sed "s/^/$performer $round /" || echo "$performer failed"
        done
    done >"$results/log/collectives-times.txt"
    heat
    rm -r "$work"
    failures=$(grep -c failed "$results/log/collectives-times.txt")
    awk -v targets="$TARGETS" -v devices="$devices" "$MEDIAN"'
        NF > 5 { key = $3 " " $4; if (!(key in seen)) { seen[key] = 1; keys[++count] = key }; all[$1, key] = all[$1, key] " " $5 }
        END {
            for (n = split(targets, rows, ","); n; n--) { split(rows[n], word, " "); target[word[1] " " word[2]] = word[3] }
            printf "%-18s %10s %12s %12s %14s %8s %10s %8s\n", "operation", "bytes", "cableway/us", "library/us", "host copies/us", "ratio", "nccl/us", "target"
            for (i = 1; i <= count; i++) {
                split(keys[i], word, " "); ours = median(all["cableway", keys[i]]); theirs = median(all["mpi", keys[i]])
                nccl = median(all["nccl", keys[i]]); library = median(all["library", keys[i]])
                missed = devices > 1 && (target[keys[i]] && ours > target[keys[i]] || nccl && ours > 1.05 * nccl)
                missed = missed || devices > 1 && nccl && library > 1.05 * nccl
                # Every type takes what floats take.
                floats = median(all["cableway", "allreduce " word[2]])
                missed = missed || devices > 1 && word[1] ~ /^allreduce-/ && ours > 1.1 * floats
                # Blocks in rows cost little more than runs.
                runs = median(all["cableway", "alltoall " word[2]])
                missed = missed || devices > 1 && word[1] == "alltoallw" && word[2] >= 65536 && ours > 1.5 * runs
                printf "%-18s %10d %12.2f %12s %14.2f %8.3f %10s %8s %s\n", word[1], word[2], ours, library ? sprintf("%.2f", library) : "-", theirs, theirs ? ours / theirs : 0, nccl ? sprintf("%.2f", nccl) : "-", target[keys[i]], missed ? "FAILED" : ""
            }
            if (!count) print "FAILED: no operation was timed"
        }' "$results/log/collectives-times.txt" >"$results/collectives.txt"
    cat "$results/collectives.txt"
    failures=$((failures + $(grep -c FAILED "$results/collectives.txt")))
    ok=$((ok + 1)) failed=$((failed + failures))
}
