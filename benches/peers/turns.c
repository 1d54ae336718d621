/* What a use of a device costs while processes use it in turn: each makes one copy, waits for it, and lets the next one go.
 *
 *   cc -O2 -o turns turns.c -ldl && ./turns [PROCESSES...]
 *
 * A line for each kind of copy and size: processes, kind, bytes, microseconds a turn. Contexts of different processes take
 * turns on a device's compute engine. Copies that need 0.1 ms and more with two processes, but not with one, use it.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 100, MOST = 4 << 20, NOT_READY = 600, NON_BLOCKING = 1, LIMIT = 10 };

static void *stream;
static char *host;
static address here, there;

static void within(size_t size) { CALL(cuMemcpyDtoDAsync_v2, (address, address, size_t, void *), here, there, size, stream); }
static void to_host(size_t size) { CALL(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *), host, here, size, stream); }
static void from_host(size_t size) { CALL(cuMemcpyHtoDAsync_v2, (address, void *, size_t, void *), here, host, size, stream); }
static void fill(size_t size) { CALL(cuMemsetD32Async, (address, unsigned, size_t, void *), here, 1, size / 4, stream); }

static void value(size_t size)
{
    (void)size;
    CALL(cuStreamWriteValue32_v2, (void *, address, unsigned, unsigned), stream, here, 1, 0);
}

static void two_rows(size_t size) { copy_two_rows(here, host, size, stream); }

static const struct {
    const char *name;
    void (*begin)(size_t size);
    size_t most;
} kinds[] = {{"within the device", within, MOST}, {"to the host", to_host, MOST}, {"from the host", from_host, MOST},
             {"from the host, two rows", two_rows, MOST}, {"fill", fill, MOST}, {"value", value, 8}};

static void allocate(void)
{
    use_device(0);
    here = (address)device_buffer(MOST);
    there = (address)device_buffer(MOST);
    page_locked = 1;
    host = device_buffer(MOST);
    CALL(cuStreamCreate, (void *, unsigned), &stream, NON_BLOCKING);
}

static void release(void)
{
    device_release(host);
    page_locked = 0;
    device_release((char *)here);
    device_release((char *)there);
}

/* Waits until the word has this value, which another process writes. */
static void wait_for(volatile long *word, long wanted, double began)
{
    while (*word != wanted)
        if (now() - began > LIMIT)
            give_up("another process is gone");
}

/* `turn` counts the copies of all processes. */
static void process(int me, int processes, volatile long *turn)
{
    const size_t sizes[] = {8, 64, 4096, 16384, 24576, 32768, 65536, 1 << 20, MOST};
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)me, &core);
    sched_setaffinity(0, sizeof core, &core);
    allocate();
    long done = 0;
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= kinds[kind].most; i++) {
            double began = now();
            for (int round = 0; round < ROUNDS; round++, done += processes) {
                int asked;
                wait_for(turn, done + me, began + LIMIT);
                kinds[kind].begin(sizes[i]);
                while ((asked = ((int (*)(void *))driver("cuStreamQuery"))(stream)) == NOT_READY)
                    ;
                check(asked, "cuStreamQuery");
                *turn = done + me + 1;
            }
            wait_for(turn, done, now());
            if (me == 0)
                printf("%d %-24s %8zu %8.1f\n", processes, kinds[kind].name, sizes[i],
                       (now() - began) * 1e6 / ROUNDS / processes);
        }
    release();
    exit(0);
}

int main(int argc, char **argv)
{
    int failed = 0;
    for (int i = 1; i < argc || i == 1; i++) {
        int processes = i < argc ? atoi(argv[i]) : 2, status;
        volatile long *turn = mmap(NULL, sizeof *turn, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        fflush(stdout);
        for (int me = 0; me < processes; me++)
            if (fork() == 0)
                process(me, processes, turn);
        while (wait(&status) > 0)
            failed |= status;
    }
    return failed != 0;
}
