/* Active messages: handlers, replies, and data that lands where a handler says. */
#include "memory.h"

enum { SMALL = 1, LARGE = 2, SHORT = 3, NOWHERE = 4, ANSWER = 5, LARGEST = 700000 };

static int previous, next;
static struct memory room;
static unsigned char *host;
static uint64_t landed, answers, freed, truncated, smalls;

static void on_small(cableway_am *message, void *context)
{
    cableway_am_info info;
    size_t bytes;

    CHECK(context == &smalls);
    CALL(cableway_am_describe(message, &info));
    CHECK_EQUAL(info.source, previous);
    CHECK_EQUAL(info.id, SMALL);
    CHECK_EQUAL(info.header_bytes, sizeof bytes);
    memcpy(&bytes, info.header, sizeof bytes);
    CHECK_EQUAL(info.bytes, bytes);
    CHECK(NULL != info.data && holds(info.data, bytes, previous));
    smalls++;
    CALL(cableway_am_reply(message, ANSWER, "yes", 3, NULL, 0, NULL, NULL));
}

static void on_answer(cableway_am *message, void *context)
{
    cableway_am_info info;

    CHECK(NULL == context);
    CALL(cableway_am_describe(message, &info));
    CHECK_EQUAL(info.source, next);
    CHECK_EQUAL(info.bytes, 0);
    CHECK(3 == info.header_bytes && 0 == memcmp(info.header, "yes", 3));
    answers++;
}

static void is_there(int error, uint64_t bytes, void *context)
{
    CHECK_EQUAL(error, CABLEWAY_SUCCESS);
    CHECK_EQUAL(bytes, *(size_t *) context);
    landed++;
}

static void on_large(cableway_am *message, void *context)
{
    cableway_am_info info;

    CALL(cableway_am_describe(message, &info));
    CHECK(NULL == info.data && info.bytes <= room.bytes);
    *(size_t *) context = (size_t) info.bytes;
    CALL(cableway_am_receive(message, room.address, room.bytes, is_there, context));
    FAILS(cableway_am_describe(message, &info), CABLEWAY_ERR_HANDLE, "was received already");
    FAILS(cableway_am_receive(message, NULL, 0, NULL, NULL), CABLEWAY_ERR_HANDLE, "was received already");
}

static void is_truncated(int error, uint64_t bytes, void *context)
{
    CHECK_EQUAL(error, CABLEWAY_ERR_TRUNCATED);
    CHECK(NULL != strstr(cableway_last_error(), "exceeds the receive buffer of 100 bytes"));
    CHECK_EQUAL(bytes, 0);
    CHECK(NULL == context);
    truncated++;
}

static void on_short(cableway_am *message, void *context)
{
    CHECK(NULL == context);
    CALL(cableway_am_receive(message, room.address, 100, is_truncated, NULL));
}

static void drops(cableway_am *message, void *context)
{
    CHECK(NULL == context);
    (void) message;
}

static void is_free(int error, uint64_t bytes, void *context)
{
    CHECK_EQUAL(error, CABLEWAY_SUCCESS);
    CHECK(context == &freed && bytes <= LARGEST);
    freed++;
}

struct goal {
    const uint64_t *count;
    uint64_t least;
};

static int reached(void *context)
{
    const struct goal *goal = context;
    return *goal->count >= goal->least;
}

static void until(const uint64_t *count, uint64_t least)
{
    struct goal goal = {count, least};
    CALL(cableway_progress_until(world, reached, &goal));
    CHECK_EQUAL(*count, least);
}

int main(int argc, char **argv)
{
    static const size_t small[] = {0, 1, 100, 8192}, large[] = {8193, 65536, LARGEST};
    static size_t arriving;
    struct memory data;
    uint64_t handled, unknown, turn;
    char header[CABLEWAY_AM_HEADER_LIMIT + 1] = {0};
    size_t at;

    begin();
    select_memory(argc, argv);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    room = obtain(LARGEST);
    data = obtain(LARGEST);
    host = allocate(LARGEST);
    CALL(cableway_am_register(world, SMALL, on_small, &smalls));
    CALL(cableway_am_register(world, LARGE, on_large, &arriving));
    CALL(cableway_am_register(world, SHORT, on_short, NULL));
    CALL(cableway_am_register(world, NOWHERE, drops, NULL));
    CALL(cableway_am_register(world, ANSWER, on_answer, NULL));
    FAILS(cableway_am_register(world, SMALL, on_small, NULL), CABLEWAY_ERR_ARGUMENT, "has a handler already");
    FAILS(cableway_am_register(world, 99, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the handler is a null pointer");
    FAILS(cableway_am_unregister(world, 99), CABLEWAY_ERR_ARGUMENT, "no handler of active messages with id 99");
    CALL(cableway_barrier(everyone));

    /* Host data that is small can be changed at once. */
    for (at = 0; at < sizeof small / sizeof small[0]; at++) {
        fill(host, small[at], rank);
        CALL(cableway_am_post(world, next, SMALL, &small[at], sizeof small[at], host, small[at], NULL, NULL));
        memset(host, 0, LARGEST);
    }
    until(&answers, at);
    until(&smalls, at);

    for (turn = 0; turn < sizeof large / sizeof large[0]; turn++) {
        size_t bytes = large[turn];
        fill(host, bytes, rank);
        put(&data, host, bytes);
        CALL(cableway_am_post(world, next, LARGE, NULL, 0, data.address, bytes, is_free, &freed));
        until(&landed, turn + 1);
        until(&freed, turn + 1);
        get(&room, host, bytes);
        CHECK(holds(host, bytes, previous));
        CALL(cableway_barrier(everyone));
    }

    /* A buffer that is too short, and data that nobody wants. */
    CALL(cableway_am_post(world, next, SHORT, NULL, 0, data.address, LARGEST, is_free, &freed));
    until(&truncated, 1);
    until(&freed, turn + 1);
    CALL(cableway_am_post(world, next, NOWHERE, NULL, 0, data.address, LARGEST, NULL, NULL));
    CALL(cableway_am_flush(world));

    FAILS(cableway_am_post(world, next, SMALL, header, sizeof header, NULL, 0, is_free, NULL), CABLEWAY_ERR_ARGUMENT,
          "header of 2049 bytes exceeds 2048 bytes");
    FAILS(cableway_am_post(world, size, SMALL, NULL, 0, NULL, 0, NULL, NULL), CABLEWAY_ERR_RANK, "invalid rank");
    FAILS(cableway_am_post(world, next, SMALL, NULL, 1, NULL, 0, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the header");
    FAILS(cableway_am_post(world, next, SMALL, NULL, 0, NULL, 1, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the buffer");
    FAILS(cableway_am_describe((cableway_am *) world, NULL), CABLEWAY_ERR_ARGUMENT, "place for the description");
    FAILS(cableway_am_reply((cableway_am *) world, 1, NULL, 0, NULL, 0, NULL, NULL), CABLEWAY_ERR_HANDLE,
          "a message of a handler is needed");
    FAILS(cableway_progress_until(world, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the condition is a null pointer");
    CALL(cableway_barrier(everyone));
    CALL(cableway_am_counts(world, &handled, &unknown));
    CHECK_EQUAL(handled, 2 * sizeof small / sizeof small[0] + sizeof large / sizeof large[0] + 2);
    CHECK_EQUAL(unknown, 0);
    CALL(cableway_am_unregister(world, SMALL));

    CALL(cableway_barrier(everyone));
    release(&room);
    release(&data);
    free(host);
    end();
    return 0;
}
