# The section `order` of benches/gpu/run, which sources this and says what it does.

order() {
    local round value
    for ((round = 0; round < ${ORDER_ROUNDS:-7}; round++)); do
        for value in auto legacy none; do
            timeout -k 5 30 "$CABLEWAY" pingpong --btl sm --src device --dst host --sizes 8,4K,64K,1M \
                --set "default_stream_order=$value" | sed -nE "s/^([0-9]+) +([0-9.]+)\$/\1 $value \2/p"
        done
    done >"$results/log/order.txt"
    sort -k1,1n -k2,2 -k3,3g "$results/log/order.txt" | awk '
        function say() { if (key != "") printf "%-20s %8.2f us (%.2f to %.2f)\n", key, times[int((count + 1) / 2)], times[1], times[count] }
        { now = $1 " B, " $2; if (now != key) { say(); key = now; count = 0 } times[++count] = $3 }
        END { say() }' | tee "$results/order-latency.txt"
    local check=(pingpong --btl sm --src device --dst host --sizes 1K,64K,1M --iterations 1000 --check)
    {
        for value in auto legacy; do
            row 60 "data right after its copy, $value" "$CABLEWAY" "${check[@]}" --set default_stream_order=$value
        done
        # How often a copy that follows at once is too early, with the attribute and without.
        row 120 "copies that are too early" "$CARRY/device_facts" order
        grep -a 'stale of' "$results/log/copies_that_are_too_early.txt" | sed 's/^/        /'
    } >"$results/order.txt"
    tally "$results/order.txt"
}
