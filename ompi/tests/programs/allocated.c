/* Windows whose memory MPI_Win_allocate takes from a device, as the info key cableway_memory_kind asks. Each process puts,
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

/* Allocates a window of the kind that this process asks for, if it asks for any. */
static int allocate(const char *kind, size_t bytes, long **memory, MPI_Win *window)
{
    int rc;
    MPI_Info info = MPI_INFO_NULL;
    if (NULL != kind) {
        MPI_Info_create(&info);
        MPI_Info_set(info, "cableway_memory_kind", kind);
    }
    rc = MPI_Win_allocate((MPI_Aint) bytes, sizeof(long), info, MPI_COMM_WORLD, memory, window);
    if (NULL != kind) {
        MPI_Info_free(&info);
    }
    return rc;
}

static void ask(const char *kind, enum place expected)
{
    long *memory = NULL;
    MPI_Win window;
    allocate(kind, LONGS * sizeof(long), &memory, &window);
    CHECK_EQUAL(place_of(memory), expected);
    use_window(window, memory);
    MPI_Win_free(&window);
    CHECK(PLAIN == expected || PLAIN == place_of(memory));
    count_check();
}

/* A window that holds nothing in the first process. */
static void ask_for_nothing(void)
{
    long *memory = NULL;
    MPI_Win window;
    allocate("cuda", 0 == test.rank ? 0 : 64, &memory, &window);
    CHECK(0 == test.rank ? NULL == memory : ON_DEVICE == place_of(memory));
    MPI_Win_free(&window);
    count_check();
}

/* The last process asks for this, and the others ask for nothing. No process gets a window. */
static void ask_in_vain(const char *kind)
{
    long *memory = NULL;
    MPI_Win window;
    CHECK(MPI_SUCCESS != allocate(test.size - 1 == test.rank ? kind : NULL, 64, &memory, &window));
    count_check();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *kind;
        enum place expected;
    } kinds[] = {{"cuda:device", ON_DEVICE}, {NULL, PLAIN},        {"cuda:managed", MANAGED},
                 {"cuda:host", PAGE_LOCKED}, {"cuda", ON_DEVICE}, {"system", PLAIN}};
    enum { KINDS = sizeof kinds / sizeof kinds[0] };
    set_up(argc, argv, MPI_THREAD_SINGLE);
    *(void **) &attribute = dlsym(open_driver(), "cuPointerGetAttribute");
    CHECK(NULL != attribute);
    for (int i = 0; i < KINDS; i++) {
        ask(kinds[i].kind, kinds[i].expected);
        /* Each process another kind. */
        const int mine = (i + test.rank) % KINDS;
        ask(kinds[mine].kind, kinds[mine].expected);
    }
    ask_for_nothing();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    ask_in_vain("cuda:unheard_of");
    /* Without a current device. */
    CHECK_EQUAL(cuda.set_current(NULL), 0);
    ask_in_vain("cuda:device");
    CHECK_EQUAL(cuda.set_current(test.context), 0);
    tear_down();
    return 0;
}
