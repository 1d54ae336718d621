/* Ping-pong of two streams that only the driver's stream operations order, by one process that has both devices: what no
 * stream-ordered message without a kernel that waits can be faster than. With MICROSECONDS, each stream also runs a kernel of that
 * time after it has received.
 *
 *   stream_words SIZE[,SIZE...] SECONDS [MICROSECONDS]
 *
 * A way is how the receiver's stream tells that its buffer is ready, and the sender's stream that data is there:
 *   resets    two words that are set to 1 and back to 0, so that a graph could repeat the operations
 *   counts    two words that grow
 *   signal    the word of the data alone, which grows: the buffer is always ready
 * resets-kernel and signal-kernel: a kernel of one thread copies, for 8 bytes only, and writes the words beside the copy
 * The words lie in host memory, or in the memory of the device whose stream waits for them.
 * Prints one line for each: way, place of the words, bytes, microseconds one way.
 */
#include "calls.h"
#include "spin.h"

#include <pthread.h>

typedef address device_ptr;
typedef void *handle;

/* cuda.h: CUstreamBatchMemOpParams. */
struct operation {
    int kind;
    device_ptr address;
    unsigned long long value;
    unsigned flags;
    unsigned long long rest[2];
};
_Static_assert(sizeof(struct operation) == 48, "the driver's structure has 48 bytes");

enum { NON_BLOCKING = 1, PORTABLE = 1, WAIT = 4, WRITE = 5, AT_LEAST = 0, EQUAL = 1, STEPS = 200, WORD = 128, WORDS = 4096 };
enum way { RESETS, COUNTS, SIGNAL, RESETS_KERNEL, SIGNAL_KERNEL, WAYS };
static const char *const names[] = {"resets", "counts", "signal", "resets-kernel", "signal-kernel"};

/* Copies 8 bytes, after it has set a word to 0 if there is one, and sets a word behind the copy. */
static const char put_ptx[] =
    ".version 6.3\n.target sm_52\n.address_size 64\n"
    ".visible .entry put(.param .u64 to, .param .u64 from, .param .u64 clear, .param .u64 raise, .param .u64 value)\n{\n"
    ".reg .pred %p;\n.reg .b64 %to, %from, %clear, %raise, %value, %data;\n"
    "ld.param.u64 %to, [to];\nld.param.u64 %from, [from];\nld.param.u64 %clear, [clear];\n"
    "ld.param.u64 %raise, [raise];\nld.param.u64 %value, [value];\n"
    "setp.ne.u64 %p, %clear, 0;\n@%p st.volatile.global.u64 [%clear], 0;\n"
    "ld.global.u64 %data, [%from];\nst.global.u64 [%to], %data;\nmembar.sys;\n"
    "st.volatile.global.u64 [%raise], %value;\nret;\n}\n";

static int (*init)(unsigned), (*device_get)(int *, int), (*retain)(handle *, int), (*set_current)(handle);
static int (*enable_peer)(handle, unsigned), (*allocate)(device_ptr *, size_t), (*set_words)(device_ptr, unsigned, size_t);
static int (*allocate_host)(void **, size_t, unsigned), (*stream_create)(handle *, unsigned), (*synchronize)(handle);
static int (*copy)(device_ptr, device_ptr, size_t, handle);
static int (*operate)(handle, unsigned, struct operation *, unsigned);
static int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **, void **);

static void load(void)
{
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"cuInit", &init}, {"cuDeviceGet", &device_get}, {"cuDevicePrimaryCtxRetain", &retain},
        {"cuCtxSetCurrent", &set_current}, {"cuCtxEnablePeerAccess", &enable_peer}, {"cuMemAlloc_v2", &allocate},
        {"cuMemsetD32_v2", &set_words}, {"cuMemHostAlloc", &allocate_host}, {"cuStreamCreate", &stream_create},
        {"cuStreamSynchronize", &synchronize}, {"cuMemcpyAsync", &copy}, {"cuStreamBatchMemOp_v2", &operate},
        {"cuLaunchKernel", &launch}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = driver(wanted[i].name);
        memcpy(wanted[i].to, &found, sizeof found);
    }
    check(init(0), "cuInit");
}

/* A device, and its part of the ping-pong. */
static struct side {
    handle context, stream, put, spin;
    device_ptr sent, received, words[2];
} sides[2];

/* What both streams do. */
static struct {
    enum way way;
    int on_device;
    size_t bytes;
    unsigned long long steps;
} plan;

static struct operation operation(int kind, device_ptr address, unsigned long long value, unsigned flags)
{
    return (struct operation){.kind = kind, .address = address, .value = value, .flags = flags};
}

/* The word for which a side waits: 0 before it sends, 1 before it has received. */
static device_ptr word(int side, int which)
{
    return sides[side].words[plan.on_device] + (device_ptr)which * WORD;
}

static void perform(int side, unsigned count, struct operation *operations)
{
    check(operate(sides[side].stream, count, operations, 0), "cuStreamBatchMemOp");
}

