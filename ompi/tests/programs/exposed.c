/* Windows whose memory lies on devices: on those of all processes, of some, or of one. Every kind of synchronization,
 * datatypes, displacement units that differ, several windows, and windows without memory. All bytes of the windows and
 * their guards are compared. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/memory.h"

#include <stddef.h>

enum { SMALL = 1000, LARGE = 300000, SLOTS = 4, INCREMENTS = 20 };

enum placement { ALL, EVEN, LAST };

static bool on_device(enum placement placement, int rank)
{
    return ALL == placement || (EVEN == placement && 0 == rank % 2) || (LAST == placement && test.size - 1 == rank);
}

static int next, previous;
/* Of the window, its units and the origin's side. */
static struct memory exposed, origin, result;
static MPI_Win window;

static int unit_of(int rank)
{
    return 1 << rank % 4;
}

/* Creates a window of so many bytes, which is filled with gaps. */
static void expose(enum placement placement, size_t bytes)
{
    memory_use(&exposed, on_device(placement, test.rank), 0, bytes, RECV_GAP);
    memory_put(&exposed);
    MPI_Win_create(memory_at(&exposed), (MPI_Aint) bytes, unit_of(test.rank), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
}

static void conceal(void)
{
    MPI_Win_free(&window);
    memory_get(&exposed);
    CHECK_EQUAL(memory_differs(&exposed), -1);
    count_check();
}

static unsigned char value(int from, size_t at)
{
    return (unsigned char) mix((uint64_t) from, at, 7);
}

/* Fills the origin's buffer, and makes room for results. */
static void prepare(bool device, size_t bytes)
{
    memory_use(&origin, device, 1, bytes, SEND_GAP);
    for (size_t i = 0; i < bytes; i++) {
        data(&origin, origin.before)[i] = data(&origin, origin.want)[i] = value(test.rank, i);
    }
    memory_put(&origin);
    memory_use(&result, device, 2, bytes, RECV_GAP);
    memory_put(&result);
}

static void check_result(int from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        data(&result, result.want)[i] = value(from, i);
    }
    memory_get(&result);
    CHECK_EQUAL(memory_differs(&result), -1);
    memory_get(&origin);
    CHECK_EQUAL(memory_differs(&origin), -1);
    count_check();
}

/* What a process puts 64 bytes into the next one's window. */
static void expect_put(int from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        data(&exposed, exposed.want)[64 + i] = value(from, i);
    }
}

enum epoch { FENCE, START, TEST, LOCK, EXCLUSIVE, FLUSH, FLUSH_ALL, REQUEST, EPOCHS };

static MPI_Group to_next, from_previous;

static void begin(enum epoch epoch)
{
    switch (epoch) {
    case FENCE: MPI_Win_fence(0, window); break;
    case START:
    case TEST:
        MPI_Win_post(from_previous, 0, window);
        MPI_Win_start(to_next, 0, window);
        break;
    case LOCK: MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window); break;
    case EXCLUSIVE: MPI_Win_lock(MPI_LOCK_EXCLUSIVE, next, 0, window); break;
    default: MPI_Win_lock_all(0, window);
    }
}

/* Orders the operations before after those behind. Not all epochs can. */
static void between(enum epoch epoch)
{
    switch (epoch) {
    case FENCE: MPI_Win_fence(0, window); break;
    case START:
    case TEST:
        MPI_Win_complete(window);
        if (START == epoch) {
            MPI_Win_wait(window);
        } else {
            for (int over = 0; !over;) {
                MPI_Win_test(window, &over);
            }
        }
        begin(epoch);
        break;
    case FLUSH_ALL:
        MPI_Win_flush_local_all(window);
        MPI_Win_flush_all(window);
        break;
    default:
        MPI_Win_flush_local(next, window);
        MPI_Win_flush(next, window);
    }
}

static void end(enum epoch epoch)
{
    switch (epoch) {
    case FENCE: MPI_Win_fence(MPI_MODE_NOSUCCEED, window); break;
    case START:
    case TEST:
        MPI_Win_complete(window);
        MPI_Win_wait(window);
        break;
    case LOCK:
    case EXCLUSIVE: MPI_Win_unlock(next, window); break;
    default: MPI_Win_unlock_all(window);
    }
}

