# For the tables of sections of benches/gpu/run, which sources this.

# An awk function that returns the median of a list of numbers with blanks between them, 0 of an empty list.
readonly MEDIAN='
    function median(list, n, i, j, t, a) {
        n = split(list, a, " ")
        for (i = 2; i <= n; i++) for (j = i; j > 1 && a[j] + 0 < a[j - 1] + 0; j--) { t = a[j]; a[j] = a[j - 1]; a[j - 1] = t }
        return n ? a[int((n + 1) / 2)] : 0
    }'

# Prints the table of a section, and counts what failed in it, or the section as passed.
verdict() {
    local table="$results/$1.txt" lost
    cat "$table"
    lost=$(grep -c FAILED "$table")
    failed=$((failed + lost))
    if [ "$lost" = 0 ]; then
        ok=$((ok + 1))
    else
        cp "$results/log/$1-errors.txt" "$results/" 2>/dev/null
    fi
}
