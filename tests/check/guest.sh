# Runs tests that need verbs in an emulated machine with soft-RoCE. Sourced by ./check.
guest() {
    local reason status=0 short=(--short)
    ! all || short=()
    reason=$(no_bindings)
    [ -z "$reason" ] || { skip "$reason"; return 0; }
    tests/rxe-guest/all "${short[@]}" || status=$?
    [ $status != 77 ] || { skip "the guest cannot run here; the reason is above"; return 0; }
    return $status
}
