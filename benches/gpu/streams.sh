# The section `streams` of benches/gpu/run, which sources this and says what it does.

# Targets for two devices: figure, way, bytes, at most so many microseconds. `size` stands for 1.05 of the time of messages of
# that size, `kernel` for the time of the kernel and 8.
readonly STREAM_TARGETS="latency calls 8 9, latency prepared 8 7.5, latency graph 8 7.5, latency late 8 16,
    latency put 8 6,
    latency calls 65536 size, latency calls 1048576 size, latency prepared 65536 size, latency prepared 1048576 size,
    latency graph 65536 size, latency graph 1048576 size, latency calls+kernel 8 kernel, latency prepared+kernel 8 kernel,
    send_call_us calls 8 4, recv_call_us calls 8 4, send_call_us prepared 8 2.5, recv_call_us prepared 8 1,
    batched_write_us prepared 8 0.5"

readonly STREAM_SIZES=${STREAM_SIZES:-8,65536,1048576} STREAM_KERNEL=${STREAM_KERNEL:-10}
# Seconds of each figure.
readonly STREAM_SECONDS=${STREAM_SECONDS:-0.05}

stream_place() {
    [ "$devices" -ge 2 ] && echo "--src-device 0 --dst-device 1" || echo "--src-device 0 --dst-device 0"
}

