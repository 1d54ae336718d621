/* Collectives of device memory whose blocks have gaps, each rank on a device of its own: the subarrays of an array that is
 * divided along another dimension, and others. CABLEWAY_CUDA_LIBDIR names the driver.
 *
 * Blocks at regular distances move by peer access. So, once all memory is mapped, messages bring no data. */
#include "collectives/counters.h"
#include "collectives/view.h"

enum { ROWS = 128, COLUMNS = 96, ELEMENTS = ROWS * COLUMNS, ROUNDS = 6, SETTLED = 3, RANKS = 8 };
/* Handshakes are short messages. */
enum { HANDSHAKES = 8192 };

enum exchange {
    ROWS_TO_COLUMNS, /* gaps on the sender's side */
    COLUMNS_TO_ROWS, /* on the receiver's */
    PLANES,          /* on both sides, in several dimensions */
    TURNED,          /* columns, one after the other, become rows */
    BACKWARDS,       /* rows from the last to the first one */
    IRREGULAR,       /* messages bring these */
    EXCHANGES
};

static struct memory out, in;
static struct view sent[RANKS], received[RANKS];
static int counts_sent[RANKS], counts_received[RANKS], displacements[RANKS];
static MPI_T_pvar_handle eager, others[3];

static struct view committed(MPI_Datatype type)
{
    struct view view = {.per_unit = 1};
    MPI_Aint lower;
    MPI_Type_commit(&type);
    MPI_Type_get_extent(type, &lower, &view.extent);
    MPI_Type_size(type, &view.size);
    view.type = type;
    return view;
}

/* A part of an array of three dimensions. */
static struct view part(int planes, int rows, int columns, int lengths[3], int row, int column)
{
    const int sizes[3] = {planes, rows, columns}, starts[3] = {0, row, column};
    MPI_Datatype type;
    MPI_Type_create_subarray(3, sizes, lengths, starts, MPI_ORDER_C, MPI_INT, &type);
    return committed(type);
}

static struct view plane(int rows, int columns, int row, int column, int height, int width)
{
    int lengths[3] = {1, height, width};
    return part(1, rows, columns, lengths, row, column);
}

/* One column of `columns`. The next element is the next column. */
static struct view column(int rows, int columns)
{
    MPI_Datatype type, next;
    MPI_Type_vector(rows, 1, columns, MPI_INT, &type);
    MPI_Type_create_resized(type, 0, sizeof(int), &next);
    MPI_Type_free(&type);
    return committed(next);
}

static struct view backwards(int rows, int columns, int first)
{
    MPI_Datatype type, whole;
    const int length = 1;
    const MPI_Aint offset = (MPI_Aint) (((rows - 1) * columns + first) * sizeof(int));
    MPI_Type_vector(rows, COLUMNS, -columns, MPI_INT, &type);
    MPI_Type_create_hindexed(1, &length, &offset, type, &whole);
    MPI_Type_free(&type);
    return committed(whole);
}

static struct view irregular(int first)
{
    int lengths[ROWS], places[ROWS], at = first;
    MPI_Datatype type;
    for (int i = 0; i < ROWS; i++) {
        lengths[i] = COLUMNS + i % 7;
        places[i] = at;
        at += lengths[i] + i % 5 + 1;
    }
    MPI_Type_indexed(ROWS, lengths, places, MPI_INT, &type);
    return committed(type);
}

static void describe(enum exchange exchange)
{
    for (int rank = 0; rank < test.size; rank++) {
        const int across = COLUMNS * test.size, down = ROWS * test.size;
        int thin[3] = {8, 16, 96};
        counts_sent[rank] = counts_received[rank] = 1;
        switch (exchange) {
        case ROWS_TO_COLUMNS:
            sent[rank] = plane(ROWS, across, 0, COLUMNS * rank, ROWS, COLUMNS);
            received[rank] = plane(down, COLUMNS, ROWS * rank, 0, ROWS, COLUMNS);
            break;
        case COLUMNS_TO_ROWS:
            sent[rank] = plane(down, COLUMNS, ROWS * rank, 0, ROWS, COLUMNS);
            received[rank] = plane(ROWS, across, 0, COLUMNS * rank, ROWS, COLUMNS);
            break;
        case PLANES:
            sent[rank] = part(8, 16 * test.size, 97, thin, 16 * rank, 1);
            received[rank] = part(8, 17, 96 * test.size, thin, 1, 96 * rank);
            break;
        case TURNED:
            sent[rank] = column(ROWS, COLUMNS);
            counts_sent[rank] = COLUMNS;
            received[rank] = plane(COLUMNS, down, 0, ROWS * rank, COLUMNS, ROWS);
            break;
        case BACKWARDS:
            sent[rank] = backwards(ROWS, across, COLUMNS * rank);
            received[rank] = plane(ROWS, across, 0, COLUMNS * rank, ROWS, COLUMNS);
            break;
        default:
            sent[rank] = received[rank] = irregular(2 * ELEMENTS * rank);
        }
    }
}

