/* Windows whose memory MPI_Win_allocate takes from a device, as the info key mpi_memory_alloc_kinds asks. Each process puts,
 * gets and accumulates in the memory of the next one. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/memory.h"

enum { LONGS = 4000, ATTRIBUTE_MEMORY_TYPE = 2, ATTRIBUTE_IS_MANAGED = 8 };
enum place { PLAIN, ON_DEVICE, MANAGED, PAGE_LOCKED };

static int (*attribute)(void *, int, device_pointer);

/* Returns where memory is, as the driver says. */
static enum place place_of(const void *memory)
{
    unsigned kind = 0;
    unsigned managed = 0;
    if (0 != attribute(&kind, ATTRIBUTE_MEMORY_TYPE, (device_pointer) (uintptr_t) memory) || 0 == kind) {
        return PLAIN;
    }
    CHECK_EQUAL(attribute(&managed, ATTRIBUTE_IS_MANAGED, (device_pointer) (uintptr_t) memory), 0);
    return managed ? MANAGED : 2 == kind ? ON_DEVICE : PAGE_LOCKED;
}

static void use_window(MPI_Win window, long *memory)
{
    const int next = (test.rank + 1) % test.size, previous = (test.rank + test.size - 1) % test.size;
    static long out[LONGS], in[LONGS];
    for (int i = 0; i < LONGS; i++) {
        out[i] = 100000L * test.rank + i;
        in[i] = -1;
    }
    MPI_Win_fence(0, window);
    MPI_Put(out, LONGS, MPI_LONG, next, 0, LONGS, MPI_LONG, window);
    MPI_Win_fence(0, window);
    MPI_Accumulate(out, LONGS, MPI_LONG, next, 0, LONGS, MPI_LONG, MPI_SUM, window);
    MPI_Win_fence(0, window);
    MPI_Get(in, LONGS, MPI_LONG, next, 0, LONGS, MPI_LONG, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < LONGS; i++) {
        CHECK_EQUAL(in[i], 2 * out[i]);
    }
    if (PLAIN == place_of(memory)) {
        memcpy(in, memory, sizeof in);
    } else {
        CHECK_EQUAL(cuda.to_host(in, (device_pointer) (uintptr_t) memory, sizeof in), 0);
    }
    for (int i = 0; i < LONGS; i++) {
        CHECK_EQUAL(in[i], 2 * (100000L * previous + i));
    }
}

/* Every second process asks, or all of them. */
static void ask(const char *kinds, enum place expected, int every)
{
    const int asks = 0 == test.rank % every;
    MPI_Info info = MPI_INFO_NULL;
    long *memory = NULL;
    MPI_Win window;
    if (asks) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "mpi_memory_alloc_kinds", kinds);
    }
    MPI_Win_allocate(LONGS * sizeof(long), sizeof(long), info, MPI_COMM_WORLD, &memory, &window);
    if (asks) {
        MPI_Info_free(&info);
        CHECK_EQUAL(place_of(memory), expected);
    } else {
        CHECK_EQUAL(place_of(memory), PLAIN);
    }
    use_window(window, memory);
    MPI_Win_free(&window);
    CHECK(!asks || PLAIN == place_of(memory));
    count_check();
}

/* A process without a current device has no memory, and no process a window. */
static void ask_without_a_device(void)
{
    MPI_Info info;
    long *memory = NULL;
    MPI_Win window;
    MPI_Info_create(&info);
    MPI_Info_set(info, "mpi_memory_alloc_kinds", "cuda");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (0 == test.rank) {
        CHECK_EQUAL(cuda.set_current(NULL), 0);
    }
    CHECK(MPI_SUCCESS != MPI_Win_allocate(64, 1, info, MPI_COMM_WORLD, &memory, &window));
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    MPI_Info_free(&info);
    count_check();
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    *(void **) &attribute = dlsym(open_driver(), "cuPointerGetAttribute");
    CHECK(NULL != attribute);
    for (int every = 1; every <= 2; every++) {
        ask("cuda:device", ON_DEVICE, every);
        ask("cuda", ON_DEVICE, every);
        ask("cuda:managed", MANAGED, every);
        ask("cuda:host", PAGE_LOCKED, every);
        ask("level_zero:device, cuda", ON_DEVICE, every);
        ask("cuda:unheard_of,cuda:managed", MANAGED, every);
        ask("system,cuda:device", PLAIN, every);
        ask("mpi:alloc_mem,cuda", PLAIN, every);
    }
    ask_without_a_device();
    tear_down();
    return 0;
}
