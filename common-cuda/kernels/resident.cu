// The resident copier: a kernel that stays on the device for a while and makes small copies on command, without a
// launch for each. It is compiled like copy.cu. The structures below match those in common-cuda/src/copier/.
//
// Each group of lanes has a line of 64 bytes in host memory, which only the host writes: a command (with its number
// twice, so that a torn command is detected) and a word that ends the kernel. It also has a report, which only the
// group writes. The whole group reads its line repeatedly by one request. It ends when the kernel was idle for too long
// or has exceeded its lease, and then reports so after its last command. Commands with higher numbers were not begun
// and never will be, so the host uses another mechanism for them. No atomic operation crosses the bus.
//
// The source is read past the first cache, which does not see writes of others since this kernel began.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 u128 __attribute__((vector_size(16)));

#define DEVICE static inline __attribute__((device, always_inline))
#define KERNEL(threads) extern "C" __attribute__((global, launch_bounds(threads)))
#define MEMORY __attribute__((address_space(1)))

#ifdef __HIP__
#define LANES 64
#define THREAD __builtin_amdgcn_workitem_id_x()
DEVICE void barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
}
DEVICE void together(void) { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "wavefront"); }
DEVICE u32 of_lane(u32 value, u32 lane) { return (u32)__builtin_amdgcn_readlane((int)value, (int)lane); }
DEVICE void fence(void) { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }
// The constant clock of these devices has 100 MHz.
DEVICE u64 nanoseconds(void) { return __builtin_readcyclecounter() * 10; }
#else
#define LANES 32
#define THREAD (u32)__nvvm_read_ptx_sreg_tid_x()
DEVICE void barrier(void) { __syncthreads(); }
DEVICE void together(void) { __nvvm_bar_warp_sync(~0u); }
DEVICE u32 of_lane(u32 value, u32 lane) { return (u32)__nvvm_shfl_sync_idx_i32(~0u, (int)value, (int)lane, 31); }
DEVICE void fence(void) { __nvvm_membar_sys(); }
DEVICE u64 nanoseconds(void) {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
#endif

#define GROUPS 16
// The words of a line: the addresses to read and to write, the length and twice the number of a command; the end.
#define LINE 64
#define STOP 8
// Words of a report.
#define STARTED 0
#define DONE 1
#define ENDED 2

struct Resident {
    // The lines of all groups, and their reports, which have the same size.
    u64 lines, reports;
    // Nanoseconds.
    u64 idle, lease;
    // The number of the launch.
    u32 number;
};

// Copies elements of one type, with eight in flight at a time.
template <typename T> DEVICE void elements(u64 to, u64 from, u32 count, u32 lane) {
    T MEMORY *dst = (T MEMORY *)to;
    const volatile T MEMORY *src = (const volatile T MEMORY *)from;
    u32 i = lane;
    for (; i + 7 * LANES < count; i += 8 * LANES) {
        T value[8];
#pragma unroll
        for (u32 k = 0; k < 8; k++) value[k] = src[i + k * LANES];
#pragma unroll
        for (u32 k = 0; k < 8; k++) dst[i + k * LANES] = value[k];
    }
    for (; i < count; i += LANES) dst[i] = src[i];
}

#include "bytes.h"

KERNEL(GROUPS *LANES) void cableway_copy_resident(const struct Resident resident) {
    static __attribute__((shared)) volatile u64 active;
    u32 lane = THREAD % LANES, group = THREAD / LANES;
    u64 line = resident.lines + LINE * group;
    volatile u32 MEMORY *report = (volatile u32 MEMORY *)(resident.reports + LINE * group);
    u64 begun = nanoseconds();
    if (THREAD == 0) active = begun;
    barrier();
    // The present content of the line is an old command.
    u32 last = *(const volatile u32 MEMORY *)(line + 12);
    // The host sends no command before it sees this, so an old command is never taken for a new one.
    fence();
    together();
    if (lane == 0) report[STARTED] = resident.number;
    for (;;) {
        // Each of four lanes reads a quarter of the line, in one request.
        u128 part = *(const volatile u128 MEMORY *)(line + 16 * (lane % 4));
        u32 number = of_lane(part[3], 0);
        if (number != last && number == of_lane(part[3], 1)) {
            u64 from = (u64)of_lane(part[1], 0) << 32 | of_lane(part[0], 0);
            u64 to = (u64)of_lane(part[1], 1) << 32 | of_lane(part[0], 1);
            bytes(to, from, of_lane(part[2], 0), lane);
            together();
            if (lane == 0) {
                fence();
                report[DONE] = number;
                active = nanoseconds();
            }
            last = number;
            continue;
        }
        u64 now = nanoseconds(), used = active;
        bool over = of_lane(part[STOP % 4], STOP / 4) == resident.number || now - begun > resident.lease ||
                    (now > used && now - used > resident.idle);
        // Lanes may have read different times.
        if (of_lane(over, 0)) break;
    }
    together();
    if (lane == 0) {
        fence();
        report[ENDED] = resident.number;
    }
}