static void forget(enum exchange exchange)
{
    for (int rank = 0; rank < test.size; rank++) {
        MPI_Type_free(&sent[rank].type);
        if (IRREGULAR != exchange) {
            MPI_Type_free(&received[rank].type);
        }
    }
}

/* Returns the bytes of data that messages brought since the call before. */
static unsigned long long moved(void)
{
    static unsigned long long eager_before, others_before;
    unsigned long long short_ones = read_counter(eager), long_ones = 0, found;
    for (int i = 0; i < 3; i++) {
        long_ones += read_counter(others[i]);
    }
    found = long_ones - others_before;
    if (short_ones - eager_before > HANDSHAKES) {
        found += short_ones - eager_before;
    }
    eager_before = short_ones;
    others_before = long_ones;
    return found;
}

static void verify(int round, bool by_messages)
{
    const unsigned long long bytes = moved();
    memory_get(&in);
    CHECK_EQUAL(memory_differs(&in), -1);
    if (by_messages) {
        CHECK(0 < bytes);
    } else if (SETTLED <= round) {
        CHECK_EQUAL(bytes, 0);
    }
    count_check();
}

static void prepare(void)
{
    const size_t bytes = 2 * ELEMENTS * sizeof(int) * (size_t) (test.size + 1);
    memory_use(&out, true, 0, bytes, SEND_GAP);
    memory_use(&in, true, 0, bytes, RECV_GAP);
}

static void begin(void)
{
    memory_put(&out);
    memory_put(&in);
    MPI_Barrier(MPI_COMM_WORLD);
    moved();
}

static void all_to_all(enum exchange exchange, int round)
{
    const uint64_t salt = mix((uint64_t) exchange, (uint64_t) round, 3);
    MPI_Datatype types_sent[RANKS], types_received[RANKS];
    describe(exchange);
    prepare();
    for (int rank = 0; rank < test.size; rank++) {
        /* What is turned is the same for all. */
        const int to = TURNED == exchange ? 0 : rank, here = TURNED == exchange ? 0 : test.rank;
        write_part(data(&out, out.before), &sent[rank], counts_sent[rank], salt, test.rank, to);
        write_part(data(&in, in.want), &received[rank], counts_received[rank], salt, rank, here);
        types_sent[rank] = sent[rank].type;
        types_received[rank] = received[rank].type;
    }
    begin();
    MPI_Alltoallw(memory_at(&out), counts_sent, displacements, types_sent, memory_at(&in), counts_received,
                  displacements, types_received, MPI_COMM_WORLD);
    verify(round, IRREGULAR == exchange && 1 < test.size);
    forget(exchange);
}

/* The blocks of the ranks lie beside each other. */
static void gather_columns(int round)
{
    const struct view ints = view(MPI_INT, 1);
    MPI_Datatype type, beside;
    struct view columns;
    const uint64_t salt = mix(EXCHANGES, (uint64_t) round, 3);
    MPI_Type_vector(ROWS, COLUMNS, COLUMNS * test.size, MPI_INT, &type);
    MPI_Type_create_resized(type, 0, COLUMNS * sizeof(int), &beside);
    MPI_Type_free(&type);
    columns = committed(beside);
    prepare();
    write_part(data(&out, out.before), &ints, ELEMENTS, salt, test.rank, 0);
    for (int rank = 0; rank < test.size; rank++) {
        write_part(data(&in, in.want) + rank * columns.extent, &columns, 1, salt, rank, 0);
    }
    begin();
    MPI_Allgather(memory_at(&out), ELEMENTS, MPI_INT, memory_at(&in), 1, columns.type, MPI_COMM_WORLD);
    verify(round, false);
    MPI_Type_free(&columns.type);
}

int main(int argc, char **argv)
{
    int devices;
    set_up(argc, argv, MPI_THREAD_SINGLE);
    CHECK(test.size <= RANKS);
    CHECK_EQUAL(cuda.device_get_count(&devices), 0);
    if (devices < test.size) {
        if (0 == test.rank) {
            printf("SKIPPED: %d ranks on %d devices do not access each other's memory\n", test.size, devices);
        }
    } else {
        open_counters();
        eager = counter("pml_cableway_bytes_eager");
        others[0] = counter("pml_cableway_bytes_get");
        others[1] = counter("pml_cableway_bytes_put");
        others[2] = counter("pml_cableway_bytes_fragments");
        for (int round = 0; round < ROUNDS; round++) {
            for (int exchange = 0; exchange < EXCHANGES; exchange++) {
                all_to_all((enum exchange) exchange, round);
            }
            gather_columns(round);
        }
        memory_discard(&out);
        memory_discard(&in);
        close_counters();
    }
    tear_down();
    return 0;
}
