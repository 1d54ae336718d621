# The section `rma` of benches/gpu/run, which sources this and says what it does.

# Targets of two devices: test, memory of both ranks, bytes, threads, then at most so many microseconds or at least so many
# operations a second. Those of host memory and of registrations count on every machine.
readonly RMA_TARGETS="put device device 8 1 6, put device device 64 1 9, put device device 4096 1 9, get device device 8 1 8,
    am host host 8 1 0.25, am device device 65536 1 9, register host host 8 1 0.3, register device device 8 1 0.3,
    put shared shared 8 1 0.22, put-rate shared shared 8 1 3000000, put-rate device device 8 1 1500000"

readonly RMA_SIZES=${RMA_SIZES:-8,64,4096,65536,1048576,16777216}
readonly RMA_PAIRS="host:host shared:shared device:device host:device device:host"

# Devices of both ranks: their own where there are enough.
rma_place() {
    [ "$devices" -ge 2 ] && echo "--src-device 0 --dst-device 1" || echo "--src-device 0 --dst-device 0"
}

# Every byte of puts, gets and active messages, in every pairing and by every path.
rma_checks() {
    local btl test pair settings sizes often
    for btl in sm tcp; do
        for settings in "" "--set device_protocols=copy"; do
            for test in put get am; do
                for pair in $RMA_PAIRS; do
                    while read -r sizes often; do
                        # shellcheck disable=SC2046,SC2086 # lists of words
                        row 60 "rma check $btl $test ${pair/:/->} $sizes ${settings#--set }" "$CABLEWAY" pingpong \
                            --btl $btl --test $test --src "${pair%:*}" --dst "${pair#*:}" $(rma_place) --sizes $sizes \
                            --iterations $often --check $settings
                    done <<<"${RMA_CHECKS:-0..64K 20
1M,16M 4}"
                done
            done
        done
    done
}

# The jobs of several processes, on this driver.
rma_jobs() {
    local group driver=${CABLEWAY_CUDA_LIBDIR:-}
    [ -n "$driver" ] || driver=$(dirname "$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .* => //p' | head -n 1)")
    for group in one_sided active; do
        row 300 "rma jobs $group" env CABLEWAY_CUDA_LIBDIR="$driver" "$CARRY/tests/cableway.jobs" --test-threads=1 "$group::"
        grep -aE '^test result|SKIPPED' "$results/log/rma_jobs_$group.txt" | sed 's/^/        /'
    done
}

# Prints a line for each size: who, test, memory of both ranks, bytes, threads, value. Arguments: who, test, pair, sizes,
# threads, more options.
rma_time() {
    local who=$1 test=$2 pair=$3 sizes=$4 threads=$5 cores=(taskset -c 0,1) several=()
    shift 5
    [ "$threads" = 1 ] || { cores=() && several=(--threads "$threads"); }
    # shellcheck disable=SC2046 # a list of words
    timeout -k 5 60 "${cores[@]}" "$CABLEWAY" pingpong --btl sm --test "$test" --src "${pair%:*}" --dst "${pair#*:}" \
        $(rma_place) --sizes "$sizes" --seconds "${RMA_SECONDS:-0.05}" "${several[@]}" "$@" 2>>"$results/log/rma-errors.txt" |
        sed -nE "s/^([0-9]+) +([0-9.]+)\$/$who $test ${pair/:/ } \1 $threads \2/p"
    [ "${PIPESTATUS[0]}" = 0 ] || echo "FAILED: $who $test $pair"
}