# Every byte of the messages of each mode. Arguments: label, modes, then options.
stream_checks() {
    local label=$1 modes=$2 mode pair
    shift 2
    for mode in $modes; do
        for pair in device:device host:device device:pinned; do
            [ "$mode" != graph ] || [ $pair = device:device ] || continue
            # shellcheck disable=SC2046 # a list of words
            row 60 "streams check $label $mode ${pair/:/->}" "$CABLEWAY" pingpong --stream="$mode" --src ${pair%:*} \
                --dst ${pair#*:} $(stream_place) --sizes 1,8,63,4K,64K,300K,1M --steps 20 --iterations 40 --check "$@"
        done
    done
}

stream_checks_sm() { stream_checks sm "calls prepared graph put late" --btl sm; }
stream_checks_tcp() { stream_checks tcp "calls prepared put late" --btl tcp; }
stream_checks_copy() { stream_checks copy "calls prepared put late" --btl sm --set device_protocols=copy; }

# Data and its signal, in both directions: STREAM_ORDER messages each way, each of its own content, through one buffer.
stream_order() {
    local mode
    for mode in prepared graph put; do
        # shellcheck disable=SC2046 # a list of words
        row 60 "streams order of data and signals, $mode" "$CABLEWAY" pingpong --btl sm --stream=$mode --src device --dst device \
            $(stream_place) --sizes 8 --iterations "${STREAM_ORDER:-100000}" --check
    done
}

# The jobs of several processes, on this driver.
stream_jobs() {
    local driver=${CABLEWAY_CUDA_LIBDIR:-}
    [ -n "$driver" ] || driver=$(dirname "$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .* => //p' | head -n 1)")
    row "${STREAM_JOBS_LIMIT:-100}" "streams jobs" env CABLEWAY_CUDA_LIBDIR="$driver" \
        "$CARRY/tests/cableway.jobs" --test-threads=2 streams::
    grep -aE '^test result|SKIPPED' "$results/log/streams_jobs.txt" | sed 's/^/        /'
}

# How often the thread of streams wakes up while no stream has work.
stream_idle() {
    local log=$results/log/streams_without_work.txt
    [ ${#stream_mpirun[@]} != 0 ] || return 0
    row 60 "streams without work" "${stream_mpirun[@]}" "$CARRY/mpi/stream_peers" idle 10 0 8
    grep -q ' 0 wake-ups' "$log" || echo "        the thread woke up, or nothing was counted: FAILED"
    grep -a 'wake-ups' "$log" | sed 's/^/        /'
}

# Sets what starts MPI programs with Cableway's component, if there is an MPI.
stream_find_mpi() {
    local name work=$results/log/streams-mca
    stream_mpirun=()
    command -v mpirun >/dev/null && [ -e "$CARRY/mpi/stream_peers" ] || return 0
    mkdir -p "$work"
    for name in mca_pml_cableway.so mca_coll_cableway.so mca_osc_cableway.so; do
        ln -sf "$CARRY/mpi/libcableway_ompi.so" "$work/$name"
    done
    # A thread of each rank moves messages of streams, so that one core would be too few.
    # NVLink multicast stays off: where it fails, it fails for all users of the devices.
    stream_mpirun=(env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1
        NVSHMEM_REMOTE_TRANSPORT=none NVSHMEM_SYMMETRIC_SIZE=64M NCCL_LIBRARY="$(nccl_library)"
        NVSHMEM_LIBRARY="$(stream_nvshmem)" mpirun --oversubscribe --mca mca_base_component_path
        "$work:$(ompi_info --path pkglibdir --parsable | sed 's/.*://')" --mca pml cableway --bind-to none -np 2)
}

# Where NVSHMEM is: `python3` may have it from PyTorch.
stream_nvshmem() {
    [ -z "${NVSHMEM_LIBRARY:-}" ] || { echo "$NVSHMEM_LIBRARY"; return; }
    python3 -c 'import nvidia.nvshmem; print(list(nvidia.nvshmem.__path__)[0] + "/lib/libnvshmem_host.so.3")' 2>/dev/null
}

# Prints a line for each figure: its name, way, bytes, value. Arguments: way, sizes, more options.
stream_time() {
    local way=$1 sizes=$2
    shift 2
    # shellcheck disable=SC2046 # a list of words
    timeout -k 5 60 "$CABLEWAY" pingpong --btl sm --src device --dst device $(stream_place) --sizes "$sizes" \
        --seconds "$STREAM_SECONDS" --format csv "$@" 2>>"$results/log/streams-errors.txt" | awk -F, -v way="$way" '
        NR == 1 { for (i = 1; i <= NF; i++) name[i] = $i; next }
        {
            for (i = 1; i <= NF; i++) row[name[i]] = $i
            print "latency", way, row["size"], row["value"]
            for (i = 1; i <= NF; i++) if (name[i] ~ /_us$|moved_by/) print name[i], way, row["size"], row[name[i]]
        }'
    [ "${PIPESTATUS[0]}" = 0 ] || echo "FAILED: $way"
}

# The first line of a program that is not mpirun's.
stream_reason() {
    grep -avE '^ *$|^--|MPI_ABORT|errorcode' "$1" | head -n 1
}

# The same by a way of benches/peers/streams.c. A peer that cannot run here is told, and is not a failure.
stream_peer() {
    local way=$1 log="$results/log/streams-$1.txt"
    [ ${#stream_mpirun[@]} != 0 ] || return 0
    timeout -k 5 60 "${stream_mpirun[@]}" "$CARRY/mpi/stream_peers" "$way" "$STREAM_SECONDS" "$STREAM_KERNEL" "$STREAM_SIZES" \
        >"$log" 2>&1
    case $? in
    0) awk 'NF == 5 && $2 + 0 > 0 { print "latency", $1, $2, $3; print "send_call_us", $1, $2, $4; print "recv_call_us", $1, $2, $5 }' "$log" ;;
    *) case $way in
        mpi | enqueue) echo "FAILED: $way: $(stream_reason "$log")" ;;
        *) echo "absent $way: $(stream_reason "$log")" ;;
        esac ;;
    esac
}

# The driver's stream operations alone, between two devices: the floor of what streams can do without a kernel that waits.
stream_floor() {
    [ "$devices" -ge 2 ] && [ -e "$CARRY/stream_words" ] || return 0
    timeout -k 5 60 "$CARRY/stream_words" "$STREAM_SIZES" "$STREAM_SECONDS" 2>>"$results/log/streams-errors.txt" |
        awk '{ print "latency", "bare-" $1 "-" $2, $3, $4 }'
    [ "${PIPESTATUS[0]}" = 0 ] || echo "FAILED: stream_words"
}

stream_round() {
    local mode way
    stream_time messages "$STREAM_SIZES"
    for mode in calls prepared graph put late; do
        stream_time $mode "$STREAM_SIZES" --stream=$mode
    done
    for mode in host calls prepared graph; do
        stream_time $mode+kernel 8 --stream=$mode --kernel "$STREAM_KERNEL"
    done
    stream_floor
    stream_peer mpi
    stream_peer enqueue
    # Each of their ranks needs a device.
    [ "$devices" -ge 2 ] || return 0
    for way in nccl pairs one-way nvshmem; do
        stream_peer $way
    done
}

# Prints the table of medians. The word FAILED marks a missed target.
stream_table() {
    awk -v targets="$STREAM_TARGETS" -v devices="$devices" -v kernel="$STREAM_KERNEL" "$MEDIAN"'
        # A value, and its target if there is one.
        function shown(figure, key, value, limit, way) {
            value = median(all[figure, key])
            if (!value) return "-"
            limit = target[figure " " key]
            split(key, way, " ")
            if (limit == "size") limit = 1.05 * median(all["latency", "messages " way[2]])
            if (limit == "kernel") limit = kernel + 8
            if (limit && value > limit) missed = missed sprintf(" %s is over %.2f", figure, limit)
            return sprintf("%.2f%s", value, limit ? sprintf(" (%.2f)", limit) : "")
        }
        /^FAILED/ { print; next }
        /^absent/ { why[$2] = substr($0, 8); next }
        $1 == "moved_by" { moved[$2 " " $3] = $4; next }
        NF == 4 { key = $2 " " $3; if (!(key in seen)) { seen[key] = 1; keys[++count] = key }; all[$1, key] = all[$1, key] " " $4 }
        END {
            for (n = split(targets, rows, /, */); n; n--) { split(rows[n], w, " "); target[w[1] " " w[2] " " w[3]] = w[4] }
            printf "%-20s %8s %18s %14s %14s %14s %12s\n", "way", "bytes", "one way (target)", "send call", "receive call", "1 of 16", "moved by"
            for (i = 1; i <= count; i++) {
                key = keys[i]; split(key, w, " "); missed = ""
                printf "%-20s %8d %18s %14s %14s %14s %12s", w[1], w[2], shown("latency", key), shown("send_call_us", key),
                    shown("recv_call_us", key), shown("batched_write_us", key), moved[key] ? moved[key] : "-"
                print (missed == "" ? "" : (devices > 1 ? "  FAILED:" : "  with one device:") missed)
            }
            for (way in why) print "not here: " why[way]
            if (!count) print "FAILED: nothing was timed"
        }' "$1"
}

# LibMP-like patterns and the halo exchange, where they were packed. Their lines are shown as they are.
stream_programs() {
    local pattern way ways="stream mpi"
    [ ${#stream_mpirun[@]} != 0 ] || return 0
    if [ -e "$CARRY/mpi/mp_bench" ]; then
        for pattern in ${STREAM_MP_PATTERNS:-pingpong sendrecv produce-consume put get}; do
            timeout -k 5 30 "${stream_mpirun[@]}" "$CARRY/mpi/mp_bench" "$pattern" --kernel "$STREAM_KERNEL" \
                2>>"$results/log/streams-errors.txt" || echo "FAILED: mp_bench $pattern"
        done
    fi
    if [ -e "$CARRY/mpi/halo" ]; then
        [ "$devices" -lt 2 ] || ways+=" nccl"
        for way in $ways; do
            timeout -k 5 30 "${stream_mpirun[@]}" "$CARRY/mpi/halo" "$way" ${STREAM_HALO:-128 128 128 500} \
                2>>"$results/log/streams-errors.txt" || echo "FAILED: halo $way"
        done
    fi
    if [ -e "$CARRY/mpi/mp_kernel.ptx" ]; then
        timeout -k 5 60 "${stream_mpirun[@]}" "$CARRY/mpi/mp_kernel" multiple "$CARRY/mpi/mp_kernel.ptx" 200 \
            2>>"$results/log/streams-errors.txt" || echo "FAILED: messages that kernels start"
    fi
    if [ -e "$CARRY/mpi/mp_gds" ]; then
        timeout -k 5 60 "${stream_mpirun[@]}" "$CARRY/mpi/mp_gds" multiple \
            2>>"$results/log/streams-errors.txt" || echo "FAILED: LibGDSync's calls"
    fi
}

streams() {
    local lane lanes=() round began=$SECONDS
    stream_find_mpi
    for lane in stream_checks_sm stream_checks_tcp stream_checks_copy stream_order stream_jobs stream_idle; do
        "$lane" >"$results/$lane.txt" &
        lanes+=($!)
    done
    wait "${lanes[@]}"
    for lane in stream_checks_sm stream_checks_tcp stream_checks_copy stream_order stream_jobs stream_idle; do
        tally "$results/$lane.txt"
        failed=$((failed + $(grep -c 'counted: FAILED' "$results/$lane.txt")))
    done
    "$CABLEWAY" info --measure >/dev/null
    : >"$results/log/streams-times.txt"
    for round in $(seq "${STREAM_ROUNDS:-3}"); do
        # The first round always, later ones while there is time.
        [ "$round" = 1 ] || [ $((SECONDS - began)) -lt "${STREAM_LIMIT:-140}" ] || break
        stream_round >>"$results/log/streams-times.txt"
    done
    {
        echo "Microseconds, medians of up to ${STREAM_ROUNDS:-3} rounds; +kernel: with a kernel of $STREAM_KERNEL us in each step"
        stream_table "$results/log/streams-times.txt" || echo "FAILED: there is no table"
        stream_programs
    } >"$results/streams.txt"
    verdict streams
}
