# The needs of the checks: Debian packages, disk space, cargo tools. Sourced by ./check.

readonly CARGO_DENY=0.20.2 CARGO_FUZZ=0.13.2
readonly TOOLS="${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/cableway/tools"
# The gigabytes that a first run writes.
readonly ROOM=8

# command or library -> its Debian package
readonly NEEDS=(
    ip:iproute2 tc:iproute2 nft:nftables mpirun:openmpi-bin mpicc:libopenmpi-dev mpiexec.hydra:mpich mpicc.mpich:libmpich-dev NPopenmpi:netpipe-openmpi g++:g++ libpmix.so.2:libpmix-dev
    slurmctld:slurmctld slurmd:slurmd srun:slurm-client mpi_pmix.so:slurm-wlm-basic-plugins
    debootstrap:debootstrap python3-config:python3-dev venv:python3-venv
    clang-19:clang-19 ld.lld-19:lld-19 cmake:cmake libclang:libclang-dev libibverbs.so.1:ibverbs-providers ib_send_lat:perftest
    qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio modprobe:kmod xz:xz-utils
)

present() {
    case $1 in
    libclang) has_libclang ;;
    mpi_pmix.so) compgen -G '/usr/lib/*/slurm*/mpi_pmix.so' >/dev/null ;;
    venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *.so.*) ldconfig -p 2>/dev/null | grep -q "$1" || compgen -G "/usr/lib/*/pmix*/lib/$1" >/dev/null ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

missing_packages() {
    local need
    for need in "${NEEDS[@]}"; do
        present "${need%%:*}" || echo "${need#*:}"
    done | sort -u | tr '\n' ' '
}

# As root or in CI, packages are installed. Otherwise one line names them.
needs() {
    local packages as_root=()
    room
    packages=$(missing_packages)
    [ -n "$packages" ] || return 0
    if ! command -v apt-get >/dev/null; then
        skip "no apt-get here; the tests of what these packages hold skip themselves: $packages"
        return 0
    fi
    if [ "$(id -u)" != 0 ]; then
        if [ "${CI:-}" != true ]; then
            skip "to run the tests that need them: sudo apt-get install -y $packages"
            return 0
        fi
        as_root=(sudo -n)
    fi
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a list of packages
    "${as_root[@]}" apt-get install -y -q --no-install-recommends $packages ||
        { "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -y -q --no-install-recommends $packages; } ||
        skip "could not be installed, so the tests that need them skip themselves: $packages"
}

# A full disk would make later steps fail with misleading errors.
room() {
    local free
    [ ! -d "$CHECKS_TARGET/debug/deps" ] || return 0
    free=$(df --output=avail -BG "$CHECKS_TARGET" | tail -n 1 | tr -dc 0-9)
    [ "$free" -ge "$ROOM" ] || { echo "all steps together write $ROOM GB to $CHECKS_TARGET, where $free GB are free"; return 1; }
}

# Tools for the checks, built once for this user and kept outside of target/.
tools() {
    install_tool cargo-deny "$CARGO_DENY" || skip "cargo-deny $CARGO_DENY could not be built"
    install_tool cargo-fuzz "$CARGO_FUZZ" || skip "cargo-fuzz $CARGO_FUZZ could not be built"
}

# Not optimised: they run for seconds, and optimising takes minutes.
install_tool() {
    local name=$1 version=$2
    grep -qs "\"$name $version " "$TOOLS/.crates2.json" && [ -x "$TOOLS/bin/$name" ] && return 0
    RUSTFLAGS='' cargo install --debug --locked --root "$TOOLS" --target-dir "$CHECKS_TARGET/tools" --version "$version" "$name"
    rm -rf "$CHECKS_TARGET/tools"
}
