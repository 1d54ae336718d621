/* The driver's copies alone, by one process that has both devices: what no message between processes can be faster than.
 *
 *   copies TEST SIZE[,SIZE...] SECONDS WINDOW FROM TO straight|staged [BLOCK STRIDE]
 *
 * TEST is latency, bandwidth or message-rate; FROM and TO are `host` or a device's number. A copy is over once a question
 * to its stream says so. A window goes as one batch where the driver has batches and they are faster; staged, in a
 * pipeline of pieces whose halves are chained by events. BLOCK of every STRIDE bytes go as rows.
 * One JSON object a line, in the shape that `cableway pingpong --format json` prints.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long device_ptr;
typedef void *handle;

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2, NOT_READY = 600, MAX_WINDOW = 1024, DEPTH = 8, DEVICE = 2 };

/* cuda.h: CUDA_MEMCPY2D. */
struct rows {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    device_ptr src;
    handle src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host;
    device_ptr dst;
    handle dst_array;
    size_t dst_pitch, width, height;
};

/* cuda.h: CUmemcpyAttributes; its zeroes are hints that are not given. */
struct attributes {
    int order;
    int hints[5];
};

static int (*init)(unsigned), (*device_get)(int *, int), (*retain)(handle *, int), (*set_current)(handle);
static int (*enable_peer)(handle, unsigned), (*allocate)(device_ptr *, size_t), (*allocate_host)(void **, size_t);
static int (*stream_create)(handle *, unsigned), (*stream_query)(handle), (*stream_wait)(handle, handle, unsigned);
static int (*event_create)(handle *, unsigned), (*event_record)(handle, handle);
static int (*copy)(device_ptr, device_ptr, size_t, handle), (*copy_rows)(const struct rows *, handle);
static int (*batch)(device_ptr *, device_ptr *, size_t *, size_t, struct attributes *, size_t *, size_t, size_t *, handle);
static int (*release)(device_ptr), (*release_host)(void *);

static void check(int status, const char *what)
{
    if (status != 0) {
        fprintf(stderr, "%s: the driver says %d\n", what, status);
        exit(1);
    }
}

static void load(void)
{
    char path[4096];
    const char *folder = getenv("CABLEWAY_CUDA_LIBDIR");
    snprintf(path, sizeof path, "%s%slibcuda.so.1", folder ? folder : "", folder && *folder ? "/" : "");
    void *driver = dlopen(path, RTLD_NOW);
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"cuInit", &init}, {"cuDeviceGet", &device_get}, {"cuDevicePrimaryCtxRetain", &retain},
        {"cuCtxSetCurrent", &set_current}, {"cuCtxEnablePeerAccess", &enable_peer}, {"cuMemAlloc_v2", &allocate},
        {"cuMemAllocHost_v2", &allocate_host}, {"cuMemFree_v2", &release}, {"cuMemFreeHost", &release_host},
        {"cuStreamCreate", &stream_create}, {"cuStreamQuery", &stream_query}, {"cuStreamWaitEvent", &stream_wait},
        {"cuEventCreate", &event_create}, {"cuEventRecord", &event_record}, {"cuMemcpyAsync", &copy},
        {"cuMemcpy2DAsync_v2", &copy_rows}, {"cuMemcpyBatchAsync", &batch}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = driver ? dlsym(driver, wanted[i].name) : NULL;
        if (!found && wanted[i].to != (void *)&batch) {
            fprintf(stderr, "no driver with %s: %s\n", wanted[i].name, dlerror());
            exit(1);
        }
        memcpy(wanted[i].to, &found, sizeof found);
    }
    check(init(0), "cuInit");
}

/* One side: a device with its context, or the host, which uses the other side's context. */
struct end {
    int device;
    handle context, stream, events[DEPTH];
    device_ptr memory;
};

static struct end from, to;
static void *pieces[DEPTH];
static int staged;
static size_t block, stride;

