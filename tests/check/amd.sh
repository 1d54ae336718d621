# The device suites on the simulated HIP library. Sourced by ./check.

# What does not apply to AMD devices, by the reason:
# - contexts of the program's own, which HIP does not have, and device resets, which it does not report;
# - memory of pools and of virtual memory management that is passed by descriptor, the resident copier, mappings for the
#   CPU, dma-bufs that the CPU maps: not implemented for this vendor;
# - allocations on which the driver completes synchronous calls: HIP has none;
# - counts and refusals of CUDA calls that HIP makes otherwise (batches of copies and of values, copies in rows, modules).
readonly AMD_EXCLUDED='binary(contexts) | binary(descriptors) | binary(pools) | binary(copier) | binary(mapped) | binary(direct)
    | binary(synchronised)
    | binary(values) | binary(batches) | binary(turns) | test(/context|inactive_primary|its_end_is|refuses_kernels|kernels_cannot/)
    | test(/new_id|own_memory|id_alone|known_together|pageable_memory_both|rows_are_gathered|between_two_devices|without_a_handle/)
    | test(/refused_operations_keep|required_calls|free_device_memory|programs_streams|small_lists_serves/)'

# The suites of the crates, and jobs with devices of both vendors, on one release of HIP; ./check all runs three.
amd() {
    local release releases=6
    ! all || releases='5 6 7'
    cargo nextest --version >/dev/null 2>&1 || { skip "there is no cargo-nextest to choose tests"; return 0; }
    for release in $releases; do
        echo "HIP $release"
        # shellcheck disable=SC2046 # a list of options
        CABLEWAY_TEST_VENDOR=amd SIM_HIP_VERSION=$release cargo nextest run $(everything) --no-fail-fast -E "
            package(cableway-common-cuda) & kind(test) & not ($AMD_EXCLUDED)
            | package(cableway-datatype) & binary(/device|kernels/) & not test(a_refused_copy_is)
            | package(cableway-pml) & binary(/device|irregular/) & not test(every_pairing_over_every)
            | binary(jobs) & test(/^(mixed|device)::/)"
    done
}
