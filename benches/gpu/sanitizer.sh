# The section `sanitizer` of benches/gpu/run, which sources this and says what it does.

# Programs of two ranks under a tool of `compute-sanitizer`, whose findings are failures. Errors that the driver returns are
# answers to questions, such as whose memory an address is. Arguments: tool, label, then the command.
sanitized() {
    local tool=$1 label=$2 log
    shift 2
    row "${SANITIZER_LIMIT:-100}" "$tool $label" "$@" </dev/null
    log="$results/log/$(tr -c 'A-Za-z0-9\n' _ <<<"$tool $label").txt"
    # The tool says at the end what it found, once for each process that it was started for.
    grep -ah ' SUMMARY: ' "$log" | sort | uniq -c | sed 's/^/        /'
    ! grep -aqE ' SUMMARY: [1-9]' "$log" || echo "        the tool found something: FAILED"
    grep -aq ' SUMMARY: ' "$log" || echo "        the tool said nothing: FAILED"
}

# The library's messages, puts and collectives. Argument: tool, which the caller starts by `own`.
sanitizer_library() {
    local tool=$1 layout test mode
    for layout in "" "--datatype vector:64:256:16"; do
        sanitized "$tool" "messages ${layout#*:}" "${own[@]}" "$CABLEWAY" pingpong --btl sm --src device --dst device $(rma_place) $layout \
            --sizes 256,4K,300K --iterations 4 --check
    done
    for test in put get am; do
        sanitized "$tool" "$test" "${own[@]}" "$CABLEWAY" pingpong --btl sm --test $test --src device --dst device $(rma_place) \
            --sizes 8,4K,300K --iterations 4 --check
    done
    for mode in calls prepared graph put late; do
        sanitized "$tool" "streams, $mode" "${own[@]}" "$CABLEWAY" pingpong --btl sm --stream=$mode --src device --dst device \
            $(stream_place) --sizes 8,4K,300K --steps 10 --iterations 20 --check
    done
    sanitized "$tool" "collectives of the library" "${own[@]}" "$CABLEWAY" collectives --memory device --check --seconds 0.001 \
        --sizes 8,64K,1M
}

# Open MPI's programs. Argument: tool, which the caller starts by `own`.
sanitizer_mpi() {
    local tool=$1 program
    [ ${#stream_mpirun[@]} != 0 ] || { echo "no Open MPI here, or none packed for"; return 0; }
    while read -r program; do
        # shellcheck disable=SC2086 # a program and its arguments
        sanitized "$tool" "$program" "${stream_mpirun[@]}" --mca pml_cableway_coll_performer cableway "${own[@]}" "$CARRY/mpi/"$program
    done <<<"${SANITIZER_PROGRAMS:-reductions sample 1
movement sample 1
exposed
exposed_accumulates
streams single
streams_collectives single
mp single
mp_gds multiple
mp_kernel multiple $CARRY/mpi/mp_kernel.ptx 20
halo stream}"
}

sanitizer() {
    local tool own lane lanes=()
    command -v compute-sanitizer >/dev/null || { echo "no compute-sanitizer here"; return 0; }
    stream_find_mpi
    for tool in ${SANITIZER_TOOLS:-memcheck racecheck}; do
        own=(compute-sanitizer --tool "$tool" --target-processes all --report-api-errors no --error-exitcode 7)
        for lane in sanitizer_library sanitizer_mpi; do
            $lane "$tool" >"$results/log/$lane-$tool.txt" &
            lanes+=($!)
        done
    done
    wait "${lanes[@]}"
    cat "$results"/log/sanitizer_{library,mpi}-*.txt >"$results/sanitizer.txt"
    tally "$results/sanitizer.txt"
    failed=$((failed + $(grep -cE 'the tool (said nothing|found something): FAILED' "$results/sanitizer.txt")))
}
