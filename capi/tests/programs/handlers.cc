// Active messages and registered memory in C++: a handler is an object, a registration is freed by its owner.
#include "job.h"

#include <functional>
#include <memory>
#include <vector>

namespace {

// A function object as a handler. It must live until the handler is removed.
class Handler {
public:
    Handler(uint32_t its_id, std::function<void(cableway_am *, const cableway_am_info &)> function)
        : id(its_id), call(std::move(function))
    {
        CALL(cableway_am_register(world, id, &Handler::enter, this));
    }
    Handler(const Handler &) = delete;
    Handler &operator=(const Handler &) = delete;
    ~Handler() { cableway_am_unregister(world, id); }

private:
    static void enter(cableway_am *message, void *context)
    {
        cableway_am_info info;
        CALL(cableway_am_describe(message, &info));
        static_cast<Handler *>(context)->call(message, info);
    }

    uint32_t id;
    std::function<void(cableway_am *, const cableway_am_info &)> call;
};

struct Deregister {
    void operator()(cableway_registration *registration) const { cableway_deregister(&registration); }
};
using Registration = std::unique_ptr<cableway_registration, Deregister>;

template <typename T> Registration registered(std::vector<T> &memory)
{
    cableway_registration *made = nullptr;
    CALL(cableway_register(world, memory.data(), memory.size() * sizeof(T), &made));
    return Registration(made);
}

void until(std::function<bool()> over)
{
    CALL(cableway_progress_until(
        world, [](void *context) { return (*static_cast<std::function<bool()> *>(context))() ? 1 : 0; }, &over));
}

} // namespace

int main()
{
    begin();
    {
        const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
        std::vector<uint64_t> memory(100), other(100);
        std::vector<cableway_remote_key> keys;
        // The key travels in an active message, and the put goes back to its sender.
        Registration window = registered(memory);
        Handler handler(1, [&](cableway_am *, const cableway_am_info &info) {
            CHECK_EQUAL(info.source, previous);
            CHECK_EQUAL(info.header_bytes, sizeof(cableway_remote_key));
            cableway_remote_key key;
            memcpy(&key, info.header, sizeof key);
            keys.push_back(key);
        });
        CALL(cableway_barrier(everyone));
        cableway_remote_key key;
        CALL(cableway_registration_key(window.get(), &key));
        CALL(cableway_am_post(world, next, 1, &key, sizeof key, nullptr, 0, nullptr, nullptr));
        until([&] { return keys.size() == 1; });

        std::vector<uint64_t> data(99, 1000 + static_cast<uint64_t>(rank));
        CALL(cableway_put_signal(data.data(), data.size() * sizeof data[0], &keys[0], 8, &keys[0], 0,
                                 CABLEWAY_SIGNAL_ADD, 5, everyone));
        CALL(cableway_registration_wait(window.get(), 0, CABLEWAY_NOT_EQUAL, 0, next, nullptr));
        CALL(cableway_registration_read(window.get(), 0, other.data(), other.size() * sizeof other[0]));
        CHECK_EQUAL(other[0], 5);
        CHECK_EQUAL(other[1], 1000 + next);
        CHECK_EQUAL(other[99], 1000 + next);
        CALL(cableway_barrier(everyone));
    }
    end();
    return 0;
}