# The same by ucx_perftest, if it is there: one pair of processes for all sizes. Both sides read the tests from a file.
rma_ucx() {
    local pair=$1 root size test often batch="$results/log/rma-batch.txt" port server kinds
    root=$(echo "$CARRY"/cache/cableway/peers/ucx-*)
    [ -x "$root/libucx/bin/ucx_perftest" ] || return 0
    local tls=posix,cma,self
    [ "$pair" = "${pair//device/}" ] || tls=sm,cuda_copy,cuda_ipc,self
    # Its host memory is shared memory.
    kinds=${pair//device/cuda} kinds=${kinds//shared/host}
    for size in ${RMA_SIZES//,/ }; do
        often=$((5000000000 / (size + 2000000)))
        for test in put:ucp_put_lat: get:ucp_get:"-O 1" am:ucp_am_lat: put-rate:ucp_put_bw: get-rate:ucp_get:"-O 64" am-rate:ucp_am_bw:; do
            echo "${test%%:*}/$size -t $(cut -d: -f2 <<<"$test") ${test##*:} -s $size -n $often -w $((often / 10 + 1)) -m ${kinds/:/,}"
        done
    done >"$batch"
    local ucx=(env LD_LIBRARY_PATH="$root/libucx/lib:$root/libucx_cu13.libs" UCX_MODULE_DIR="$root/libucx/lib/ucx" UCX_TLS=$tls)
    port=$((20000 + RANDOM % 10000))
    CUDA_VISIBLE_DEVICES=$((devices > 1)) timeout -k 5 60 "${ucx[@]}" "$root/libucx/bin/ucx_perftest" -q -p $port -b "$batch" -c 0 \
        >>"$results/log/rma-ucx.txt" 2>&1 &
    server=$!
    # In the kernel's table of sockets, 0A is one that listens.
    until grep -q ":$(printf %04X $port) 00000000:0000 0A" /proc/net/tcp || ! kill -0 $server 2>/dev/null; do sleep 0.02; done
    CUDA_VISIBLE_DEVICES=0 timeout -k 5 60 "${ucx[@]}" "$root/libucx/bin/ucx_perftest" 127.0.0.1 -p $port -f -v -b "$batch" -c 1 \
        2>>"$results/log/rma-ucx.txt" | awk -F, -v pair="${pair/:/ }" 'split($1, test, "/") == 2 && $2 + 0 > 0 {
            print "ucx", test[1], pair, test[2], 1, test[1] ~ /rate/ ? $9 : $5 }'
    wait $server
}

# Everything once.
rma_round() {
    local pair test count
    for pair in $RMA_PAIRS; do
        for test in put get am latency put-rate get-rate am-rate bandwidth; do
            rma_time cableway $test $pair $RMA_SIZES 1
        done
        rma_ucx $pair
        rma_time cableway register $pair 8,1048576 1
    done
    for test in put get am; do
        rma_time staged $test device:device $RMA_SIZES 1 --set device_protocols=copy
    done
    for test in put-rate am-rate; do
        for count in 1 2 4 8 16; do
            pair=host:host
            [ $test = am-rate ] || pair=shared:shared
            rma_time threads $test $pair 8 $count
            rma_time workers $test $pair 8 $count --workers
        done
    done
}

# Prints the table of medians. The word FAILED marks a missed target.
rma_table() {
    awk -v targets="$RMA_TARGETS" -v devices="$devices" -v cores="$cores" "$MEDIAN"'
        function shown(value) { return value ? sprintf((value < 1000 ? "%.3f" : "%.0f"), value) : "-" }
        /^FAILED/ { print; next }
        { key = $2 " " $3 " " $4 " " $5 " " $6; if (!(key in seen)) { seen[key] = 1; keys[++count] = key }; all[$1, key] = all[$1, key] " " $7 }
        END {
            for (n = split(targets, rows, ","); n; n--) { split(rows[n], w, " "); target[w[1] " " w[2] " " w[3] " " w[4] " " w[5]] = w[6] }
            printf "%-10s %-16s %9s %12s %12s %12s %12s %10s\n", "test", "memory", "bytes", "cableway", "messages", "ucx", "staged", "target"
            for (i = 1; i <= count; i++) {
                key = keys[i]; split(key, w, " "); rate = w[1] ~ /rate/
                ours = median(all["cableway", key])
                if (!ours || w[1] == "latency" || w[1] == "bandwidth") continue
                # Of the bandwidth of messages, the rate.
                beside = w[2] " " w[3] " " w[4] " " w[5]
                message = rate ? median(all["cableway", "bandwidth " beside]) * 1e6 / w[4] : median(all["cableway", "latency " beside])
                if (w[1] == "register") message = 0
                missed = target[key] && (rate ? ours < target[key] : ours > target[key])
                # Large puts and gets have the bandwidth of messages.
                missed = missed || (w[1] ~ /^(put|get)-rate/ && w[4] >= 1048576 && ours < 0.95 * message)
                counts = devices > 1 || (w[2] " " w[3]) !~ /device/ || w[1] == "register"
                printf "%-10s %-16s %9d %12s %12s %12s %12s %10s %s\n", w[1], w[2] "->" w[3], w[4], shown(ours), shown(message),
                    shown(median(all["ucx", key])), shown(median(all["staged", key])), target[key],
                    (!missed ? "" : (counts ? "FAILED" : "missed, but there is one device"))
            }
            print ""
            for (i = 1; i <= count; i++) {
                key = keys[i]; split(key, w, " "); ours = median(all["workers", key]); shared = median(all["threads", key])
                if (!ours) continue
                if (w[5] == 1) { one[w[1]] = ours; one_shared[w[1]] = shared }
                grown = one[w[1]] ? ours / one[w[1]] : 0
                missed = w[5] == 16 && grown < 8
                printf "%-10s of 8 B from %2d threads: %12.0f a second with a worker each, %6.2f of one thread; %12.0f in one world, %6.2f%s\n",
                    w[1], w[5], ours, grown, shared, (one_shared[w[1]] ? shared / one_shared[w[1]] : 0),
                    (!missed ? "" : (cores >= 32 ? "  FAILED" : "  missed, but there are " cores " cores"))
            }
            if (!count) print "FAILED: nothing was timed"
        }' "$1"
}

rma() {
    local round
    rma_checks >"$results/rma-checks.txt"
    rma_jobs >>"$results/rma-checks.txt"
    tally "$results/rma-checks.txt"
    "$CABLEWAY" info --measure >/dev/null
    for round in $(seq "${RMA_ROUNDS:-3}"); do
        rma_round
    done >"$results/log/rma-times.txt"
    echo "Microseconds, and operations a second of the tests whose name ends in -rate; medians of ${RMA_ROUNDS:-3} rounds" >"$results/rma.txt"
    rma_table "$results/log/rma-times.txt" >>"$results/rma.txt" || echo "FAILED: there is no table" >>"$results/rma.txt"
    verdict rma
}
