/* Derived types: the received bytes must be what MPI_Pack defines, for every shape and protocol. */
#include "check.h"

#include <stddef.h>

static int rank, size, next, previous;

static unsigned char expected(int who, int position)
{
    return (unsigned char) (who * 13 + position * 5 + 1);
}

/* Sends `count` elements of the type, whose bytes lie within [base, base + room), and receives the same from the
 * neighbour. */
static void exchange(MPI_Datatype type, int count, int room, int offset)
{
    unsigned char *out = malloc(room), *in = malloc(room), *should = malloc(room), *packed;
    int bytes, position = 0, elements;
    MPI_Status status;
    MPI_Request request;
    for (int i = 0; i < room; i++) {
        out[i] = expected(rank, i);
        in[i] = should[i] = 0xee;
    }
    MPI_Pack_size(count, type, MPI_COMM_WORLD, &bytes);
    packed = malloc(bytes + 1);

    /* The neighbour's bytes, by MPI_Pack and MPI_Unpack. */
    unsigned char *theirs = malloc(room);
    for (int i = 0; i < room; i++) {
        theirs[i] = expected(previous, i);
    }
    MPI_Pack(theirs + offset, count, type, packed, bytes, &position, MPI_COMM_WORLD);
    int end = position;
    position = 0;
    MPI_Unpack(packed, end, &position, should + offset, count, type, MPI_COMM_WORLD);

    MPI_Sendrecv(out + offset, count, type, next, 1, in + offset, count, type, previous, 1, MPI_COMM_WORLD, &status);
    CHECK(0 == memcmp(in, should, room));
    MPI_Get_elements(&status, MPI_BYTE, &elements);
    CHECK_EQUAL(elements, end);

    /* Typed on this side, bytes on the other. */
    memset(packed, 0, bytes);
    MPI_Isend(out + offset, count, type, next, 2, MPI_COMM_WORLD, &request);
    MPI_Recv(packed, end, MPI_BYTE, previous, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    memset(in, 0xee, room);
    position = 0;
    MPI_Unpack(packed, end, &position, in + offset, count, type, MPI_COMM_WORLD);
    CHECK(0 == memcmp(in, should, room));

    /* By absolute addresses. */
    MPI_Aint address;
    MPI_Datatype absolute;
    int blocks = count;
    memset(in, 0xee, room);
    MPI_Get_address(in + offset, &address);
    MPI_Type_create_struct(1, &blocks, &address, &type, &absolute);
    MPI_Type_commit(&absolute);
    MPI_Irecv(MPI_BOTTOM, 1, absolute, previous, 3, MPI_COMM_WORLD, &request);
    MPI_Type_free(&absolute); /* the request keeps it */
    MPI_Send(out + offset, count, type, next, 3, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(0 == memcmp(in, should, room));
    free(theirs);
    free(packed);
    free(should);
    free(in);
    free(out);
}

static void commit_exchange_free(MPI_Datatype type, int count, int room, int offset)
{
    MPI_Type_commit(&type);
    exchange(type, count, room, offset);
    exchange(type, count, room, offset);
    MPI_Type_free(&type);
}

struct record {
    char name[3];
    int number;
    double value;
};

int main(int argc, char **argv)
{
    MPI_Datatype type, other;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;

    for (int blocks = 1; blocks <= 1 << 15; blocks *= 32) {
        MPI_Type_vector(blocks, 3, 7, MPI_INT, &type);
        commit_exchange_free(type, 1, blocks * 28, 0);
        MPI_Type_vector(blocks, 3, 7, MPI_INT, &type);
        commit_exchange_free(type, 3, 3 * blocks * 28, 0);
        /* Backwards. */
        MPI_Type_create_hvector(blocks, 2, -12, MPI_CHAR, &type);
        commit_exchange_free(type, 1, blocks * 12 + 2, (blocks - 1) * 12);
    }
    /* Types that are made again, among others that differ in one number: the distance, the length, a bound. */
    for (int again = 0; again < 3; again++) {
        for (int stride = 5; stride < 8; stride++) {
            for (int length = 2; length < 4; length++) {
                MPI_Type_vector(64, length, stride, MPI_INT, &type);
                commit_exchange_free(type, 2, 2 * 64 * 28, 0);
                for (int extent = 1800; extent < 1812; extent += 4) {
                    for (int low = -4; low <= 0; low += 4) {
                        MPI_Type_vector(64, length, stride, MPI_INT, &other);
                        MPI_Type_create_resized(other, low, extent, &type);
                        MPI_Type_free(&other);
                        commit_exchange_free(type, 2, 2 * 1812, 0);
                    }
                }
            }
        }
    }
    {
        int lengths[] = {3, 1, 1};
        MPI_Aint offsets[] = {offsetof(struct record, name), offsetof(struct record, number), offsetof(struct record, value)};
        MPI_Datatype types[] = {MPI_CHAR, MPI_INT, MPI_DOUBLE};
        MPI_Type_create_struct(3, lengths, offsets, types, &type);
        MPI_Type_create_resized(type, 0, sizeof(struct record), &other);
        MPI_Type_free(&type);
        MPI_Type_commit(&other);
        exchange(other, 1, sizeof(struct record), 0);
        exchange(other, 5000, 5000 * sizeof(struct record), 0);
        MPI_Type_dup(other, &type);
        MPI_Type_free(&other);
        exchange(type, 10, 10 * sizeof(struct record), 0);
        MPI_Type_free(&type);
    }
    {
        int lengths[] = {4, 1, 9}, offsets[] = {11, 0, 20};
        MPI_Type_indexed(3, lengths, offsets, MPI_SHORT, &type);
        commit_exchange_free(type, 700, 700 * 60, 0);
    }
    {
        int sizes[] = {40, 50, 60}, parts[] = {7, 8, 9}, starts[] = {5, 6, 7};
        MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_INT, &type);
        commit_exchange_free(type, 1, 40 * 50 * 60 * 4, 0);
    }
    /* Contiguous data with gaps between elements, and with a lower bound below its data. */
    MPI_Type_create_resized(MPI_INT, -4, 12, &type);
    commit_exchange_free(type, 1000, 12 * 1001, 4);
    /* Contiguous data that does not begin where the buffer does. */
    {
        MPI_Aint offset = 16;
        int length = 100;
        MPI_Type_create_hindexed(1, &length, &offset, MPI_INT, &type);
        commit_exchange_free(type, 1, 500, 0);
    }
    /* No data. */
    MPI_Type_contiguous(0, MPI_INT, &type);
    commit_exchange_free(type, 5, 16, 0);
    /* Many types, one after another, perhaps at the same address. Each must have its own layout. */
    for (int round = 1; round < 300; round++) {
        MPI_Type_vector(2, round, 2 * round, MPI_CHAR, &type);
        MPI_Type_commit(&type);
        exchange(type, 1, 4 * round, 0);
        MPI_Type_free(&type);
    }
    MPI_Finalize();
    return 0;
}
