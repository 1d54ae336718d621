/*
 * One-sided operations and active messages on device memory from C++, as docs/one-sided-examples.md goes through them.
 *
 *     cargo build --release -p cableway -p cableway-capi
 *     c++ -O2 -Icapi/include capi/examples/one_sided_device.cc -Ltarget/release -lcableway \
 *         -Wl,-rpath,$PWD/target/release -o one_sided_device
 *     target/release/cableway run -n 2 -- ./one_sided_device
 */
#include <cableway.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t COUNT = 1 << 20, BYTES = COUNT * sizeof(float);
/* Words of signals, which lie on the host, where the owner's CPU reads them soonest. */
constexpr uint64_t PUT = 0, READ = 8;

void check(int code)
{
    if (code != CABLEWAY_SUCCESS) {
        std::fprintf(stderr, "%s\n", cableway_last_error());
        std::exit(1);
    }
}

/* Device memory. That of cudaMalloc is used in the same way, by its address. */
struct Memory {
    cableway_device_buffer *buffer = nullptr;
    void *address = nullptr;

    Memory(cableway_world *world, int device, float value)
    {
        std::vector<float> values(COUNT, value);
        check(cableway_device_allocate(world, device, CABLEWAY_MEMORY_DEVICE, BYTES, &buffer, &address));
        check(cableway_device_write(buffer, 0, values.data(), BYTES));
    }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    ~Memory() { check(cableway_device_free(&buffer)); }

    /* Checks numbers that lie `stride` apart. */
    void expect(float value, size_t stride = 1) const
    {
        std::vector<float> values(COUNT);
        check(cableway_device_read(buffer, 0, values.data(), BYTES));
        for (size_t at = 0; at < COUNT; at += stride) {
            if (values[at] != value) {
                std::fprintf(stderr, "number %zu is %g instead of %g\n", at, values[at], value);
                std::exit(1);
            }
        }
    }
};

struct Keys {
    cableway_remote_key window, signals;
};

cableway_world *world;
cableway_communicator *everyone;
int rank, size, device, next, previous;

/* A put without a signal: the owner learns by other means that the data is there. */
void put(const Memory &memory, const Keys &theirs)
{
    Memory data(world, device, 1.0f);
    /* The data is in the memory of the next process when this returns. */
    check(cableway_put(data.address, BYTES, &theirs.window, 0, everyone));
    check(cableway_barrier(everyone));
    memory.expect(1.0f);
    check(cableway_barrier(everyone));
}

/* A put with a signal: the owner waits for a word, which changes after the data is there. */
void put_signal(const Memory &memory, cableway_registration *signals, const Keys &theirs)
{
    Memory data(world, device, 2.0f);
    cableway_request *requests[2];
    for (size_t half = 0; half < 2; half++) {
        check(cableway_iput_signal(static_cast<char *>(data.address) + half * BYTES / 2, BYTES / 2, &theirs.window,
                                   half * BYTES / 2, &theirs.signals, PUT, CABLEWAY_SIGNAL_ADD, 1, everyone,
                                   &requests[half]));
    }
    check(cableway_waitall(2, requests, nullptr));
    check(cableway_registration_wait(signals, PUT, CABLEWAY_EQUAL, 2, previous, nullptr));
    memory.expect(2.0f);
    check(cableway_barrier(everyone));
}

/* A get. Its signal tells the owner that it may write the memory again. */
void get(cableway_registration *signals, const Keys &theirs)
{
    Memory room(world, device, 0.0f);
    check(cableway_get_signal(room.address, BYTES, &theirs.window, 0, &theirs.signals, READ, CABLEWAY_SIGNAL_SET, 1,
                              everyone));
    check(cableway_registration_wait(signals, READ, CABLEWAY_EQUAL, 1, previous, nullptr));
    room.expect(2.0f);
}

