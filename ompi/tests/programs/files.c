/* A file that all ranks write together, each its share of every piece, by every kind of call. Argument: the file. */
#include "check.h"

enum { PIECES = 300, PIECE = 7, MINE = PIECES * PIECE };

static int rank, size;

static void fill(int *data, int round)
{
    for (int i = 0; i < MINE; i++) {
        data[i] = 100000 * round + 1000 * rank + i;
    }
}

static void check(const int *data, int of, int round)
{
    for (int i = 0; i < MINE; i++) {
        CHECK_EQUAL(data[i], 100000 * round + 1000 * of + i);
    }
}

/* The pieces of all ranks in turn. Each rank sees its own as one run. */
static void view(MPI_File file, int of)
{
    MPI_Datatype piece;
    MPI_Type_vector(1, PIECE, PIECE, MPI_INT, &piece);
    MPI_Type_create_resized(piece, 0, (MPI_Aint) (size * PIECE * sizeof(int)), &piece);
    MPI_Type_commit(&piece);
    CHECK_EQUAL(MPI_File_set_view(file, (MPI_Offset) (of * PIECE * sizeof(int)), MPI_INT, piece, "native", MPI_INFO_NULL),
                MPI_SUCCESS);
    MPI_Type_free(&piece);
}

int main(int argc, char **argv)
{
    static int out[MINE], in[MINE];
    MPI_File file;
    MPI_Status status;
    MPI_Request request;
    int count;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK_EQUAL(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                              MPI_INFO_NULL, &file),
                MPI_SUCCESS);
    for (int round = 0; round < 3; round++) {
        const int other = (rank + 1) % size;
        fill(out, round);
        view(file, rank);
        if (0 == round) {
            CHECK_EQUAL(MPI_File_write_all(file, out, MINE, MPI_INT, &status), MPI_SUCCESS);
        } else if (1 == round) {
            CHECK_EQUAL(MPI_File_write_at_all_begin(file, 0, out, MINE, MPI_INT), MPI_SUCCESS);
            CHECK_EQUAL(MPI_File_write_at_all_end(file, out, &status), MPI_SUCCESS);
        } else {
            CHECK_EQUAL(MPI_File_iwrite_at(file, 0, out, MINE, MPI_INT, &request), MPI_SUCCESS);
            MPI_Wait(&request, &status);
        }
        MPI_Get_count(&status, MPI_INT, &count);
        CHECK_EQUAL(count, MINE);
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_File_sync(file);
        view(file, other);
        memset(in, 0, sizeof in);
        if (1 == round) {
            CHECK_EQUAL(MPI_File_read_at(file, 0, in, MINE, MPI_INT, &status), MPI_SUCCESS);
        } else {
            CHECK_EQUAL(MPI_File_read_at_all(file, 0, in, MINE, MPI_INT, &status), MPI_SUCCESS);
        }
        check(in, other, round);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* Each rank in turn, by a shared file pointer. */
    CHECK_EQUAL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL), MPI_SUCCESS);
    fill(out, 9);
    CHECK_EQUAL(MPI_File_write_ordered(file, out, MINE, MPI_INT, &status), MPI_SUCCESS);
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(file);
    CHECK_EQUAL(MPI_File_read_at(file, (MPI_Offset) ((size - 1 - rank) * MINE), in, MINE, MPI_INT, &status), MPI_SUCCESS);
    check(in, size - 1 - rank, 9);
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
