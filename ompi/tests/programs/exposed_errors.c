/* What windows in device memory refuse: with an error that says why, and without a change to any memory. */
#include "collectives/memory.h"

static MPI_Win window;

static int class_of(int error)
{
    int class;
    MPI_Error_class(error, &class);
    return class;
}

#define FAILS(call, class) CHECK_EQUAL(class_of(call), class)
#define SUCCEEDS(call) CHECK_EQUAL(call, MPI_SUCCESS)

enum { BYTES = 256 };

/* A process that reaches too far learns so from the call that completes the operation. */
static void out_of_range(struct memory *exposed, int target)
{
    unsigned char there[BYTES + 1] = {0};
    const MPI_Aint outside[] = {1, BYTES, BYTES + 1, INT64_MAX / 2, INT64_MAX};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
        SUCCEEDS(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window));
        SUCCEEDS(MPI_Put(there, BYTES, MPI_BYTE, target, outside[i], BYTES, MPI_BYTE, window));
        FAILS(MPI_Win_flush(target, window), MPI_ERR_RMA_RANGE);
        SUCCEEDS(MPI_Get(there, BYTES, MPI_BYTE, target, outside[i], BYTES, MPI_BYTE, window));
        FAILS(MPI_Win_flush_local(target, window), MPI_ERR_RMA_RANGE);
        SUCCEEDS(MPI_Accumulate(there, BYTES, MPI_BYTE, target, outside[i], BYTES, MPI_BYTE, MPI_REPLACE, window));
        FAILS(MPI_Win_unlock(target, window), MPI_ERR_RMA_RANGE);
        count_check();
    }
    for (size_t i = 0; i < sizeof there; i++) {
        CHECK_EQUAL(there[i], 0);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    memory_get(exposed);
    CHECK_EQUAL(memory_differs(exposed), -1);
}

static void out_of_order(int target)
{
    char byte = 1;
    MPI_Group none;
    int over;
    FAILS(MPI_Put(&byte, 1, MPI_BYTE, target, 0, 1, MPI_BYTE, window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_unlock(target, window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_unlock_all(window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_flush(target, window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_complete(window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_wait(window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_test(window, &over), MPI_ERR_RMA_SYNC);
    SUCCEEDS(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window));
    FAILS(MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_fence(0, window), MPI_ERR_RMA_SYNC);
    FAILS(MPI_Win_free(&window), MPI_ERR_RMA_SYNC);
    SUCCEEDS(MPI_Win_unlock(target, window));
    SUCCEEDS(MPI_Comm_group(MPI_COMM_SELF, &none));
    SUCCEEDS(MPI_Win_post(none, 0, window));
    FAILS(MPI_Win_post(none, 0, window), MPI_ERR_RMA_SYNC);
    SUCCEEDS(MPI_Win_start(none, 0, window));
    FAILS(MPI_Win_lock_all(0, window), MPI_ERR_RMA_SYNC);
    SUCCEEDS(MPI_Win_complete(window));
    SUCCEEDS(MPI_Win_wait(window));
    MPI_Group_free(&none);
    count_check();
}

/* Buffers with different amounts of data, and a window that shares no memory. */
static void arguments(int target)
{
    char bytes[2] = {0};
    MPI_Aint size;
    int unit;
    void *base;
    SUCCEEDS(MPI_Win_lock_all(0, window));
    FAILS(MPI_Put(bytes, 2, MPI_BYTE, target, 0, 1, MPI_BYTE, window), MPI_ERR_ARG);
    FAILS(MPI_Get(bytes, 1, MPI_BYTE, target, 0, 2, MPI_BYTE, window), MPI_ERR_ARG);
    SUCCEEDS(MPI_Win_unlock_all(window));
    CHECK(MPI_SUCCESS != MPI_Win_shared_query(window, 0, &size, &unit, &base));
    count_check();
}

static void attachments(struct memory *exposed, int target)
{
    MPI_Aint here, there;
    char *memory = memory_at(exposed);
    char byte = 1;
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    SUCCEEDS(MPI_Win_attach(window, memory, BYTES / 2));
    FAILS(MPI_Win_attach(window, memory + BYTES / 2 - 1, 2), MPI_ERR_RMA_ATTACH);
    FAILS(MPI_Win_detach(window, memory + 1), MPI_ERR_RMA_ATTACH);
    MPI_Get_address(memory, &here);
    MPI_Sendrecv(&here, 1, MPI_AINT, (test.rank + test.size - 1) % test.size, 0, &there, 1, MPI_AINT, target, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    SUCCEEDS(MPI_Win_lock_all(0, window));
    SUCCEEDS(MPI_Put(&byte, 1, MPI_BYTE, target, there + BYTES / 2, 1, MPI_BYTE, window));
    FAILS(MPI_Win_flush_all(window), MPI_ERR_RMA_RANGE);
    SUCCEEDS(MPI_Win_unlock_all(window));
    MPI_Barrier(MPI_COMM_WORLD);
    SUCCEEDS(MPI_Win_detach(window, memory));
    SUCCEEDS(MPI_Win_free(&window));
    count_check();
}

int main(int argc, char **argv)
{
    struct memory exposed = {0};
    int target;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    target = (test.rank + 1) % test.size;
    memory_use(&exposed, true, 0, BYTES, RECV_GAP);
    memory_put(&exposed);
    MPI_Win_create(memory_at(&exposed), BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN);
    out_of_range(&exposed, target);
    out_of_order(target);
    arguments(target);
    SUCCEEDS(MPI_Win_free(&window));
    attachments(&exposed, target);
    memory_get(&exposed);
    CHECK_EQUAL(memory_differs(&exposed), -1);
    memory_discard(&exposed);
    tear_down();
    return 0;
}
