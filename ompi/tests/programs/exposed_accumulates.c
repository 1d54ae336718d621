/* Accumulates on windows in device memory: every operation on every predefined type that MPI allows, compared with
 * MPI_Reduce_local. CABLEWAY_CUDA_LIBDIR names the driver. */
#include "collectives/memory.h"

#include <stdbool.h>

enum { ELEMENTS = 37, AT = 3, ROOM = 4096, MANY = 100000, LONG_DOUBLE_BYTES = 10 };

enum kind { INTEGER, TRUTH, FLOAT, DOUBLE, LONG_DOUBLE };

/* A predefined type: so many numbers of a kind, and perhaps an int. */
struct type {
    const char *name;
    MPI_Datatype type;
    enum kind kind;
    int numbers;
    bool pair;
};

#define TYPE(type, kind, numbers, pair) {#type, type, kind, numbers, pair}

static int next;
static struct memory exposed, origin, result;
static MPI_Win window;

static size_t width_of(enum kind kind, MPI_Datatype type, int numbers, bool pair)
{
    int size;
    MPI_Type_size(type, &size);
    return kind == FLOAT ? sizeof(float) : kind == DOUBLE ? sizeof(double) : kind == LONG_DOUBLE ? sizeof(long double)
           : ((size_t) size - (pair ? sizeof(int) : 0)) / (size_t) numbers;
}

/* Writes small numbers, which every operation takes exactly. */
static void number(unsigned char *to, enum kind kind, size_t width, uint64_t drawn)
{
    const long small = (long) (drawn % 5) - 1;
    const float single = (float) small;
    const double twice = (double) small;
    const long double longer = small;
    switch (kind) {
    case INTEGER:
        /* Open MPI 4.1 compares numbers of MPI_UNSIGNED_LONG with signs. */
        drawn >>= 1;
        memcpy(to, &drawn, width);
        break;
    case TRUTH: *to = drawn & 1; break;
    case FLOAT: memcpy(to, &single, sizeof single); break;
    case DOUBLE: memcpy(to, &twice, sizeof twice); break;
    case LONG_DOUBLE:
        /* The bytes behind the number are padding, which has any value. */
        memset(to, 0, width);
        memcpy(to, &longer, LONG_DOUBLE_BYTES);
        break;
    }
}

static void fill(unsigned char *to, const struct type *type, uint64_t seed)
{
    MPI_Aint lower, extent;
    size_t width = width_of(type->kind, type->type, type->numbers, type->pair);
    MPI_Type_get_extent(type->type, &lower, &extent);
    for (uint64_t i = 0; i < ELEMENTS; i++, to += extent) {
        for (int j = 0; j < type->numbers; j++) {
            number(to + (size_t) j * width, type->kind, width, mix(seed, i, (uint64_t) j));
        }
        if (type->pair) {
            int index = (int) mix(seed, i, 99) % 100;
            memcpy(to + (width + sizeof index - 1) / sizeof index * sizeof index, &index, sizeof index);
        }
    }
}

/* Copies the data of elements, without the gaps. */
static void copy_elements(unsigned char *to, const unsigned char *from, MPI_Datatype type)
{
    static unsigned char packed[ROOM];
    int at = 0;
    MPI_Pack(from, ELEMENTS, type, packed, ROOM, &at, MPI_COMM_SELF);
    at = 0;
    MPI_Unpack(packed, ROOM, &at, to, ELEMENTS, type, MPI_COMM_SELF);
}

static void use_operands(bool device, const struct type *type, uint64_t seed)
{
    memory_use(&origin, device, 0, ROOM, SEND_GAP);
    fill(data(&origin, origin.before), type, seed);
    memory_put(&origin);
    memory_use(&result, device, 0, ROOM, RECV_GAP);
    memory_put(&result);
}