static void open_end(struct end *end, const char *name)
{
    end->device = strcmp(name, "host") == 0 ? -1 : atoi(name);
    int device;
    check(device_get(&device, end->device < 0 ? 0 : end->device), "cuDeviceGet");
    check(retain(&end->context, device), "cuDevicePrimaryCtxRetain");
    check(set_current(end->context), "cuCtxSetCurrent");
    check(stream_create(&end->stream, NON_BLOCKING), "cuStreamCreate");
    for (int i = 0; i < DEPTH; i++)
        check(event_create(&end->events[i], DISABLE_TIMING), "cuEventCreate");
}

static void reserve(struct end *end, size_t size)
{
    check(set_current(end->context), "cuCtxSetCurrent");
    void *host = NULL;
    if (end->device < 0) {
        check(allocate_host(&host, size), "cuMemAllocHost");
        end->memory = (device_ptr)host;
    } else {
        check(allocate(&end->memory, size), "cuMemAlloc");
    }
}

static void give_back(struct end *end)
{
    check(set_current(end->context), "cuCtxSetCurrent");
    check(end->device < 0 ? release_host((void *)end->memory) : release(end->memory), "cuMemFree");
}

static void wait_for(struct end *end)
{
    int status;
    check(set_current(end->context), "cuCtxSetCurrent");
    while ((status = stream_query(end->stream)) == NOT_READY)
        ;
    check(status, "cuStreamQuery");
}

/* `size` bytes in one piece, or as rows. */
static void issue(device_ptr dst, device_ptr src, size_t size)
{
    if (!block) {
        check(copy(dst, src, size, from.stream), "cuMemcpyAsync");
        return;
    }
    struct rows rows = {.src_type = DEVICE, .src = src, .src_pitch = stride, .dst_type = DEVICE, .dst = dst,
                        .dst_pitch = stride, .width = block, .height = size / block};
    check(copy_rows(&rows, from.stream), "cuMemcpy2DAsync");
}

/* Through the host: the first half of a piece waits until the previous piece has left. */
static void pipeline(size_t size, int window, size_t piece)
{
    size_t number = 0;
    for (int k = 0; k < window; k++) {
        for (size_t at = 0; at < size; at += piece, number++) {
            size_t len = size - at < piece ? size - at : piece;
            int slot = (int)(number % DEPTH);
            check(set_current(from.context), "cuCtxSetCurrent");
            if (number >= DEPTH)
                check(stream_wait(from.stream, to.events[slot], 0), "cuStreamWaitEvent");
            check(copy((device_ptr)pieces[slot], from.memory + at, len, from.stream), "cuMemcpyAsync");
            check(event_record(from.events[slot], from.stream), "cuEventRecord");
            check(set_current(to.context), "cuCtxSetCurrent");
            check(stream_wait(to.stream, from.events[slot], 0), "cuStreamWaitEvent");
            check(copy(to.memory + at, (device_ptr)pieces[slot], len, to.stream), "cuMemcpyAsync");
            check(event_record(to.events[slot], to.stream), "cuEventRecord");
        }
    }
    wait_for(&to);
}

enum way { ONE_BY_ONE, BATCH, PIPELINE };

static void once(enum way way, size_t size, int window)
{
    if (way == PIPELINE) {
        pipeline(size, window, size <= 1 << 20 ? 1 << 20 : 4 << 20);
        return;
    }
    check(set_current(from.context), "cuCtxSetCurrent");
    if (way == BATCH) {
        device_ptr dsts[MAX_WINDOW], srcs[MAX_WINDOW];
        size_t sizes[MAX_WINDOW], none = 0, failed = 0;
        struct attributes attributes = {.order = 1};
        for (int k = 0; k < window; k++)
            dsts[k] = to.memory, srcs[k] = from.memory, sizes[k] = size;
        check(batch(dsts, srcs, sizes, (size_t)window, &attributes, &none, 1, &failed, from.stream),
              "cuMemcpyBatchAsync");
    } else {
        for (int k = 0; k < window; k++)
            issue(to.memory, from.memory, size);
    }
    wait_for(&from);
}

