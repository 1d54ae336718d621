/* Two processes exchange messages that a kernel starts and waits for.
 *
 *   mp_kernel single|multiple                a thread of the host plays the kernel, and every call is checked
 *   mp_kernel LEVEL mp_kernel.ptx [STEPS]    a kernel of the device performs the ping-pong, whose time is printed
 *
 * CABLEWAY_CUDA_LIBDIR names the driver. */
#include "driver.h"

#include <pthread.h>

#include "mp_kernel/exchange.h"

enum { STEPS = 20, THREADS = 256, NON_BLOCKING = 1, NOT_READY = 600 };

static int me, other;
static long checks;
static cudaStream_t stream;
/* The driver's functions beside those of driver.h. */
static struct {
    void *handle;
    int (*create)(void **, unsigned);
    int (*destroy)(void *);
    int (*synchronize)(void *);
    int (*query)(void *);
    int (*fill)(device_pointer, unsigned char, size_t);
    int (*load)(void **, const void *);
    int (*function)(void **, void *, const char *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} driver;

template <typename F> static void symbol(F &function, const char *name)
{
    function = (F) dlsym(driver.handle, name);
    CHECK(NULL != function);
}

static void load_driver(void)
{
    driver.handle = open_driver();
    symbol(driver.create, "cuStreamCreate");
    symbol(driver.destroy, "cuStreamDestroy_v2");
    symbol(driver.synchronize, "cuStreamSynchronize");
    symbol(driver.query, "cuStreamQuery");
    symbol(driver.fill, "cuMemsetD8_v2");
    symbol(driver.load, "cuModuleLoadData");
    symbol(driver.function, "cuModuleGetFunction");
    symbol(driver.launch, "cuLaunchKernel");
}

static void barrier(void)
{
    CHECK_EQUAL(MPI_Barrier(MPI_COMM_WORLD), MPI_SUCCESS);
}

static void *at(device_pointer pointer)
{
    return (void *) (uintptr_t) pointer;
}

static device_pointer device_memory(size_t bytes)
{
    device_pointer pointer;
    CHECK_EQUAL(cuda.alloc(&pointer, bytes), 0);
    return pointer;
}

static void check_bytes(device_pointer pointer, size_t bytes, unsigned char value)
{
    unsigned char *got = (unsigned char *) malloc(bytes);
    CHECK(NULL != got);
    CHECK_EQUAL(cuda.to_host(got, pointer, bytes), 0);
    for (size_t i = 0; i < bytes; i++) {
        CHECK_EQUAL(got[i], value);
    }
    free(got);
    checks++;
}

/* One thread of the host, which plays a block of one thread. */
struct Played {
    device_pointer out, in;
    size_t bytes;

