# The section `windows` of benches/gpu/run, which sources this and says what it does.

readonly WINDOW_SIZES=${WINDOW_SIZES:-8,64,1024,8192,65536,1048576,16777216}

# Times everything once. Arguments: who, the window's place and the origin's, more options of mpirun.
windows_time() {
    local who=$1 window=$2 origin=$3
    shift 3
    timeout -k 5 100 "${mpirun[@]}" --bind-to core -np 2 "$@" "$CARRY/mpi/windows" $window $origin "${WINDOW_SECONDS:-0.03}" \
        $WINDOW_SIZES $who 2>>"$results/log/windows-errors.txt" || echo "FAILED: $who, $window and $origin"
}

windows_round() {
    local other=$((devices > 1)) places
    for places in "$other host" "$other 0"; do
        # shellcheck disable=SC2086 # two places
        windows_time kernels $places
        # shellcheck disable=SC2086 # two places
        windows_time copies $places --mca pml_cableway_device_kernels no
    done
    windows_time kernels host host --mca osc cableway
    local mpirun=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe --mca pml ob1)
    # Some of its components cannot create such a window.
    windows_time openmpi host host | grep -v FAILED
}

# Prints the table of medians. The word FAILED marks an accumulate that kernels make slower.
windows_table() {
    awk -v devices="$devices" "$MEDIAN"'
        function shown(value) { return value ? sprintf("%.2f", value) : "-" }
        /^FAILED/ { print; next }
        NF == 7 {
            key = $2 " " $3 " " $4 " " $5
            if (!(key in seen)) { seen[key] = 1; keys[++count] = key }
            one[$1, key] = one[$1, key] " " $6; many[$1, key] = many[$1, key] " " $7
        }
        END {
            printf "%-17s %-6s %-6s %9s | %21s | %21s | %21s\n", "", "", "", "", "kernels", "host copies", "Open MPI"
            printf "%-17s %-6s %-6s %9s | %10s %10s | %10s %10s | %10s %10s\n", "operation", "window", "origin", "bytes",
                "single", "of 64", "single", "of 64", "single", "of 64"
            for (i = 1; i <= count; i++) {
                key = keys[i]; split(key, w, " ")
                a = median(one["kernels", key]); b = median(many["kernels", key])
                c = median(one["copies", key]); d = median(many["copies", key])
                missed = w[1] ~ /accumulate|fetch/ && c && (a > 1.1 * c || b > 1.1 * d)
                printf "%-17s %-6s %-6s %9d | %10s %10s | %10s %10s | %10s %10s%s\n", w[1], w[2], w[3], w[4], shown(a), shown(b),
                    shown(c), shown(d), shown(median(one["openmpi", key])), shown(median(many["openmpi", key])),
                    (!missed ? "" : (devices > 1 || w[3] == "host") ? "  FAILED" : "  slower, but both ranks use one device")
            }
            if (!count) print "FAILED: nothing was timed"
        }' "$1"
}

windows() {
    local round work mpirun
    command -v mpirun >/dev/null && [ -d "$CARRY/mpi" ] || { echo "no Open MPI here, or none packed for"; return 0; }
    work=$(mktemp -d)
    component_in "$work"
    "$CABLEWAY" info --measure >/dev/null
    for round in $(seq "${WINDOW_ROUNDS:-3}"); do
        windows_round
    done >"$results/log/windows-times.txt"
    rm -r "$work"
    {
        echo "Microseconds of an operation that is flushed, and of each of 64 that are; medians of ${WINDOW_ROUNDS:-3} rounds"
        windows_table "$results/log/windows-times.txt"
    } >"$results/windows.txt"
    verdict windows
}
