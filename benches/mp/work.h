/* What mp_bench.c does on the device: memory, a stream, and a kernel. */
#include "../peers/device.h"

#include <stdint.h>
#include <string.h>

enum { KERNEL_WORDS = 32, NON_BLOCKING = 1 };

/* `__global__ void work(uint32_t *to, const uint32_t *from, uint32_t words, uint64_t nanoseconds)`: one block of 32 threads
 * takes at least so long, and then adds 1 to each of the first words. */
static const char KERNEL[] =
    ".version 6.0\n"
    ".target sm_52\n"
    ".address_size 64\n"
    ".visible .entry work(.param .u64 to, .param .u64 from, .param .u32 words, .param .u64 nanoseconds)\n"
    "{\n"
    "    .reg .pred %again, %past;\n"
    "    .reg .b32 %thread, %words, %word;\n"
    "    .reg .b64 %to, %from, %offset, %begun, %now, %length;\n"
    "    ld.param.u64 %length, [nanoseconds];\n"
    "    mov.u64 %begun, %globaltimer;\n"
    "$spin:\n"
    "    mov.u64 %now, %globaltimer;\n"
    "    sub.u64 %now, %now, %begun;\n"
    "    setp.lt.u64 %again, %now, %length;\n"
    "    @%again bra $spin;\n"
    "    mov.u32 %thread, %tid.x;\n"
    "    ld.param.u32 %words, [words];\n"
    "    setp.ge.u32 %past, %thread, %words;\n"
    "    @%past ret;\n"
    "    ld.param.u64 %to, [to];\n"
    "    ld.param.u64 %from, [from];\n"
    "    cvta.to.global.u64 %to, %to;\n"
    "    cvta.to.global.u64 %from, %from;\n"
    "    mul.wide.u32 %offset, %thread, 4;\n"
    "    add.u64 %to, %to, %offset;\n"
    "    add.u64 %from, %from, %offset;\n"
    "    ld.global.u32 %word, [%from];\n"
    "    add.u32 %word, %word, 1;\n"
    "    st.global.u32 [%to], %word;\n"
    "    ret;\n"
    "}\n";

static struct {
    void *stream, *kernel;
    int (*synchronize)(void *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*to_device)(unsigned long long, const void *, size_t);
    int (*to_host)(void *, unsigned long long, size_t);
} device;

/* Uses a device, and makes the stream. */
static void open_device(int rank)
{
    int devices;
    void *module;
    if (((int (*)(unsigned))driver("cuInit"))(0) != 0 || ((int (*)(int *))driver("cuDeviceGetCount"))(&devices) != 0)
        give_up("there is no device");
    use_device(rank % devices);
    *(void **)&device.synchronize = driver("cuStreamSynchronize");
    *(void **)&device.launch = driver("cuLaunchKernel");
    *(void **)&device.to_device = driver("cuMemcpyHtoD_v2");
    *(void **)&device.to_host = driver("cuMemcpyDtoH_v2");
    if (((int (*)(void **, unsigned))driver("cuStreamCreate"))(&device.stream, NON_BLOCKING) != 0)
        give_up("the driver makes no stream");
    /* Without it, two columns are left out. */
    if (((int (*)(void **, const char *))driver("cuModuleLoadData"))(&module, KERNEL) != 0 ||
        ((int (*)(void **, void *, const char *))driver("cuModuleGetFunction"))(&device.kernel, module, "work") != 0)
        device.kernel = NULL;
}

static void synchronize(void)
{
    if (device.synchronize(device.stream) != 0)
        give_up("the stream failed");
}

static uint32_t kernel_words(size_t size)
{
    return size / 4 < KERNEL_WORDS ? (uint32_t)(size / 4) : KERNEL_WORDS;
}

/* Adds the kernel to the stream. */
static void launch(char *to, const char *from, size_t size, double microseconds)
{
    uint32_t words = kernel_words(size);
    uint64_t nanoseconds = (uint64_t)(microseconds * 1000);
    void *arguments[] = {&to, &from, &words, &nanoseconds};
    if (device.launch(device.kernel, 1, 1, 1, 32, 1, 1, 0, device.stream, arguments, NULL) != 0)
        give_up("the kernel was not launched");
}
