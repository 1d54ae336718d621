/*
 * Each process posts a megabyte to the next one, whose handler says where it lands, as the example of
 * docs/active-messages.md does.
 *
 *     cargo build --release -p cableway -p cableway-capi
 *     cc -O2 -Icapi/include capi/examples/active.c -Ltarget/release -lcableway -Wl,-rpath,$PWD/target/release -o active
 *     target/release/cableway run -n 4 -- ./active
 */
#include <cableway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DATA = 1, BYTES = 1 << 20 };

static void check(int code)
{
    if (CABLEWAY_SUCCESS != code) {
        fprintf(stderr, "%s\n", cableway_last_error());
        exit(1);
    }
}

/* Where data lands. It may be memory of cudaMalloc as well. */
struct inbox {
    unsigned char *memory;
    int has_landed;
};

/* Is called once the data is there. */
static void landed(int error, uint64_t bytes, void *context)
{
    struct inbox *inbox = context;
    check(error);
    printf("%lu bytes landed, the last one is %d\n", (unsigned long) bytes, inbox->memory[bytes - 1]);
    inbox->has_landed = 1;
}

/* Chooses where the data lands, after it has seen the header. */
static void handle(cableway_am *message, void *context)
{
    struct inbox *inbox = context;
    cableway_am_info info;
    check(cableway_am_describe(message, &info));
    inbox->memory = malloc((size_t) info.bytes);
    if (NULL == inbox->memory) {
        fprintf(stderr, "the data is dropped\n");
        return;
    }
    check(cableway_am_receive(message, inbox->memory, (size_t) info.bytes, landed, inbox));
}

static int is_over(void *context)
{
    return ((const struct inbox *) context)->has_landed;
}

int main(void)
{
    cableway_world *world;
    cableway_communicator *everyone;
    struct inbox inbox = {NULL, 0};
    unsigned char *data = malloc(BYTES);
    int rank, size;

    if (NULL == data) {
        return 1;
    }
    check(cableway_init(NULL, 0, &world));
    check(cableway_world_communicator(world, &everyone));
    check(cableway_rank(everyone, &rank));
    check(cableway_size(everyone, &size));
    check(cableway_am_register(world, DATA, handle, &inbox));
    check(cableway_barrier(everyone));

    memset(data, rank, BYTES);
    check(cableway_am_post(world, (rank + 1) % size, DATA, NULL, 0, data, BYTES, NULL, NULL));
    check(cableway_progress_until(world, is_over, &inbox));
    /* The data can be reused after this. */
    check(cableway_am_flush(world));
    check(cableway_barrier(everyone));
    free(inbox.memory);
    free(data);
    check(cableway_finalize(&world));
    return 0;
}
