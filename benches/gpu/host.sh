# The section `host` of benches/gpu/run, which sources this and says what it does.

# The ways to move large host data, each forced by internal settings.
host_way() {
    local settings=() way=$1
    shift
    [ $way = chosen ] || settings=(--set pml_host_way=$way)
    CABLEWAY_TEST_INTERNAL=1 timeout -k 5 60 "$CABLEWAY" pingpong --btl sm --src host --dst host \
        --sizes 24K,64K,256K,1M,4M,16M --seconds 0.1 "$@" "${settings[@]}"
}

# The way that the engine chooses beside the best of the forced ones.
host_ways() {
    local round test way
    for ((round = 0; round < ${HOST_WAY_ROUNDS:-5}; round++)); do
        for test in latency bandwidth; do
            for way in chosen get halves streamed cached; do
                host_way $way --test $test | sed -nE "s/^([0-9]+) +([0-9.]+)\$/$test \1 $way \2/p"
            done
        done
    done >"$results/log/host-ways.txt"
    sort -k1,1 -k2,2n -k3,3 -k4,4g "$results/log/host-ways.txt" | awk '
        function say(median) {
            if (key == "") return
            median = values[int((count + 1) / 2)]
            time = test == "latency" ? median : bytes * 64 / median
            if (way == "chosen") chosen = time
            else if (!best || time < best) { best = time; name = way }
        }
        function row() {
            if (!size) return
            printf "%-10s %9d B  the chosen way takes %5.2f of the time of the best forced one (%s)%s\n",
                test, bytes, chosen / best, name, (chosen > 1.1 * best) ? "  FAILED" : ""
            best = chosen = 0
        }
        {
            if ($1 " " $2 " " $3 != key) say()
            if ($1 " " $2 != size) { row(); size = $1 " " $2 }
            if ($1 " " $2 " " $3 != key) { key = $1 " " $2 " " $3; count = 0; test = $1; bytes = $2; way = $3 }
            values[++count] = $4
        }
        END { say(); row(); if (!size) print "FAILED: nothing was timed" }'
}

host() {
    local component=() status
    "$CABLEWAY" info --measure | sed -n '/^Host messages/,/^$/p' >"$results/host-times.txt"
    cat "$results/host-times.txt"
    cp "$CABLEWAY_COSTS_FOLDER"/host-*.txt "$results/" 2>/dev/null
    host_ways >"$results/host-ways.txt"
    cat "$results/host-ways.txt"
    failed=$((failed + $(grep -c FAILED "$results/host-ways.txt")))
    [ ! -e "$CARRY/mpi/libcableway_ompi.so" ] || component=(--component "$CARRY/mpi/libcableway_ompi.so")
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 XDG_CACHE_HOME="$CARRY/cache" \
        timeout -k 5 "${HOST_LIMIT:-500}" "$CABLEWAY" bench compare "${component[@]}" --save "$results" --strict \
        --rounds "${HOST_ROUNDS:-9}" --seconds "${HOST_SECONDS:-0.05}" --test latency,message-rate,bandwidth \
        --route sm --up-to 64M >"$results/host.txt" 2>"$results/host-lost.txt"
    status=$?
    cat "$results/host.txt"
    # With --strict a slower figure is an error, named in the last lines.
    sed -n '/figures are slower/,$p' "$results/host-lost.txt"
    [ $status = 0 ] && ok=$((ok + 1)) || failed=$((failed + 1))
}
