# Runs steps, each in a separate shell with its own log, and reports the results. Sourced by ./check.

# Called within a step: reports that a part is skipped, and the reason.
skip() {
    echo "step skipped: $*"
}

# Whether everything is tested, and not only a part.
all() {
    [ "$ALL" = yes ]
}

# Runs both lanes at once. The second one is a process group, which ends with this shell.
run_lanes() {
    local second
    set -m
    run_lane "${SECOND_LANE[@]}" &
    second=$!
    set +m
    # shellcheck disable=SC2064 # the process as it is now
    trap "kill -- -$second 2>/dev/null || true" EXIT
    trap 'exit 130' INT TERM
    run_lane "${LANE[@]}"
    wait "$second" || true
    trap - EXIT INT TERM
}

# Runs one step after the other, whether or not they pass. It must not be called in a condition, and no step either: bash
# ignores errexit in all that a condition calls, in subshells too, and a step would go on after a failure.
run_lane() {
    local step
    for step in "$@"; do
        run_step "$step"
    done
}

# Whether all of these steps have passed.
passed() {
    local step status _
    for step in "$@"; do
        read -r status _ <"$LOGS/$step.result"
        [ "$status" = 0 ] || return 1
    done
}

# Stores the step's status, seconds and processor seconds in STEP.result.
run_step() {
    local name=$1 log=$LOGS/$1.log began=$SECONDS status ignored
    rm -f "$LOGS/$name.times"
    # The step's own shell ends at the first failure, this one does not.
    set +e
    ignored=$(set -e; false; echo yes)
    [ -z "$ignored" ] || { echo "step $name was called in a condition, where errexit has no effect" >&2; exit 2; }
    (
        set -euo pipefail
        trap 'times >"$LOGS/$name.times"' EXIT
        "$name"
    ) >"$log" 2>&1
    status=$?
    set -e
    echo "$status $((SECONDS - began)) $(processor_seconds "$LOGS/$name.times")" >"$LOGS/$name.result"
    printf '%-9s %-6s %5d s\n' "$name" "$([ $status = 0 ] && echo ok || echo FAILED)" $((SECONDS - began))
}

# The second line of the output of `times`: user and system time of the children.
processor_seconds() {
    awk 'NR == 2 { for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } } END { printf "%d\n", sum }' "$1"
}

# ----------------------------------------------------------------------------------------------------------- the report

# Reports the results of these steps: output of failed ones, a table, reasons for skips, and the totals in the last
# line.
report() {
    local step bad=() sum_passed=0 sum_failed=0 sum_skipped=0 passed failed skipped status took used
    local row='%-9s %-6s %7s %7s %8s %7s %8s\n'
    for step in "$@"; do
        read -r status took used <"$LOGS/$step.result"
        [ "$status" = 0 ] || { bad+=("$step"); echo; echo "--- $LOGS/$step.log ends so:"; tail -n 200 "$LOGS/$step.log"; }
    done
    echo
    # shellcheck disable=SC2059 # one format for all rows
    printf "$row" step result seconds 'CPU s' passed failed skipped
    for step in "$@"; do
        read -r status took used <"$LOGS/$step.result"
        passed=0 failed=0 skipped=0
        count "$LOGS/$step.log"
        # A step that failed without a failed test counts as one failure.
        [ "$status" = 0 ] || [ $failed != 0 ] || failed=1
        # shellcheck disable=SC2059
        printf "$row" "$step" "$([ "$status" = 0 ] && echo ok || echo FAILED)" "$took" "$used" $passed $failed $skipped
        sum_passed=$((sum_passed + passed)) sum_failed=$((sum_failed + failed)) sum_skipped=$((sum_skipped + skipped))
    done
    echo
    reasons "${@/#/$LOGS/}"
    echo "$# steps in $SECONDS s; logs in $LOGS"
    for step in "${bad[@]}"; do
        failures "$step"
    done
    [ ${#bad[@]} = 0 ] || echo "FAILED: ${bad[*]}"
    echo "$sum_passed passed, $sum_failed failed, $sum_skipped skipped"
    [ ${#bad[@]} = 0 ] && [ $sum_failed = 0 ]
}

# Prints which tests of a step failed and what they said, since they may be far from the end of its log.
failures() {
    grep -aE -A 4 '^ *test .* FAILED$|panicked at|^error(\[|:)' "$LOGS/$1.log" | cut -c 1-300 | tail -n 60 | sed "s/^/$1: /" || true
}

# Adds the counts in a log to passed, failed and skipped. A test that could not run passes, and prints a line that
# begins with "skipped:"; it counts as skipped.
count() {
    local line
    while read -r line; do
        case $line in
        "Summary ["*) # nextest, which counts as skipped what was not asked for
            add passed 's/.* ([0-9]+) passed.*/\1/p'
            add failed 's/.* ([0-9]+) failed.*/\1/p'
            add failed 's/.* ([0-9]+) timed out.*/\1/p' ;;
        "test result:"*) # cargo test
            add passed 's/.* ([0-9]+) passed;.*/\1/p'
            add failed 's/.* ([0-9]+) failed;.*/\1/p'
            add skipped 's/.* ([0-9]+) ignored;.*/\1/p' ;;
        "mpi4py under cableway: "*)
            add passed 's/.* ([0-9]+) passed.*/\1/p'
            add failed 's/.* ([0-9]+) failed.*/\1/p' ;;
        "fuzz target "*": ok") passed=$((passed + 1)) ;;
        "fuzz target "*": FAILED") failed=$((failed + 1)) ;;
        "step skipped: "*) skipped=$((skipped + 1)) ;;
        "skipped "[0-9]*) add skipped 's/^skipped ([0-9]+): .*/\1/p' ;;
        [sS][kK]*)
            skipped=$((skipped + 1))
            passed=$((passed - 1)) ;;
        esac
    done < <(interesting "$1")
}

# Stores the result of a sed command on the line in a variable.
add() {
    local number
    number=$(sed -nE "$2" <<<"$line")
    printf -v "$1" %d $((${!1} + ${number:-0}))
}

# Indented results belong to test processes that a test started.
interesting() {
    grep -aE '^ +Summary \[|^(test result:|mpi4py under cableway|fuzz target .*: (ok|FAILED)|step skipped: |skipped [0-9]+: )|^ *(skipped: |SKIPPED: )' "$1" || true
}

# Lists the reasons for skips in these logs, with their numbers.
reasons() {
    local log
    for log; do
        interesting "$log.log"
    done | sed -nE 's/^ *(step )?(skipped|SKIPPED): /1 /p; s/^skipped ([0-9]+): /\1 /p; /ignored;/ s/.* ([1-9][0-9]*) ignored;.*/\1 marked #[ignore]/p' |
        sed "s/&apos;/'/g; s/&quot;/\"/g; s/&lt;/</g; s/&gt;/>/g; s/&amp;/\&/g" |
        awk '{ n = $1; sub(/^[0-9]+ /, ""); count[$0] += n } END { for (why in count) printf "%6d skipped: %s\n", count[why], why }' |
        sort -k1,1nr -k2
}
