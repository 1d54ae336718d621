// The interface from C++: handles with owners, and a vector's memory.
#include <cableway.h>

#include <cstdio>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace {

void check(int code)
{
    if (code != CABLEWAY_SUCCESS) {
        throw std::runtime_error(cableway_last_error());
    }
}

struct Finalize {
    void operator()(cableway_world *world) const { cableway_finalize(&world); }
};

struct FreeCommunicator {
    void operator()(cableway_communicator *communicator) const { cableway_communicator_free(&communicator); }
};

// Ends the operation before its buffer is freed.
struct FreeRequest {
    void operator()(cableway_request *request) const { cableway_request_free(&request); }
};

using World = std::unique_ptr<cableway_world, Finalize>;
using Communicator = std::unique_ptr<cableway_communicator, FreeCommunicator>;
using Request = std::unique_ptr<cableway_request, FreeRequest>;

void run()
{
    cableway_world *joined = nullptr;
    check(cableway_init(nullptr, 0, &joined));
    World world(joined);
    cableway_communicator *everyone = nullptr, *copied = nullptr;
    check(cableway_world_communicator(world.get(), &everyone));
    check(cableway_dup(everyone, &copied));
    Communicator copy(copied);
    int rank = -1, size = 0;
    check(cableway_rank(copy.get(), &rank));
    check(cableway_size(copy.get(), &size));

    std::vector<double> mine(1000, rank + 1.0), sums(mine.size());
    check(cableway_allreduce(mine.data(), sums.data(), mine.size(), CABLEWAY_DOUBLE, CABLEWAY_SUM, copy.get()));
    const double expected = size * (size + 1) / 2.0;
    if (std::accumulate(sums.begin(), sums.end(), 0.0) != expected * static_cast<double>(sums.size())) {
        throw std::runtime_error("the sums are wrong");
    }

    // A request that is dropped before any message came.
    try {
        std::vector<double> never(10);
        cableway_request *started = nullptr;
        check(cableway_irecv(never.data(), never.size() * sizeof(double), CABLEWAY_BYTE, rank, 9, copy.get(), &started));
        Request request(started);
        check(cableway_send(mine.data(), 1, CABLEWAY_BYTE, size, 0, copy.get()));
        throw std::logic_error("there is no such rank");
    } catch (const std::runtime_error &error) {
        std::printf("refused: %s\n", error.what());
    }
    check(cableway_barrier(copy.get()));
}

} // namespace

int main()
{
    try {
        run();
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    std::printf("done\n");
    return 0;
}
