/* Which work waits behind streams that wait for a value: the driver has a number of queues of the device for a context.
 *
 *   cc -O2 -o queues queues.c -ldl && [CUDA_DEVICE_MAX_CONNECTIONS=32] ./queues
 *
 * Lines `context MILLISECONDS`: what its creation takes. Lines `held BEFORE KIND STREAMS`: so many streams, which did BEFORE
 * and then wait, hold up work of this kind in another stream; `-` if 40 streams do not. Lines `default KIND OF WAITS`: one
 * stream waits, and work in the default stream is held up in so many of 80 trials. Lines `attribute CALL BEFORE AFTER`: in so many
 * of 80 trials the default stream has not done a synchronous call before, and after SYNC_MEMOPS is set on an allocation that the
 * call fills, or another one. `blocking` stands for no call, and a blocking stream that waits.
 */
#include "calls.h"

enum { MOST = 1 << 20, STREAMS = 40, TRIALS = 80 };
/* The driver's. */
enum { NOT_READY = 600, NON_BLOCKING = 1, MAPPED = 2, AT_LEAST = 0, SYNC_MEMOPS = 6 };

static char *host;
static address here, there, word_address;
static volatile unsigned *word;

static void nothing(void *stream) { (void)stream; }
static void fill(void *stream) { CALL(cuMemsetD8Async, (address, unsigned char, size_t, void *), here, 1, 4096, stream); }
static void within(void *stream) { CALL(cuMemcpyDtoDAsync_v2, (address, address, size_t, void *), here, there, 4096, stream); }
static void small(void *stream) { CALL(cuMemcpyHtoDAsync_v2, (address, void *, size_t, void *), here, host, 4096, stream); }
static void large(void *stream) { CALL(cuMemcpyHtoDAsync_v2, (address, void *, size_t, void *), here, host, MOST, stream); }
static void out(void *stream) { CALL(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *), host, here, 4096, stream); }

static void two_rows(void *stream) { copy_two_rows(here, host, 4096, stream); }

static void value(void *stream)
{
    CALL(cuStreamWriteValue32_v2, (void *, address, unsigned, unsigned), stream, here, 1, 0);
}

static const struct kind {
    const char *name;
    void (*begin)(void *stream);
} kinds[] = {{"fill", fill}, {"within", within}, {"from-host-4K", small}, {"from-host-rows", two_rows},
             {"from-host-1M", large}, {"to-host", out}, {"value", value}},
  befores[] = {{"nothing", nothing}, {"fill", fill}, {"from-host-1M", large}, {"to-host", out}};

static void *new_stream(void)
{
    void *stream;
    CALL(cuStreamCreate, (void *, unsigned), &stream, NON_BLOCKING);
    return stream;
}

static int is_done(void *stream)
{
    int asked = ((int (*)(void *))driver("cuStreamQuery"))(stream);
    if (asked != NOT_READY)
        check(asked, "cuStreamQuery");
    return asked == 0;
}

/* Work takes microseconds. What has not ended after 10 ms is held up. */
static int is_held(void *stream)
{
    double began = now();
    while (!is_done(stream))
        if (now() - began > 0.01)
            return 1;
    return 0;
}

static void wait_value(void *stream, unsigned wanted)
{
    CALL(cuStreamWaitValue32_v2, (void *, address, unsigned, unsigned), stream, word_address, wanted, AT_LEAST);
}

static void let_go(unsigned value_of_word)
{
    *word = value_of_word;
    CALL(cuCtxSynchronize, (void));
}

static unsigned value_now;

/* The least number of waiting streams that hold up work of a kind, or 0. */
static int least(const struct kind *before, const struct kind *kind, void **streams, void *other)
{
    for (int number = 1; number <= STREAMS; number++) {
        value_now++;
        for (int i = 0; i < number; i++) {
            before->begin(streams[i]);
            wait_value(streams[i], value_now);
        }
        kind->begin(other);
        int held = is_held(other);
        let_go(value_now);
        if (held)
            return number;
    }
    return 0;
}

