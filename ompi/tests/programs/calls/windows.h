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

static MPI_Win win = MPI_WIN_NULL, host_win = MPI_WIN_NULL, device_win = MPI_WIN_NULL;
/* The memory of the window in host memory, and an image of that in device memory. */
static unsigned char *exposed;
static void *device_exposed;
static size_t exposed_bytes;
/* Under 4.1, Debian's settings leave no component for a window over existing memory in a single process. */
#define NO_WINDOW (OMPI_MAJOR_VERSION < 5 && 1 == size)

static void create_windows(void)
{
    exposed_bytes = (size_t) LARGE * 6 * sizeof(int);
    /* Different components serve the two kinds of windows. */
    if (!NO_WINDOW) {
        exposed = malloc(exposed_bytes);
        MPI_Win_create(exposed, (MPI_Aint) exposed_bytes, 1, MPI_INFO_NULL, comm, &host_win);
    } else {
        MPI_Win_allocate((MPI_Aint) exposed_bytes, 1, MPI_INFO_NULL, comm, &exposed, &host_win);
    }
    device_exposed = device_memory(exposed_bytes);
    MPI_Win_create(device_exposed, (MPI_Aint) exposed_bytes, 1, MPI_INFO_NULL, comm, &device_win);
}

/* Chooses a window, and writes its initial content. Of the runs with device memory in any process, two of four use the
 * window in device memory. */
static void expose(void *R)
{
    int device = device_receive == R;
    if (MPI_WIN_NULL == host_win) {
        create_windows();
    }
    MPI_Allreduce(MPI_IN_PLACE, &device, 1, MPI_INT, MPI_MAX, comm);
    win = device && (C < LARGE) == (MPI_INT == T) ? device_win : host_win;
    for (size_t i = 0; i < exposed_bytes; i++) {
        exposed[i] = (unsigned char) (11 * rank + i * 3);
    }
    if (device_win == win) {
        to_device(device_exposed, exposed, exposed_bytes);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* What other processes wrote into this process's window counts as received, after the row's receive buffer. */
static void show(void *R)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (device_win == win) {
        from_device(exposed, device_exposed, exposed_bytes);
    }
    write_receive(AT(R, LARGE), exposed, (size_t) (C * extent));
}

/* Between two fences; from the lock of one target to its unlock; within a lock of all targets, up to a flush. */
#define EPOCHS(call, ...)                                                                                              \
    ROW(call, {                                                                                                        \
        expose(R);                                                                                                      \
        MPI_Win_fence(0, win);                                                                                         \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_fence(0, win);                                                                                         \
        show(R);                                                                                                       \
    })                                                                                                                 \
    VARIANT(call, lock, {                                                                                              \
        expose(R);                                                                                                      \
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, win);                                                                \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_unlock(next, win);                                                                                     \
        show(R);                                                                                                       \
    })                                                                                                                 \
    VARIANT(call, flush, {                                                                                             \
        expose(R);                                                                                                      \
        MPI_Win_lock_all(0, win);                                                                                      \
        call(__VA_ARGS__, win);                                                                                        \
        MPI_Win_flush_local(next, win);                                                                                \
        MPI_Win_flush(next, win);                                                                                      \
        show(R);                                                                                                       \
        MPI_Win_unlock_all(win);                                                                                       \
    })                                                                                                                 \
    VARIANT(call, post, {                                                                                              \
        MPI_Group everybody;                                                                                           \
        expose(R);                                                                                                      \
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
        expose(R);                                                                                                      \
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
    expose(R);
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

enum { FEW = 4, FEW_BYTES = FEW * sizeof(int) };

/* A window over memory of the last rank only, into which all put. */
ROW(MPI_Win_create, {
    MPI_Win created;
    if (NO_WINDOW) {
        return;
    }
    MPI_Win_create(rank == size - 1 ? R : NULL, rank == size - 1 ? size * FEW_BYTES : 0, 1, MPI_INFO_NULL, comm, &created);
    MPI_Win_fence(0, created);
    MPI_Put(S, FEW, MPI_INT, size - 1, rank * FEW_BYTES, FEW, MPI_INT, created);
    MPI_Win_fence(0, created);
    MPI_Win_free(&created);
})
ROW(MPI_Win_attach, {
    MPI_Win dynamic;
    MPI_Aint at;
    MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &dynamic);
    MPI_Win_attach(dynamic, R, size * FEW_BYTES);
    MPI_Get_address(R, &at);
    MPI_Bcast(&at, 1, MPI_AINT, size - 1, comm);
    MPI_Win_fence(0, dynamic);
    MPI_Put(S, FEW, MPI_INT, size - 1, at + rank * FEW_BYTES, FEW, MPI_INT, dynamic);
    MPI_Win_fence(0, dynamic);
    MPI_Win_detach(dynamic, R);
    MPI_Win_free(&dynamic);
})
