/*
 * Puts data into the next process's registered memory, and counts in process 0's, as examples/one_sided.rs does.
 *
 *     cargo build --release -p cableway -p cableway-capi
 *     cc -O2 -Icapi/include capi/examples/one_sided.c -Ltarget/release -lcableway -Wl,-rpath,$PWD/target/release -o put
 *     target/release/cableway run -n 4 -- ./put
 */
#include <cableway.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code)
{
    if (CABLEWAY_SUCCESS != code) {
        fprintf(stderr, "%s\n", cableway_last_error());
        exit(1);
    }
}

int main(void)
{
    enum { COUNT = 100 };
    cableway_world *world;
    cableway_communicator *everyone;
    cableway_registration *window;
    cableway_remote_key mine, *keys;
    /* Word 0 is a signal, word 1 a counter. The memory may be of a device as well. */
    uint64_t memory[2 + COUNT] = {0}, data[COUNT], received[COUNT], ticket;
    int rank, size, next, previous, at;

    check(cableway_init(NULL, 0, &world));
    check(cableway_world_communicator(world, &everyone));
    check(cableway_rank(everyone, &rank));
    check(cableway_size(everyone, &size));
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    keys = malloc(sizeof *keys * (size_t) size);
    if (NULL == keys) {
        return 1;
    }

    /* Each process registers memory, and sends its key to all others. */
    check(cableway_register(world, memory, sizeof memory, &window));
    check(cableway_registration_key(window, &mine));
    check(cableway_allgather(&mine, sizeof mine, CABLEWAY_BYTE, keys, sizeof mine, CABLEWAY_BYTE, everyone));

    /* The signal changes after the data is there. */
    for (at = 0; at < COUNT; at++) {
        data[at] = (uint64_t) rank;
    }
    check(cableway_put_signal(data, sizeof data, &keys[next], 16, &keys[next], 0, CABLEWAY_SIGNAL_SET, 1, everyone));
    check(cableway_registration_wait(window, 0, CABLEWAY_EQUAL, 1, previous, NULL));
    check(cableway_registration_read(window, 16, received, sizeof received));
    printf("rank %d got %" PRIu64 " from rank %d\n", rank, received[COUNT - 1], previous);

    check(cableway_atomic64(CABLEWAY_ATOMIC_ADD, 1, 0, &keys[0], 8, everyone, &ticket));
    printf("rank %d has ticket %" PRIu64 "\n", rank, ticket);

    /* The memory stays registered until every process is done with it. */
    check(cableway_barrier(everyone));
    check(cableway_deregister(&window));
    free(keys);
    check(cableway_finalize(&world));
    return 0;
}