/* The stream is a new one each time. The driver uses free queues in turn, and work of other streams makes it choose another one. */
static int default_held(const struct kind *kind, void **streams)
{
    int held = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        void *stream = new_stream();
        for (int i = 0; i < trial % 9; i++) {
            fill(streams[i]);
            CALL(cuStreamSynchronize, (void *), streams[i]);
        }
        wait_value(stream, ++value_now);
        kind->begin(NULL);
        held += is_held(NULL);
        let_go(value_now);
        CALL(cuStreamDestroy_v2, (void *), stream);
    }
    return held;
}

static void fill_now(address at) { CALL(cuMemsetD8_v2, (address, unsigned char, size_t), at, 1, MOST); }

static void within_now(address at) { CALL(cuMemcpyDtoD_v2, (address, address, size_t), at, there, MOST); }
static void pinned_now(address at) { CALL(cuMemcpyHtoD_v2, (address, const void *, size_t), at, host, MOST); }

static char ordinary[MOST];

static void small_now(address at) { CALL(cuMemcpyHtoD_v2, (address, const void *, size_t), at, ordinary, 4096); }
static void large_now(address at) { CALL(cuMemcpyHtoD_v2, (address, const void *, size_t), at, ordinary, MOST); }

/* Counts the trials in which the default stream is busy before and after the attribute is set on an allocation. */
static void attribute(const char *name, void (*call)(address), int other, void *blocking)
{
    int before = 0, after = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        address at = (address)device_buffer(MOST), filled = other ? here : at;
        unsigned yes = 1;
        CALL(cuCtxSynchronize, (void));
        if (blocking)
            wait_value(blocking, ++value_now);
        else
            call(filled);
        before += !is_done(NULL);
        CALL(cuPointerSetAttribute, (const void *, int, address), &yes, SYNC_MEMOPS, at);
        after += !is_done(NULL);
        let_go(value_now);
        device_release((char *)at);
    }
    printf("attribute %s %d %d\n", name, before, after);
}

int main(void)
{
    void *streams[STREAMS], *other;
    CALL(cuInit, (unsigned), 0);
    double began = now();
    use_device(0);
    printf("context %.0f\n", (now() - began) * 1e3);
    here = (address)device_buffer(MOST);
    there = (address)device_buffer(MOST);
    page_locked = 1;
    host = device_buffer(MOST);
    CALL(cuMemHostAlloc, (void *, size_t, unsigned), &word, 4096, MAPPED);
    CALL(cuMemHostGetDevicePointer_v2, (address *, void *, unsigned), &word_address, (void *)word, 0);
    *word = 0;
    for (int i = 0; i < STREAMS; i++)
        streams[i] = new_stream();
    other = new_stream();
    for (size_t b = 0; b < sizeof befores / sizeof *befores; b++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            int number = least(&befores[b], &kinds[k], streams, other);
            printf(number ? "held %s %s %d\n" : "held %s %s -\n", befores[b].name, kinds[k].name, number);
        }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        printf("default %s %d %d\n", kinds[k].name, default_held(&kinds[k], streams), TRIALS);
    page_locked = 0;
    attribute("fill", fill_now, 0, NULL);
    attribute("from-host-4K", small_now, 0, NULL);
    attribute("from-host-1M", large_now, 0, NULL);
    attribute("from-pinned-1M", pinned_now, 0, NULL);
    attribute("within", within_now, 0, NULL);
    attribute("fill-of-another", fill_now, 1, NULL);
    void *blocking;
    CALL(cuStreamCreate, (void *, unsigned), &blocking, 0);
    attribute("blocking", NULL, 0, blocking);
    page_locked = 1;
    device_release(host);
    page_locked = 0;
    device_release((char *)here);
    device_release((char *)there);
    return 0;
}
