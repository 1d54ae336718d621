/* Rows: one-sided operations between buffers of this process and the memory of the next process. */

/* The placement of a row's buffer, for rows that write the buffer themselves. */
static void *device_receive;
static size_t device_bytes;

static void write_receive(void *R, const void *from, size_t bytes)
{
    if (R >= device_receive && (char *) R < (char *) device_receive + device_bytes) {
        to_device(R, from, bytes);
    } else {
        memcpy(R, from, bytes);
    }
}

static MPI_Win win = MPI_WIN_NULL;
static unsigned char *exposed;
static size_t exposed_bytes;
/* Under 4.1, Debian's settings leave no component for a window over existing memory in a single process. */
#define NO_WINDOW (OMPI_MAJOR_VERSION < 5 && 1 == size)

/* The initial content of the window. */
static void expose(void)
{
    if (MPI_WIN_NULL == win) {
        exposed_bytes = (size_t) LARGE * 6 * sizeof(int);
        /* Different components serve the two kinds of windows. */
        if (!NO_WINDOW) {
            exposed = malloc(exposed_bytes);
            MPI_Win_create(exposed, (MPI_Aint) exposed_bytes, 1, MPI_INFO_NULL, comm, &win);
        } else {
            MPI_Win_allocate((MPI_Aint) exposed_bytes, 1, MPI_INFO_NULL, comm, &exposed, &win);
        }
    }
    for (size_t i = 0; i < exposed_bytes; i++) {
        exposed[i] = (unsigned char) (11 * rank + i * 3);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What other processes wrote into this process's window counts as received, after the row's receive buffer. */
static void show(void *R)
{
    MPI_Barrier(MPI_COMM_WORLD);
    write_receive(AT(R, LARGE), exposed, (size_t) (C * extent));
}

/* Between two fences; from the lock of one target to its unlock; within a lock of all targets, up to a flush. */
#define EPOCHS(call, ...)                                                                                              \
    ROW(call, {                                                                                                        \
        expose();                                                                                                      \
        MPI_Win_fence(0, win);                                                                                         \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_fence(0, win);                                                                                         \
        show(R);                                                                                                       \
    })                                                                                                                 \
    VARIANT(call, lock, {                                                                                              \
        expose();                                                                                                      \
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, win);                                                                \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_unlock(next, win);                                                                                     \
        show(R);                                                                                                       \
    })                                                                                                                 \
    VARIANT(call, flush, {                                                                                             \
        expose();                                                                                                      \
        MPI_Win_lock_all(0, win);                                                                                      \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_flush_local(next, win);                                                                                \
        MPI_Win_flush(next, win);                                                                                      \
        show(R);                                                                                                       \
        MPI_Win_unlock_all(win);                                                                                       \
    })                                                                                                                 \
    VARIANT(call, post, {                                                                                              \
        MPI_Group everybody;                                                                                           \
        expose();                                                                                                      \
        MPI_Comm_group(comm, &everybody);                                                                              \
        MPI_Win_post(everybody, 0, win);                                                                               \
        MPI_Win_start(everybody, 0, win);                                                                              \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_complete(win);                                                                                         \
        MPI_Win_wait(win);                                                                                             \
        MPI_Group_free(&everybody);                                                                                    \
        show(R);                                                                                                       \
    })
#define REQUESTED(call, ...)                                                                                           \
    ROW(call, {                                                                                                        \
        MPI_Request request;                                                                                           \
        expose();                                                                                                      \
        MPI_Win_lock_all(0, win);                                                                                      \
        call(__VA_ARGS__, win, &request);                                                                              \
        WAIT(request);                                                                                                 \
        MPI_Win_unlock_all(win);                                                                                       \
        show(R);                                                                                                       \
    })

/* Between processes, osc/rdma of Open MPI 4.1 fetches garbage into a type with gaps when it accumulates, even from
 * host memory and under ob1. */
#define FETCHES_GARBAGE (OMPI_MAJOR_VERSION < 5 && size > 1)
#define WHOLE_T (FETCHES_GARBAGE ? MPI_INT : T)
#define WHOLE_C (FETCHES_GARBAGE ? C * (int) (extent / (int) sizeof(int)) : C)

EPOCHS(MPI_Put, S, C, T, next, 0, C, T)
EPOCHS(MPI_Get, R, C, T, next, 0, C, T)
EPOCHS(MPI_Accumulate, S, C, T, next, 0, C, T, MPI_SUM)
EPOCHS(MPI_Get_accumulate, S, WHOLE_C, WHOLE_T, R, WHOLE_C, WHOLE_T, next, 0, WHOLE_C, WHOLE_T, MPI_SUM)
VARIANT(MPI_Get_accumulate, only_get, {
    expose();
    MPI_Win_fence(0, win);
    MPI_Get_accumulate(NULL, 0, MPI_INT, R, WHOLE_C, WHOLE_T, next, 0, WHOLE_C, WHOLE_T, MPI_NO_OP, win);
    MPI_Win_fence(0, win);
    show(R);
})
EPOCHS(MPI_Fetch_and_op, S, R, MPI_INT, next, 8, MPI_SUM)
EPOCHS(MPI_Compare_and_swap, S, S, R, MPI_INT, next, 8)
REQUESTED(MPI_Rput, S, C, T, next, 0, C, T)
REQUESTED(MPI_Rget, R, C, T, next, 0, C, T)
REQUESTED(MPI_Raccumulate, S, C, T, next, 0, C, T, MPI_SUM)
REQUESTED(MPI_Rget_accumulate, S, WHOLE_C, WHOLE_T, R, WHOLE_C, WHOLE_T, next, 0, WHOLE_C, WHOLE_T, MPI_SUM)

/* A window over device memory, on the last rank only: an error on all ranks. */
ROW(MPI_Win_create, {
    MPI_Win refused;
    int error;
    int class;
    int at_last = device_receive == R;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    error = MPI_Win_create(rank == size - 1 ? R : NULL, rank == size - 1 ? 4096 : 0, 1, MPI_INFO_NULL, comm, &refused);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    MPI_Bcast(&at_last, 1, MPI_INT, size - 1, comm);
    MPI_Error_class(error, &class);
    CHECK_EQUAL(class, at_last || NO_WINDOW ? MPI_ERR_WIN : MPI_SUCCESS);
    if (MPI_SUCCESS == error) {
        MPI_Win_free(&refused);
    }
})
ROW(MPI_Win_attach, {
    MPI_Win dynamic;
    int error;
    int class;
    if (NO_WINDOW) {
        return;
    }
    MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &dynamic);
    MPI_Win_set_errhandler(dynamic, MPI_ERRORS_RETURN);
    error = MPI_Win_attach(dynamic, R, 4096);
    MPI_Error_class(error, &class);
    CHECK_EQUAL(class, device_receive == R ? MPI_ERR_RMA_ATTACH : MPI_SUCCESS);
    if (MPI_SUCCESS == error) {
        MPI_Win_detach(dynamic, R);
    }
    MPI_Win_free(&dynamic);
})