/* The last column of a matrix of 1024 x 1024 becomes the first column of the next process's. */
void columns(const Memory &memory, const Keys &theirs)
{
    Memory matrix(world, device, 3.0f);
    cableway_datatype *column = nullptr;
    check(cableway_type_hvector(1024, sizeof(float), 1024 * sizeof(float), CABLEWAY_BYTE, &column));
    check(cableway_put_typed(static_cast<float *>(matrix.address) + 1023, 1, column, &theirs.window, 0, 1, column, nullptr,
                             0, 0, 0, everyone));
    check(cableway_type_free(&column));
    check(cableway_barrier(everyone));
    memory.expect(3.0f, 1024);
}

/* Where the data of active messages lands. */
struct Inbox {
    const Memory *memory;
    bool has_landed;
};

void landed(int error, uint64_t, void *context)
{
    check(error);
    static_cast<Inbox *>(context)->has_landed = true;
}

/* Chooses device memory after it has seen the header. */
void handle(cableway_am *message, void *context)
{
    Inbox *inbox = static_cast<Inbox *>(context);
    cableway_am_info info;
    check(cableway_am_describe(message, &info));
    check(cableway_am_receive(message, inbox->memory->address, static_cast<size_t>(info.bytes), landed, inbox));
}

int is_over(void *context)
{
    return static_cast<Inbox *>(context)->has_landed;
}

void active_message()
{
    Memory room(world, device, 0.0f), data(world, device, 4.0f);
    Inbox inbox{&room, false};
    check(cableway_am_register(world, 1, handle, &inbox));
    check(cableway_barrier(everyone));
    check(cableway_am_post(world, next, 1, "for the device", 14, data.address, BYTES, nullptr, nullptr));
    check(cableway_progress_until(world, is_over, &inbox));
    /* The data can be reused after this. */
    check(cableway_am_flush(world));
    room.expect(4.0f);
    check(cableway_barrier(everyone));
}

/* Messages take device memory in any mixture: here device memory there and host memory here. */
void sendrecv()
{
    Memory data(world, device, 5.0f);
    std::vector<float> received(COUNT);
    check(cableway_sendrecv(data.address, BYTES, CABLEWAY_BYTE, next, 0, received.data(), BYTES, CABLEWAY_BYTE, previous, 0,
                            everyone, nullptr));
    if (received.front() != 5.0f || received.back() != 5.0f) {
        std::exit(1);
    }
}

} // namespace

int main()
{
    int devices = 0;
    check(cableway_init(nullptr, 0, &world));
    check(cableway_world_communicator(world, &everyone));
    check(cableway_rank(everyone, &rank));
    check(cableway_size(everyone, &size));
    check(cableway_device_count(world, &devices));
    device = rank % devices;
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    {
        /* Registers device memory, and host memory for signals. Every process gets the keys of all. */
        Memory memory(world, device, 0.0f);
        uint64_t words[2] = {0, 0};
        cableway_registration *window = nullptr, *signals = nullptr;
        check(cableway_register(world, memory.address, BYTES, &window));
        check(cableway_register(world, words, sizeof words, &signals));
        Keys mine;
        check(cableway_registration_key(window, &mine.window));
        check(cableway_registration_key(signals, &mine.signals));
        std::vector<Keys> keys(static_cast<size_t>(size));
        check(cableway_allgather(&mine, sizeof mine, CABLEWAY_BYTE, keys.data(), sizeof mine, CABLEWAY_BYTE, everyone));
        const Keys &theirs = keys[static_cast<size_t>(next)];

        put(memory, theirs);
        put_signal(memory, signals, theirs);
        get(signals, theirs);
        columns(memory, theirs);
        active_message();
        sendrecv();
        std::printf("rank %d is done\n", rank);
        /* The memory stays registered until every process is done with it. */
        check(cableway_barrier(everyone));
        check(cableway_deregister(&window));
        check(cableway_deregister(&signals));
    }
    check(cableway_finalize(&world));
    return 0;
}
