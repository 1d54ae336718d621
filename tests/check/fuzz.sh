# Fuzzes every parser of bytes from a peer. A passing target counts as a passed test. Sourced by ./check.
fuzz() {
    export PATH="$TOOLS/bin:$PATH" RUSTC_BOOTSTRAP=1
    command -v cargo-fuzz >/dev/null || { skip "there is no cargo-fuzz"; return 0; }
    command -v g++ >/dev/null || { skip "libFuzzer needs a C++ compiler"; return 0; }
    local reason targets target crashed=0 features=() folder=$CHECKS_TARGET/fuzz
    targets=$(cargo fuzz list)
    reason=$(no_bindings)
    if [ -n "$reason" ]; then
        skip "$reason: targets openib_*"
        features=(--no-default-features)
        targets=$(grep -v ^openib_ <<<"$targets")
    fi
    cargo fuzz build "${features[@]}" --target-dir "$folder"
    folder=$folder/$(rustc -vV | sed -n 's/^host: //p')/release
    for target in $targets; do
        # Two targets at a time.
        [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n || crashed=1
        fuzz_one "$folder" "$target" &
    done
    while [ -n "$(jobs -p)" ]; do
        wait -n || crashed=1
    done
    return $crashed
}

fuzz_one() {
    local folder=$1 target=$2 seconds=3 log
    ! all || seconds=60
    seconds=${FUZZ_SECONDS:-$seconds} log=$LOGS/fuzz-$target.log
    mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
    if timeout -k 5 $((10 * seconds + 300)) "$folder/$target" -artifact_prefix="fuzz/artifacts/$target/" \
        -max_total_time="$seconds" -timeout=60 -rss_limit_mb=2048 "fuzz/corpus/$target" >"$log" 2>&1; then
        echo "fuzz target $target: ok"
    else
        cat "$log"
        echo "fuzz target $target: FAILED"
        return 1
    fi
}