static void enqueue_send(int me, unsigned long long step)
{
    device_ptr ready = word(me, 0), done = word(1 - me, 1);
    if (plan.way == RESETS_KERNEL)
        perform(me, 1, (struct operation[]){operation(WAIT, ready, 1, EQUAL)});
    if (plan.way == RESETS_KERNEL || plan.way == SIGNAL_KERNEL) {
        unsigned long long value = plan.way == RESETS_KERNEL ? 1 : step;
        device_ptr clear = plan.way == RESETS_KERNEL ? ready : 0;
        void *arguments[] = {&sides[1 - me].received, &sides[me].sent, &clear, &done, &value};
        check(launch(sides[me].put, 1, 1, 1, 1, 1, 1, 0, sides[me].stream, arguments, NULL), "cuLaunchKernel");
        return;
    }
    if (plan.way == RESETS)
        perform(me, 2, (struct operation[]){operation(WAIT, ready, 1, EQUAL), operation(WRITE, ready, 0, 0)});
    else if (plan.way == COUNTS)
        perform(me, 1, (struct operation[]){operation(WAIT, ready, step, AT_LEAST)});
    check(copy(sides[1 - me].received, sides[me].sent, plan.bytes, sides[me].stream), "cuMemcpyAsync");
    perform(me, 1, (struct operation[]){operation(WRITE, done, plan.way == RESETS ? 1 : step, 0)});
}

static void enqueue_receive(int me, unsigned long long step)
{
    device_ptr ready = word(1 - me, 0), done = word(me, 1);
    struct operation resets[] = {
        operation(WRITE, ready, 1, 0), operation(WAIT, done, 1, EQUAL), operation(WRITE, done, 0, 0)};
    struct operation counts[] = {operation(WRITE, ready, step, 0), operation(WAIT, done, step, AT_LEAST)};
    if (plan.way == RESETS || plan.way == RESETS_KERNEL)
        perform(me, 3, resets);
    else
        perform(me, plan.way == COUNTS ? 2 : 1, plan.way == COUNTS ? counts : counts + 1);
    if (spin_nanoseconds != 0) {
        void *arguments[] = {&spin_nanoseconds};
        check(launch(sides[me].spin, 1, 1, 1, 512, 1, 1, 0, sides[me].stream, arguments, NULL), "cuLaunchKernel");
    }
}

static void *play(void *argument)
{
    int me = argument != &sides[0];
    check(set_current(sides[me].context), "cuCtxSetCurrent");
    for (unsigned long long step = plan.steps + 1; step <= plan.steps + STEPS; step++) {
        if (me == 1)
            enqueue_receive(me, step);
        enqueue_send(me, step);
        if (me == 0)
            enqueue_receive(me, step);
    }
    check(synchronize(sides[me].stream), "cuStreamSynchronize");
    return NULL;
}

static int ascending(const void *one, const void *other)
{
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

/* The median of the microseconds that a message takes, over rounds of many steps. */
static double measure(double seconds)
{
    enum { ROUNDS = 1000 };
    static double times[ROUNDS];
    plan.steps = 0;
    for (int i = 0; i < 2; i++) {
        check(set_current(sides[i].context), "cuCtxSetCurrent");
        memset((void *)sides[i].words[0], 0, WORDS);
        check(set_words(sides[i].words[1], 0, WORDS / 4), "cuMemsetD32");
        check(synchronize(NULL), "cuStreamSynchronize");
    }
    int rounds = 0;
    for (double start = now(); rounds < ROUNDS && (rounds < 3 || now() - start < seconds); rounds++) {
        pthread_t other;
        double before = now();
        if (pthread_create(&other, NULL, play, &sides[1]) != 0)
            exit(1);
        play(&sides[0]);
        pthread_join(other, NULL);
        times[rounds] = (now() - before) * 1e6 / STEPS / 2;
        plan.steps += STEPS;
    }
    qsort(times, (size_t)rounds, sizeof *times, ascending);
    return times[rounds / 2];
}

static void open_side(int number, size_t largest, double kernel)
{
    struct side *side = &sides[number];
    int device;
    void *words;
    handle module;
    check(device_get(&device, number), "cuDeviceGet");
    check(retain(&side->context, device), "cuDevicePrimaryCtxRetain");
    check(set_current(side->context), "cuCtxSetCurrent");
    check(stream_create(&side->stream, NON_BLOCKING), "cuStreamCreate");
    check(allocate(&side->sent, largest), "cuMemAlloc");
    check(allocate(&side->received, largest), "cuMemAlloc");
    check(allocate(&side->words[1], WORDS), "cuMemAlloc");
    check(allocate_host(&words, WORDS, PORTABLE), "cuMemHostAlloc");
    side->words[0] = (device_ptr)words;
    CALL(cuModuleLoadData, (handle *, const void *), &module, put_ptx);
    CALL(cuModuleGetFunction, (handle *, handle, const char *), &side->put, module, "put");
    spin_load(kernel);
    side->spin = spin_function;
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: stream_words SIZE[,SIZE...] SECONDS [MICROSECONDS]\n");
        return 2;
    }
    load();
    for (int i = 0; i < 2; i++)
        open_side(i, 1 << 26, argc == 4 ? atof(argv[3]) : 0);
    for (int i = 0; i < 2; i++) {
        check(set_current(sides[i].context), "cuCtxSetCurrent");
        check(enable_peer(sides[1 - i].context, 0), "cuCtxEnablePeerAccess");
    }
    for (char *size = strtok(argv[1], ","); size; size = strtok(NULL, ",")) {
        plan.bytes = strtoull(size, NULL, 10);
        if (plan.bytes == 0 || plan.bytes > 1 << 26) {
            fprintf(stderr, "%s bytes: pass sizes of 1 to 67108864\n", size);
            return 2;
        }
        for (plan.way = 0; plan.way < WAYS; plan.way++)
            for (plan.on_device = 0; plan.on_device < 2 && (plan.way < RESETS_KERNEL || plan.bytes == 8); plan.on_device++)
                printf("%s %s %zu %.2f\n", names[plan.way], plan.on_device ? "device" : "host", plan.bytes,
                    measure(atof(argv[2])));
    }
    return 0;
}
