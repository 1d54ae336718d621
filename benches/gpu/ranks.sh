# The section `ranks` of benches/gpu/run, which sources this and says what it does.

# The most microseconds of a step of 8 bytes around eight ranks on two devices.
readonly RANKS_TARGET=30

ranks() {
    local count bytes on table="$results/ranks.txt"
    for bytes in 8 65536; do
        for count in 2 3 4 6 8; do
            for on in 1 2; do
                [ "$devices" -ge $on ] || continue
                timeout -k 5 60 "$CABLEWAY" run -n "$count" --bind core -- "$CARRY/ring" 1000 "$bytes" $on || echo "FAILED"
            done
        done
    done >"$table" 2>&1
    cat "$table"
    failed=$((failed + $(grep -c '^FAILED' "$table")))
    [ "$devices" -lt 2 ] ||
        awk -v target=$RANKS_TARGET '/^8 ranks on 2 devices, 8 B/ { met = $8 <= target } END { exit !met }' "$table" || {
        echo "8 ranks on 2 devices, 8 B: a step may take $RANKS_TARGET us: FAILED"
        failed=$((failed + 1))
    }
}