static void check_elements(const struct memory *memory, const char *what, const struct type *type, const char *op)
{
    long at = memory_differs(memory);
    if (at >= 0) {
        fprintf(stderr, "rank %d of %d: %s after %s of %s differs at byte %ld\n", test.rank, test.size, what, op,
                type->name, at - GUARD);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    count_check();
}

/* What the operation makes of the window's elements. */
static void expect(unsigned char *elements, const unsigned char *operands, const struct type *type, MPI_Op op)
{
    if (MPI_REPLACE == op) {
        copy_elements(elements, operands, type->type);
    } else if (MPI_NO_OP != op) {
        MPI_Reduce_local(operands, elements, ELEMENTS, type->type, op);
    }
}

/* Accumulates twice in the next process's window. What the second call fetches must be what the first one left. */
static void accumulate(bool device, bool requests, const struct type *type, MPI_Op op, const char *name)
{
    const int previous = (test.rank + test.size - 1) % test.size;
    MPI_Aint lower, extent, at;
    unsigned char *mine, *theirs = malloc(ROOM), *operands;
    MPI_Request request;
    MPI_Type_get_extent(type->type, &lower, &extent);
    at = AT * extent;
    memset(exposed.before, RECV_GAP, memory_whole(&exposed));
    fill(data(&exposed, exposed.before) + at, type, (uint64_t) test.rank);
    memcpy(exposed.want, exposed.before, memory_whole(&exposed));
    memory_put(&exposed);
    MPI_Barrier(MPI_COMM_WORLD);

    memset(theirs, RECV_GAP, ROOM);
    fill(theirs, type, (uint64_t) next);
    MPI_Win_lock(MPI_LOCK_SHARED, next, 0, window);
    for (uint64_t call = 1; call <= 2; call++) {
        use_operands(device, type, 1000 * call + (uint64_t) test.rank);
        operands = data(&origin, origin.before);
        if (1 == call && MPI_NO_OP == op) {
            /* Only calls that fetch take it. */
            continue;
        }
        if (1 == call && requests) {
            MPI_Raccumulate(memory_at(&origin), ELEMENTS, type->type, next, at, ELEMENTS, type->type, op, window,
                            &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else if (1 == call) {
            MPI_Accumulate(memory_at(&origin), ELEMENTS, type->type, next, at, ELEMENTS, type->type, op, window);
            MPI_Win_flush(next, window);
        } else if (requests) {
            MPI_Rget_accumulate(memory_at(&origin), ELEMENTS, type->type, memory_at(&result), ELEMENTS, type->type, next,
                                at, ELEMENTS, type->type, op, window, &request);
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        } else {
            MPI_Get_accumulate(MPI_NO_OP == op ? NULL : memory_at(&origin), ELEMENTS, type->type, memory_at(&result),
                               ELEMENTS, type->type, next, at, ELEMENTS, type->type, op, window);
            MPI_Win_flush(next, window);
        }
        if (2 == call) {
            copy_elements(data(&result, result.want), theirs, type->type);
            memory_get(&result);
            check_elements(&result, "what was fetched", type, name);
        }
        expect(theirs, operands, type, op);
    }
    MPI_Win_unlock(next, window);
    MPI_Barrier(MPI_COMM_WORLD);
    mine = data(&exposed, exposed.want) + at;
    for (uint64_t call = 1; call <= 2; call++) {
        fill(data(&origin, origin.before), type, 1000 * call + (uint64_t) previous);
        expect(mine, data(&origin, origin.before), type, op);
    }
    memory_get(&exposed);
    check_elements(&exposed, "the window", type, name);
    free(theirs);
    MPI_Barrier(MPI_COMM_WORLD);
}

struct operation {
    const char *name;
    MPI_Op op;
};

#define OPERATION(op) {#op, op}

static void each(bool device, const struct type *types, int type_count, const struct operation *operations,
                 int operation_count)
{
    for (int i = 0; i < type_count; i++) {
        for (int j = 0; j < operation_count; j++) {
            accumulate(device, (i + j) % 2, &types[i], operations[j].op, operations[j].name);
        }
    }
}

#define COUNT(array) (int) (sizeof array / sizeof *array)
#define EACH(types, operations) each(device, types, COUNT(types), operations, COUNT(operations))

static void all_combinations(bool device)
{
    const struct type integers[] = {
        TYPE(MPI_INT, INTEGER, 1, false), TYPE(MPI_LONG, INTEGER, 1, false), TYPE(MPI_SHORT, INTEGER, 1, false),
        TYPE(MPI_SIGNED_CHAR, INTEGER, 1, false), TYPE(MPI_UNSIGNED, INTEGER, 1, false),
        TYPE(MPI_UNSIGNED_LONG, INTEGER, 1, false), TYPE(MPI_UNSIGNED_SHORT, INTEGER, 1, false),
        TYPE(MPI_UNSIGNED_CHAR, INTEGER, 1, false), TYPE(MPI_LONG_LONG, INTEGER, 1, false),
        TYPE(MPI_INT8_T, INTEGER, 1, false), TYPE(MPI_INT16_T, INTEGER, 1, false), TYPE(MPI_INT32_T, INTEGER, 1, false),
        TYPE(MPI_INT64_T, INTEGER, 1, false), TYPE(MPI_UINT8_T, INTEGER, 1, false), TYPE(MPI_UINT64_T, INTEGER, 1, false),
        TYPE(MPI_AINT, INTEGER, 1, false), TYPE(MPI_OFFSET, INTEGER, 1, false), TYPE(MPI_COUNT, INTEGER, 1, false),
    };
    const struct type bytes[] = {TYPE(MPI_BYTE, INTEGER, 1, false)};
    const struct type truths[] = {TYPE(MPI_C_BOOL, TRUTH, 1, false)};
    const struct type floats[] = {
        TYPE(MPI_FLOAT, FLOAT, 1, false), TYPE(MPI_DOUBLE, DOUBLE, 1, false), TYPE(MPI_LONG_DOUBLE, LONG_DOUBLE, 1, false),
    };
    const struct type complexes[] = {
        TYPE(MPI_C_FLOAT_COMPLEX, FLOAT, 2, false), TYPE(MPI_C_DOUBLE_COMPLEX, DOUBLE, 2, false),
        TYPE(MPI_C_LONG_DOUBLE_COMPLEX, LONG_DOUBLE, 2, false),
    };
    const struct type pairs[] = {
        TYPE(MPI_FLOAT_INT, FLOAT, 1, true), TYPE(MPI_DOUBLE_INT, DOUBLE, 1, true), TYPE(MPI_LONG_INT, INTEGER, 1, true),
        TYPE(MPI_2INT, INTEGER, 1, true), TYPE(MPI_SHORT_INT, INTEGER, 1, true),
        TYPE(MPI_LONG_DOUBLE_INT, LONG_DOUBLE, 1, true),
    };
    const struct operation any[] = {OPERATION(MPI_REPLACE), OPERATION(MPI_NO_OP)};
    const struct operation arithmetic[] = {
        OPERATION(MPI_SUM), OPERATION(MPI_PROD), OPERATION(MPI_MIN), OPERATION(MPI_MAX),
    };
    const struct operation logical[] = {OPERATION(MPI_LAND), OPERATION(MPI_LOR), OPERATION(MPI_LXOR)};
    const struct operation bitwise[] = {OPERATION(MPI_BAND), OPERATION(MPI_BOR), OPERATION(MPI_BXOR)};
    const struct operation located[] = {OPERATION(MPI_MINLOC), OPERATION(MPI_MAXLOC)};
    const struct operation rings[] = {OPERATION(MPI_SUM), OPERATION(MPI_PROD)};
    EACH(integers, any), EACH(integers, arithmetic), EACH(integers, logical), EACH(integers, bitwise);
    EACH(bytes, any), EACH(bytes, bitwise);
    EACH(truths, any), EACH(truths, logical);
    EACH(floats, any), EACH(floats, arithmetic);
    EACH(complexes, any), EACH(complexes, rings);
    EACH(pairs, any), EACH(pairs, located);
}

/* All processes add to every second int of the first one's window, more than fits into one message. */
static void together(bool device)
{
    MPI_Datatype strided;
    const int *got;
    int *from;
    memory_use(&exposed, exposed.on_device, 0, 2 * MANY * sizeof(int), 0);
    memory_put(&exposed);
    MPI_Win_create(memory_at(&exposed), 2 * MANY * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
    memory_use(&origin, device, 0, MANY * sizeof(int), SEND_GAP);
    from = (int *) data(&origin, origin.before);
    for (int i = 0; i < MANY; i++) {
        from[i] = i + test.rank;
    }
    memory_put(&origin);
    MPI_Type_vector(MANY, 1, 2, MPI_INT, &strided);
    MPI_Type_commit(&strided);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 3; i++) {
        MPI_Accumulate(memory_at(&origin), MANY, MPI_INT, 0, 1, 1, strided, MPI_SUM, window);
    }
    MPI_Win_fence(0, window);
    MPI_Type_free(&strided);
    MPI_Win_free(&window);
    memory_get(&exposed);
    got = (const int *) data(&exposed, exposed.got);
    for (int i = 0; i < MANY; i++) {
        CHECK_EQUAL(got[2 * i], 0);
        CHECK_EQUAL(got[2 * i + 1], 0 == test.rank ? 3 * (test.size * i + test.size * (test.size - 1) / 2) : 0);
    }
    count_check();
}

int main(int argc, char **argv)
{
    set_up(argc, argv, MPI_THREAD_SINGLE);
    next = (test.rank + 1) % test.size;
    for (int some = 0; some <= 1; some++) {
        for (int device = 0; device <= 1; device++) {
            memory_use(&exposed, !some || 0 == test.rank, 0, ROOM, RECV_GAP);
            MPI_Win_create(memory_at(&exposed), ROOM, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
            all_combinations(device);
            MPI_Win_free(&window);
            together(device);
        }
    }
    memory_discard(&exposed);
    memory_discard(&origin);
    memory_discard(&result);
    tear_down();
    return 0;
}
