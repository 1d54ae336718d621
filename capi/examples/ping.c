/*
 * Two processes time a message there and back.
 *
 *     cargo build --release -p cableway -p cableway-capi
 *     cc -O2 -Icapi/include capi/examples/ping.c -Ltarget/release -lcableway -Wl,-rpath,$PWD/target/release -o ping
 *     target/release/cableway run -n 2 -- ./ping
 */
#define _POSIX_C_SOURCE 200809L

#include <cableway.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void check(int code)
{
    if (CABLEWAY_SUCCESS != code) {
        fprintf(stderr, "%s\n", cableway_last_error());
        exit(1);
    }
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double) time.tv_sec + 1e-9 * (double) time.tv_nsec;
}

int main(void)
{
    enum { ROUNDS = 1000 };
    cableway_world *world;
    cableway_communicator *everyone;
    int rank, size, round;
    double began, message[1024] = {0};

    check(cableway_init(NULL, 0, &world));
    check(cableway_world_communicator(world, &everyone));
    check(cableway_rank(everyone, &rank));
    check(cableway_size(everyone, &size));
    if (2 != size) {
        fprintf(stderr, "start two processes: cableway run -n 2 -- ./ping\n");
        return 1;
    }

    check(cableway_barrier(everyone));
    began = now();
    for (round = 0; round < ROUNDS; round++) {
        if (0 == rank) {
            message[0] = round;
            check(cableway_send(message, sizeof message, CABLEWAY_BYTE, 1, 0, everyone));
            check(cableway_recv(message, sizeof message, CABLEWAY_BYTE, 1, 0, everyone, NULL));
        } else {
            check(cableway_recv(message, sizeof message, CABLEWAY_BYTE, 0, 0, everyone, NULL));
            check(cableway_send(message, sizeof message, CABLEWAY_BYTE, 0, 0, everyone));
        }
    }
    if (0 == rank) {
        printf("%zu bytes there and back: %.2f us\n", sizeof message, 1e6 * (now() - began) / ROUNDS);
    }
    check(cableway_finalize(&world));
    return 0;
}