/* There and back where the two ways differ: host to device and device to host. */
static void turn(size_t size)
{
    if (staged) {
        once(PIPELINE, size, 1);
        return;
    }
    issue(to.memory, from.memory, size);
    wait_for(&from);
    if ((from.device < 0) != (to.device < 0)) {
        issue(from.memory, to.memory, size);
        wait_for(&from);
    }
}

static double seconds_of(enum way way, int latency, size_t size, int window, long rounds)
{
    struct timespec began, ended;
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (long i = 0; i < rounds; i++) {
        if (latency)
            turn(size);
        else
            once(way, size, window);
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (double)(ended.tv_sec - began.tv_sec) + (double)(ended.tv_nsec - began.tv_nsec) / 1e9;
}

/* Seconds of one round, over about `seconds`. */
static double measured(enum way way, int latency, size_t size, int window, double seconds)
{
    long rounds = 4;
    double taken = seconds_of(way, latency, size, window, rounds);
    while (taken < seconds / 4) {
        rounds *= 2;
        taken = seconds_of(way, latency, size, window, rounds);
    }
    rounds = (long)((double)rounds * seconds / taken) + 1;
    return seconds_of(way, latency, size, window, rounds) / (double)rounds;
}

int main(int argc, char **argv)
{
    if (argc != 8 && argc != 10) {
        fprintf(stderr, "usage: copies TEST SIZES SECONDS WINDOW FROM TO straight|staged [BLOCK STRIDE]\n");
        return 2;
    }
    const char *test = argv[1];
    int latency = strcmp(test, "latency") == 0, rate = strcmp(test, "message-rate") == 0, window = atoi(argv[4]);
    double seconds = atof(argv[3]);
    if (window < 1 || window > MAX_WINDOW) {
        fprintf(stderr, "a window of %s is not one of 1 to %d\n", argv[4], MAX_WINDOW);
        return 2;
    }
    staged = strcmp(argv[7], "staged") == 0;
    if (argc == 10)
        block = (size_t)atol(argv[8]), stride = (size_t)atol(argv[9]);
    load();
    open_end(&from, argv[5]);
    open_end(&to, argv[6]);
    if (from.device >= 0 && to.device >= 0 && from.device != to.device) {
        check(set_current(from.context), "cuCtxSetCurrent");
        if (!staged && enable_peer(to.context, 0) != 0)
            fprintf(stderr, "the devices cannot reach each other: the driver copies through the host\n");
    }
    check(set_current(from.context), "cuCtxSetCurrent");
    for (int i = 0; i < DEPTH && staged; i++)
        check(allocate_host(&pieces[i], 4 << 20), "cuMemAllocHost");

    for (char *item = strtok(argv[2], ","); item; item = strtok(NULL, ",")) {
        size_t size = (size_t)atol(item), span = block ? size / block * stride : size;
        reserve(&from, span);
        reserve(&to, span);
        double round = measured(staged ? PIPELINE : ONE_BY_ONE, latency, size, window, seconds);
        if (batch && !latency && !staged) {
            double batched = measured(BATCH, 0, size, window, seconds);
            round = batched < round ? batched : round;
        }
        int both_ways = (from.device < 0) != (to.device < 0);
        double value = latency ? round * 1e6 / (both_ways ? 2 : 1)
                       : rate  ? window / round
                               : (double)window * (double)size / round / 1e6;
        printf("{\"test\":\"%s\",\"btl\":\"copies\",\"src\":\"%s\",\"dst\":\"%s\",\"size\":%zu,\"value\":%.6g,\"unit\":\"%s\"}\n",
               test, argv[5], argv[6], size, value, latency ? "us" : rate ? "messages/s" : "MB/s");
        fflush(stdout);
        give_back(&from);
        give_back(&to);
    }
    return 0;
}
