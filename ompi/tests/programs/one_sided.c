/* One-sided operations with every kind of synchronisation. Each process adds to a counter of every other. */
#include "check.h"

enum { LARGE = 1 << 15, ELEMENTS = 8 + LARGE };

static int rank, size;
/* Whether MPI_Compare_and_swap works: osc/rdma over 4.1.4's vader crashes in it, under any PML. */
static int swaps;
static long *memory;
static MPI_Win window;

/* Between fences, from every process to every process. A fetched value must be one that the counter has had. */
static void fences(void)
{
    const long one = 1;
    long old[2];
    for (int target = 0; target < size; target++) {
        MPI_Win_fence(0, window);
        MPI_Accumulate(&one, 1, MPI_LONG, target, 0, 1, MPI_LONG, MPI_SUM, window);
        MPI_Win_fence(0, window);
        MPI_Fetch_and_op(&one, &old[0], MPI_LONG, target, 0, MPI_SUM, window);
        MPI_Win_fence(0, window);
        MPI_Get_accumulate(&one, 1, MPI_LONG, &old[1], 1, MPI_LONG, target, 0, 1, MPI_LONG, MPI_SUM, window);
        MPI_Win_fence(0, window);
        CHECK(old[0] >= size && old[0] < 2 * size);
        CHECK(old[1] >= 2 * size && old[1] < 3 * size);
    }
    CHECK_EQUAL(memory[0], 3 * size);
}

/* Each process has its own counter in the memory of every other. */
static void locks(void)
{
    const long one = 1, two = 2;
    long old = -1;
    for (int kind = 0; kind <= 1; kind++) {
        for (int target = 0; target < size; target++) {
            MPI_Win_lock(kind ? MPI_LOCK_EXCLUSIVE : MPI_LOCK_SHARED, target, 0, window);
            MPI_Fetch_and_op(&one, &old, MPI_LONG, target, 1 + rank, MPI_SUM, window);
            MPI_Win_flush(target, window);
            CHECK_EQUAL(old, 0);
            if (swaps) {
                MPI_Compare_and_swap(&two, &one, &old, MPI_LONG, target, 1 + rank, window);
            } else {
                MPI_Fetch_and_op(&two, &old, MPI_LONG, target, 1 + rank, MPI_REPLACE, window);
            }
            MPI_Win_flush(target, window);
            CHECK_EQUAL(old, 1);
            MPI_Get_accumulate(&one, 1, MPI_LONG, &old, 1, MPI_LONG, target, 1 + rank, 1, MPI_LONG, MPI_REPLACE, window);
            MPI_Win_flush(target, window);
            CHECK_EQUAL(old, 2);
            MPI_Accumulate(&one, 1, MPI_LONG, target, 1 + rank, 1, MPI_LONG, MPI_SUM, window);
            MPI_Get_accumulate(NULL, 0, MPI_LONG, &old, 1, MPI_LONG, target, 1 + rank, 1, MPI_LONG, MPI_NO_OP, window);
            MPI_Win_flush(target, window);
            CHECK_EQUAL(old, 2);
            old = 0;
            MPI_Put(&old, 1, MPI_LONG, target, 1 + rank, 1, MPI_LONG, window);
            MPI_Win_unlock(target, window);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* More than fits into one message of the component. */
static void large(void)
{
    static long out[LARGE], in[LARGE];
    const int right = (rank + 1) % size, left = (rank + size - 1) % size;
    MPI_Group world, to, from;
    for (int i = 0; i < LARGE; i++) {
        out[i] = 1000000L * rank + i;
    }
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &right, &to);
    MPI_Group_incl(world, 1, &left, &from);
    for (int round = 0; round < 2; round++) {
        MPI_Win_post(from, 0, window);
        MPI_Win_start(to, 0, window);
        if (0 == round) {
            MPI_Put(out, LARGE, MPI_LONG, right, 8, LARGE, MPI_LONG, window);
        } else {
            MPI_Get_accumulate(out, LARGE, MPI_LONG, in, LARGE, MPI_LONG, right, 8, LARGE, MPI_LONG, MPI_SUM, window);
        }
        MPI_Win_complete(window);
        MPI_Win_wait(window);
    }
    for (int i = 0; i < LARGE; i++) {
        CHECK_EQUAL(in[i], out[i]);
        CHECK_EQUAL(memory[8 + i], 2 * (1000000L * left + i));
    }
    MPI_Win_fence(0, window);
    MPI_Get(in, LARGE, MPI_LONG, left, 8, LARGE, MPI_LONG, window);
    MPI_Win_fence(0, window);
    CHECK_EQUAL(in[5], 2 * (1000000L * ((left + size - 1) % size) + 5));
    MPI_Group_free(&to);
    MPI_Group_free(&from);
    MPI_Group_free(&world);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size < 8);
    swaps = argc > 1 && 0 == strcmp(argv[1], "swaps");
    /* Otherwise the window allocates it. */
    long *own = argc > 2 && 0 == strcmp(argv[2], "created") ? malloc(ELEMENTS * sizeof(long)) : NULL;
    if (NULL != own) {
        memory = own;
        MPI_Win_create(memory, ELEMENTS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    } else {
        MPI_Win_allocate(ELEMENTS * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    }
    memset(memory, 0, ELEMENTS * sizeof(long));
    MPI_Barrier(MPI_COMM_WORLD);
    fences();
    locks();
    large();
    MPI_Win_free(&window);
    free(own);
    MPI_Finalize();
    return 0;
}
