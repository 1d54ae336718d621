/* Every rank sends to its neighbour, in every size around the limits between protocols, and all add up their ranks. */
#include "check.h"

static void around(int rank, int size, int bytes)
{
    unsigned char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, count;
    MPI_Status status;
    for (int i = 0; i < bytes; i++) {
        out[i] = (unsigned char) (rank * 31 + i);
    }
    memset(in, 0, bytes + 1);
    MPI_Sendrecv(out, bytes, MPI_BYTE, next, bytes, in, bytes + 1, MPI_BYTE, previous, bytes, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK_EQUAL(count, bytes);
    CHECK_EQUAL(status.MPI_SOURCE, previous);
    CHECK_EQUAL(status.MPI_TAG, bytes);
    for (int i = 0; i < bytes; i++) {
        CHECK_EQUAL(in[i], (unsigned char) (previous * 31 + i));
    }
    CHECK_EQUAL(in[bytes], 0);
    MPI_Sendrecv_replace(out, bytes, MPI_BYTE, next, bytes, previous, bytes, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQUAL(memcmp(out, in, bytes), 0);
    free(out);
    free(in);
}

int main(int argc, char **argv)
{
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    around(rank, size, 0);
    for (int bytes = 1; bytes <= 1 << 22; bytes *= 4) {
        around(rank, size, bytes - 1);
        around(rank, size, bytes);
        around(rank, size, bytes + 1);
    }
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQUAL(sum, size * (size - 1) / 2);
    MPI_Finalize();
    return 0;
}