/* Puts to the next process, and gets it back. */
static void put_and_get(enum placement placement, bool device, enum epoch epoch, size_t bytes)
{
    const MPI_Aint at = 64 / unit_of(next);
    const int count = (int) bytes;
    expose(placement, bytes + 128);
    prepare(device, bytes);
    begin(epoch);
    if (REQUEST == epoch) {
        MPI_Request request;
        MPI_Rput(memory_at(&origin), count, MPI_BYTE, next, at, count, MPI_BYTE, window, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        MPI_Win_flush(next, window);
        MPI_Rget(memory_at(&result), count, MPI_BYTE, next, at, count, MPI_BYTE, window, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        check_result(test.rank, bytes);
    } else {
        MPI_Put(memory_at(&origin), count, MPI_BYTE, next, at, count, MPI_BYTE, window);
        between(epoch);
        MPI_Get(memory_at(&result), count, MPI_BYTE, next, at, count, MPI_BYTE, window);
    }
    end(epoch);
    check_result(test.rank, bytes);
    expect_put(previous, bytes);
    conceal();
}

/* Every second int of the origin goes to pairs of ints at the target, in reverse. */
static void datatypes(enum placement placement, bool device)
{
    enum { PAIRS = 300, INTS = 2 * PAIRS };
    int *places = malloc(PAIRS * sizeof *places);
    MPI_Datatype strided, scattered;
    const unsigned char *from;
    for (int i = 0; i < PAIRS; i++) {
        places[i] = 3 * (PAIRS - 1 - i);
    }
    MPI_Type_vector(INTS, 1, 2, MPI_INT, &strided);
    MPI_Type_commit(&strided);
    MPI_Type_create_indexed_block(PAIRS, 2, places, MPI_INT, &scattered);
    MPI_Type_commit(&scattered);
    expose(placement, 3 * PAIRS * sizeof(int) + 128);
    prepare(device, 2 * INTS * sizeof(int));
    MPI_Win_fence(0, window);
    MPI_Put(memory_at(&origin), 1, strided, next, 64 / unit_of(next), 1, scattered, window);
    MPI_Win_fence(0, window);
    MPI_Get(memory_at(&result), 1, strided, next, 64 / unit_of(next), 1, scattered, window);
    /* Both are freed while the operation is under way. */
    MPI_Type_free(&strided);
    MPI_Type_free(&scattered);
    MPI_Win_fence(0, window);
    for (int i = 0; i < INTS; i++) {
        const size_t at = (size_t) 2 * i * sizeof(int), to = ((size_t) places[i / 2] + i % 2) * sizeof(int);
        memcpy(data(&result, result.want) + at, data(&origin, origin.before) + at, sizeof(int));
        for (size_t byte = 0; byte < sizeof(int); byte++) {
            data(&exposed, exposed.want)[64 + to + byte] = value(previous, at + byte);
        }
    }
    from = result.want;
    memory_get(&result);
    CHECK(0 == memcmp(from, result.got, memory_whole(&result)));
    conceal();
    free(places);
}

static void write_origin(const void *from, size_t bytes)
{
    memcpy(data(&origin, origin.before), from, bytes);
    memory_put(&origin);
}

static void read_result(void *to, size_t bytes)
{
    memory_get(&result);
    memcpy(to, data(&result, result.got), bytes);
}

/* All processes count in the memory of each: in an exclusive lock by get and put, by fetching, and by comparing. */
static void counters(enum placement placement, bool device)
{
    const long one = 1;
    expose(placement, 3 * sizeof(long));
    memset(data(&exposed, exposed.before), 0, exposed.bytes);
    memory_put(&exposed);
    MPI_Barrier(MPI_COMM_WORLD);
    memory_use(&origin, device, 0, 2 * sizeof(long), SEND_GAP);
    memory_use(&result, device, 0, sizeof(long), RECV_GAP);
    for (int target = 0; target < test.size; target++) {
        const int step = (int) sizeof(long) / unit_of(target);
        long sum = 0;
        for (int i = 0; i < INCREMENTS; i++) {
            long old, read;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, window);
            memory_put(&result);
            MPI_Get(memory_at(&result), 1, MPI_LONG, target, 0, 1, MPI_LONG, window);
            MPI_Win_flush(target, window);
            read_result(&old, sizeof old);
            old++;
            write_origin(&old, sizeof old);
            MPI_Put(memory_at(&origin), 1, MPI_LONG, target, 0, 1, MPI_LONG, window);
            MPI_Win_unlock(target, window);

            MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window);
            write_origin(&one, sizeof one);
            MPI_Fetch_and_op(memory_at(&origin), memory_at(&result), MPI_LONG, target, step, MPI_SUM, window);
            MPI_Win_flush(target, window);
            read_result(&old, sizeof old);
            sum += old;
            for (read = -1;; read = old) {
                const long pair[2] = {read, read + 1};
                write_origin(pair, sizeof pair);
                MPI_Compare_and_swap((char *) memory_at(&origin) + sizeof(long), memory_at(&origin),
                                     memory_at(&result), MPI_LONG, target, 2 * step, window);
                MPI_Win_flush_local(target, window);
                read_result(&old, sizeof old);
                if (old == read) {
                    break;
                }
            }
            MPI_Win_unlock(target, window);
        }
        /* Each number was fetched once. */
        const long total = (long) INCREMENTS * test.size;
        MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        CHECK_EQUAL(sum, total * (total - 1) / 2);
        count_check();
        if (target == test.rank) {
            const long counted[3] = {total, total, total};
            memcpy(data(&exposed, exposed.want), counted, sizeof counted);
        }
    }
    conceal();
}