    void barrier() {}
    bool first() { return true; }
    void fill(unsigned step, unsigned char value) { CHECK_EQUAL(driver.fill(out + step * bytes, value, bytes), 0); }
    void check(unsigned step, unsigned char value) { check_bytes(in + step * bytes, bytes, value); }
};

/* What a played kernel gets. */
struct Run {
    Step *steps;
    Played work;
    void *context;
    int failed;
};

static void *play(void *argument)
{
    Run *run = (Run *) argument;
    CHECK_EQUAL(cuda.set_current(run->context), 0);
    run->failed = exchange(run->steps, STEPS, me, run->work);
    return NULL;
}

/* The requests and descriptors of a ping-pong, each with memory of its own. */
struct Exchange {
    unsigned count;
    size_t bytes;
    device_pointer out, in;
    mp_request_t *sends, *recvs;
    Step *steps;
};

static Exchange prepare(unsigned count, size_t bytes)
{
    Exchange all = {count, bytes, device_memory(count * bytes), device_memory(count * bytes), NULL, NULL, NULL};
    mp_request_t send, recv;
    all.sends = (mp_request_t *) calloc(count, sizeof send);
    all.recvs = (mp_request_t *) calloc(count, sizeof recv);
    all.steps = (Step *) calloc(count, sizeof(Step));
    CHECK(NULL != all.sends && NULL != all.recvs && NULL != all.steps);
    CHECK_EQUAL(driver.fill(all.in, 0, count * bytes), 0);
    /* The first message between two allocations maps memory, which must not wait for a kernel. */
    CHECK_EQUAL(mp_irecv(at(all.in), (int) bytes, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp_isend(at(all.out), (int) bytes, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_wait(&send) | mp_wait(&recv), MP_SUCCESS);
    for (unsigned i = 0; i < count; i++) {
        void *from = at(all.out + i * bytes), *to = at(all.in + i * bytes);
        CHECK_EQUAL(mp_irecv(to, (int) bytes, other, NULL, &all.recvs[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_send_prepare(from, (int) bytes, other, NULL, &all.sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp::mlx5::get_descriptors(&all.steps[i].send, &all.sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp::mlx5::get_descriptors(&all.steps[i].sent, &all.sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp::mlx5::get_descriptors(&all.steps[i].received, &all.recvs[i]), MP_SUCCESS);
    }
    barrier();
    return all;
}

static void finish(Exchange &all)
{
    CHECK_EQUAL(mp_wait_all(all.count, all.sends), MP_SUCCESS);
    CHECK_EQUAL(mp_wait_all(all.count, all.recvs), MP_SUCCESS);
    for (unsigned i = 0; i < all.count; i++) {
        CHECK(NULL == all.sends[i] && NULL == all.recvs[i]);
    }
    CHECK_EQUAL(cuda.free(all.out) | cuda.free(all.in), 0);
    free(all.sends), free(all.recvs), free(all.steps);
}

static void played_ping_pong(size_t bytes, void *context)
{
    Exchange all = prepare(STEPS, bytes);
    Run run = {all.steps, {all.out, all.in, bytes}, context, 0};
    pthread_t thread;
    CHECK_EQUAL(pthread_create(&thread, NULL, play, &run), 0);
    finish(all);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK_EQUAL(run.failed, 0);
}

/* A kernel that runs on the device. Prints the time of a message. */
static void real_ping_pong(size_t bytes, unsigned count, void *function)
{
    Exchange all = prepare(count, bytes);
    device_pointer steps = device_memory(count * sizeof(Step)), wrong = device_memory(THREADS * sizeof(int));
    int faults[THREADS];
    double began, ended;
    CHECK_EQUAL(cuda.to_device(steps, all.steps, count * sizeof(Step)), 0);
    void *arguments[] = {&steps, &count, &me, &all.out, &all.in, &bytes, &wrong};
    barrier();
    began = MPI_Wtime();
    CHECK_EQUAL(driver.launch(function, 1, 1, 1, THREADS, 1, 1, 0, stream, arguments, NULL), 0);
    CHECK_EQUAL(driver.synchronize(stream), 0);
    ended = MPI_Wtime();
    finish(all);
    CHECK_EQUAL(cuda.to_host(faults, wrong, sizeof faults), 0);
    for (int i = 0; i < THREADS; i++) {
        CHECK_EQUAL(faults[i], 0);
    }
    checks += count;
    if (0 == me) {
        printf("kernel-initiated ping-pong: %zu bytes, %u steps: %.2f us one way, data right\n", bytes, count,
               (ended - began) * 1e6 / count / 2);
        fflush(stdout);
    }
    CHECK_EQUAL(cuda.free(steps) | cuda.free(wrong), 0);
}

static void *wait_for(void *request)
{
    CHECK_EQUAL(mp_wait((mp_request_t *) request), MP_SUCCESS);
    return NULL;
}

/* mp_wait returns after the kernel has said that it saw the end. */
static void seen(void)
{
    int out = 5 + me, in = 0;
    mp_request_t send, recv;
    mp::mlx5::send_desc_t start;
    mp::mlx5::wait_desc_t received;
    pthread_t thread;
    CHECK_EQUAL(mp_irecv(&in, sizeof in, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&received, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp_send_prepare(&out, sizeof out, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&start, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_progress_all(1, &send), 0);
    mp::device::mlx5::send(start);
    CHECK_EQUAL(mp::device::mlx5::wait(received), 0);
    CHECK_EQUAL(in, 5 + other);
    CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    CHECK_EQUAL(pthread_create(&thread, NULL, wait_for, &recv), 0);
    /* A message that comes meanwhile shows that time has passed. */
    barrier();
    CHECK(NULL != __atomic_load_n(&recv, __ATOMIC_ACQUIRE));
    mp::device::mlx5::signal(received);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK(NULL == recv);
    checks++;
}

/* Messages start in the order of their descriptors, although the kernel starts the second one first. A put is among them. */
static void order(void)
{
    enum { WORDS = 1024 };
    static uint32_t memory[WORDS];
    uint32_t out[3] = {100, 200, 300}, in[2] = {0, 0};
    mp_request_t sends[2], recvs[2], put;
    mp::mlx5::send_desc_t starts[3];
    mp_window_t window;
    out[0] += me, out[1] += me, out[2] += me;
    memset(memory, 0, sizeof memory);
    CHECK_EQUAL(mp_window_create(memory, sizeof memory, &window), MP_SUCCESS);
    for (int i = 0; i < 2; i++) {
        CHECK_EQUAL(mp_irecv(&in[i], 4, other, NULL, &recvs[i]), MP_SUCCESS);
        CHECK_EQUAL(mp_send_prepare(&out[i], 4, other, NULL, &sends[i]), MP_SUCCESS);
        CHECK_EQUAL(mp::mlx5::get_descriptors(&starts[i], &sends[i]), MP_SUCCESS);
    }
    CHECK_EQUAL(mp_put_prepare(&out[2], 4, NULL, other, 8, &window, &put, 0), MP_SUCCESS);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&starts[2], &put), MP_SUCCESS);
    mp::device::mlx5::send(starts[2]);
    mp::device::mlx5::send(starts[1]);
    barrier();
    CHECK_EQUAL(mp_progress_all(2, recvs), 0);
    CHECK_EQUAL(mp_progress_all(1, &put), 0);
    /* Both have looked. */
    barrier();
    mp::device::mlx5::send(starts[0]);
    CHECK_EQUAL(mp_wait_all(2, recvs) | mp_wait_all(2, sends) | mp_wait(&put), MP_SUCCESS);
    CHECK_EQUAL(in[0], 100 + other);
    CHECK_EQUAL(in[1], 200 + other);
    barrier();
    CHECK_EQUAL(__atomic_load_n(&memory[2], __ATOMIC_ACQUIRE), 300 + other);
    CHECK_EQUAL(mp_window_destroy(&window), MP_SUCCESS);
    checks++;
}

/* A word of the program is between a kernel and a stream, and the conditions are what they say. */
static void words(void)
{
    mp::mlx5::isem32_t sem;
    gds_mem_desc_t shared;
    CHECK_EQUAL(gds_alloc_mapped_memory(&shared, 4096, GDS_MEMORY_HOST), 0);
    uint32_t *word = (uint32_t *) shared.h_ptr;
    CHECK_EQUAL(mp::mlx5::get_descriptors(&sem, word, 8), MP_SUCCESS);
    CHECK_EQUAL(mp_wait32_on_stream(word, 8, MP_WAIT_EQ, stream), MP_SUCCESS);
    barrier();
    CHECK_EQUAL(driver.query(stream), NOT_READY);
    gdsync::device::release(sem);
    CHECK_EQUAL(driver.synchronize(stream), 0);
    static const struct {
        gds_wait_cond_flag_t condition;
        uint32_t word, value;
    } cases[] = {
        {GDS_WAIT_COND_EQ, 8, 8},           {GDS_WAIT_COND_GEQ, 8, 7},  {GDS_WAIT_COND_GEQ, 3, 0xffffffff},
        {GDS_WAIT_COND_AND, 12, 8},         {GDS_WAIT_COND_NOR, 0xfe, 0xffffff00},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        __atomic_store_n(word, cases[i].word, __ATOMIC_RELEASE);
        sem.value = cases[i].value;
        CHECK_EQUAL(gdsync::device::wait(sem, cases[i].condition), 0);
    }
    CHECK_EQUAL(gdsync::device::wait(sem, (gds_wait_cond_flag_t) 4), gdsync::ERROR_INVALID);
    CHECK_EQUAL(gds_free_mapped_memory(&shared), 0);
    checks++;
}

static void errors(void)
{
    static uint32_t unregistered;
    unsigned char four[4] = {1, 2, 3, 4}, byte = 0;
    mp_request_t none = NULL, send, recv;
    mp::mlx5::isem32_t sem;
    mp::mlx5::send_desc_t start;
    mp::mlx5::wait_desc_t ended;
    CHECK_EQUAL(mp::mlx5::get_descriptors(&start, &none), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&ended, &none), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&sem, &unregistered, 1), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&sem, (uint32_t *) NULL, 1), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&sem, (uint32_t *) ((char *) &unregistered + 1), 1), MP_FAILURE);
    CHECK_EQUAL(mp_send_prepare(four, 4, other, NULL, &send), MP_SUCCESS);
    CHECK_EQUAL(mp_kernel_send_descriptor(&send, NULL), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&ended, &send), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&start, &send), MP_SUCCESS);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&start, &send), MP_FAILURE);
    CHECK_EQUAL(mp_isend_post_on_stream(&send, stream), MP_FAILURE);
    /* A message that is too long for its receive: the kernel and the host learn of it, and the kernel says nothing more. */
    CHECK_EQUAL(mp_irecv(&byte, 1, other, NULL, &recv), MP_SUCCESS);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&start, &recv), MP_FAILURE);
    CHECK_EQUAL(mp::mlx5::get_descriptors(&ended, &recv), MP_SUCCESS);
    mp::device::mlx5::send(start);
    CHECK_EQUAL(mp::device::mlx5::wait(ended), gdsync::ERROR_FAILED);
    CHECK_EQUAL(mp_wait(&recv), MP_FAILURE);
    CHECK_EQUAL(mp_wait(&send), MP_SUCCESS);
    /* A kernel may still read the words of a request that failed, so that no other request gets them. */
    uint32_t *abandoned = ended.sema.ptr;
    for (int i = 0; i < 3; i++) {
        unsigned char came[4];
        CHECK_EQUAL(mp_irecv(came, 4, other, NULL, &recv), MP_SUCCESS);
        CHECK_EQUAL(mp::mlx5::get_descriptors(&ended, &recv), MP_SUCCESS);
        CHECK(abandoned != ended.sema.ptr);
        CHECK_EQUAL(mp_isend(four, 4, other, NULL, &send), MP_SUCCESS);
        CHECK_EQUAL(mp::device::mlx5::wait(ended), 0);
        mp::device::mlx5::signal(ended);
        CHECK_EQUAL(mp_wait(&send) | mp_wait(&recv), MP_SUCCESS);
        CHECK_EQUAL(memcmp(came, four, 4), 0);
    }
    checks++;
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = {8, 5000, 300000};
    const int wanted = argc > 1 && 0 == strcmp(argv[1], "multiple") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
    const unsigned count = argc > 3 ? (unsigned) atoi(argv[3]) : 200;
    int provided, device, devices = 0;
    void *context = NULL, *module = NULL, *function = NULL;
    long all = 0;
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    other = 1 - me;
    load();
    load_driver();
    CHECK_EQUAL(cuda.init(0), 0);
    CHECK_EQUAL(cuda.device_get_count(&devices), 0);
    CHECK_EQUAL(cuda.device_get(&device, me % devices), 0);
    CHECK_EQUAL(cuda.retain(&context, device), 0);
    CHECK_EQUAL(cuda.set_current(context), 0);
    CHECK_EQUAL(driver.create((void **) &stream, NON_BLOCKING), 0);
    CHECK_EQUAL(mp_init(MPI_COMM_WORLD, &other, 1, MP_INIT_DEFAULT, 0), MP_SUCCESS);
    if (argc > 2) {
        static char text[1 << 20];
        FILE *file = fopen(argv[2], "r");
        CHECK(NULL != file && fread(text, 1, sizeof text - 1, file) > 0);
        CHECK_EQUAL(fclose(file), 0);
        CHECK_EQUAL(driver.load(&module, text), 0);
        CHECK_EQUAL(driver.function(&function, module, "exchange_kernel"), 0);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (NULL != function) {
            /* The first launch loads the kernel. */
            real_ping_pong(sizes[i], 4, function);
            real_ping_pong(sizes[i], count, function);
        } else {
            played_ping_pong(sizes[i], context);
        }
    }
    /* A thread of its own calls mp_wait. */
    if (MPI_THREAD_MULTIPLE == provided) {
        seen();
    }
    order();
    words();
    errors();
    mp_finalize();
    CHECK_EQUAL(driver.destroy(stream), 0);
    MPI_Reduce(&checks, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (0 == me) {
        printf("checks: %ld\n", all);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