/* Two windows at a time, and operations on no process. */
static void several(enum placement placement)
{
    struct memory other = {0};
    MPI_Win second;
    expose(placement, SMALL + 128);
    memory_use(&other, 0 == test.rank || !on_device(placement, test.rank), 3, SMALL, RECV_GAP);
    memory_put(&other);
    MPI_Win_create(memory_at(&other), SMALL, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &second);
    prepare(true, SMALL);
    MPI_Win_fence(0, window);
    MPI_Win_lock_all(0, second);
    MPI_Put(memory_at(&origin), SMALL, MPI_BYTE, next, 64 / unit_of(next), SMALL, MPI_BYTE, window);
    MPI_Put(memory_at(&origin), SMALL, MPI_BYTE, previous, 0, SMALL, MPI_BYTE, second);
    MPI_Put(memory_at(&origin), SMALL, MPI_BYTE, MPI_PROC_NULL, 0, SMALL, MPI_BYTE, second);
    MPI_Accumulate(memory_at(&origin), SMALL, MPI_BYTE, MPI_PROC_NULL, 0, SMALL, MPI_BYTE, MPI_BOR, window);
    MPI_Win_unlock_all(second);
    MPI_Win_fence(0, window);
    expect_put(previous, SMALL);
    MPI_Win_free(&second);
    for (size_t i = 0; i < SMALL; i++) {
        data(&other, other.want)[i] = value(next, i);
    }
    memory_get(&other);
    CHECK_EQUAL(memory_differs(&other), -1);
    memory_discard(&other);
    conceal();
}

/* Memory that is attached to a window that has none. */
static void attached(enum placement placement, bool device)
{
    MPI_Aint here, there;
    memory_use(&exposed, on_device(placement, test.rank), 0, SMALL + 128, RECV_GAP);
    memory_put(&exposed);
    MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    for (int round = 0; round < 2; round++) {
        MPI_Win_attach(window, memory_at(&exposed), SMALL + 128);
        MPI_Get_address(memory_at(&exposed), &here);
        MPI_Sendrecv(&here, 1, MPI_AINT, previous, 0, &there, 1, MPI_AINT, next, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        prepare(device, SMALL);
        MPI_Win_fence(0, window);
        MPI_Put(memory_at(&origin), SMALL, MPI_BYTE, next, there + 64, SMALL, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        MPI_Get(memory_at(&result), SMALL, MPI_BYTE, next, there + 64, SMALL, MPI_BYTE, window);
        MPI_Win_fence(0, window);
        check_result(test.rank, SMALL);
        MPI_Win_detach(window, memory_at(&exposed));
    }
    expect_put(previous, SMALL);
    conceal();
}

int main(int argc, char **argv)
{
    MPI_Group world;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    next = (test.rank + 1) % test.size;
    previous = (test.rank + test.size - 1) % test.size;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &next, &to_next);
    MPI_Group_incl(world, 1, &previous, &from_previous);
    for (enum placement placement = ALL; placement <= LAST; placement++) {
        for (int device = 0; device <= 1; device++) {
            for (enum epoch epoch = FENCE; epoch < EPOCHS; epoch++) {
                put_and_get(placement, device, epoch, 0);
                put_and_get(placement, device, epoch, SMALL);
                put_and_get(placement, device, epoch, LARGE);
            }
            datatypes(placement, device);
            counters(placement, device);
            attached(placement, device);
        }
        several(placement);
    }
    MPI_Group_free(&world);
    MPI_Group_free(&to_next);
    MPI_Group_free(&from_previous);
    memory_discard(&exposed);
    memory_discard(&origin);
    memory_discard(&result);
    tear_down();
    return 0;
}
