/* Messages of datatypes, from and to memory of every kind. */
#include "memory.h"

enum { ROWS = 64, COLUMNS = 48 };

struct particle {
    double position[3];
    char name[5];
    int32_t charge;
};

/* Sends `count` elements of a type between two processes, and compares what arrived with a copy made by hand. */
static void exchange(const cableway_datatype *type, size_t count, size_t span, const unsigned char *mask)
{
    int peer = 1 - rank;
    size_t at;
    unsigned char *bytes = allocate(span), *received = allocate(span);
    struct memory from = obtain(span), to = obtain(span);
    cableway_status status;
    cableway_request *request;
    uint64_t packed;

    CALL(cableway_type_size(type, &packed));
    fill(bytes, span, rank);
    put(&from, bytes, span);
    memset(received, 0xee, span);
    put(&to, received, span);
    CALL(cableway_irecv(to.address, count, type, peer, 4, everyone, &request));
    CALL(cableway_send(from.address, count, type, peer, 4, everyone));
    CALL(cableway_wait(&request, &status));
    CHECK_EQUAL(status.bytes, count * packed);
    get(&to, received, span);
    for (at = 0; at < span; at++) {
        CHECK_EQUAL(received[at], mask[at] ? byte_of(peer, at) : 0xee);
    }
    release(&from);
    release(&to);
    free(bytes);
    free(received);
}

/* A column block of a matrix. */
static void vectors(void)
{
    static unsigned char mask[ROWS * COLUMNS * 8 * 2];
    cableway_datatype *number, *block, *by_bytes, *resized;
    int row, column;
    int64_t extent;

    CALL(cableway_type_contiguous(8, CABLEWAY_BYTE, &number));
    CALL(cableway_type_vector(ROWS, 5, COLUMNS, number, &block));
    CALL(cableway_type_hvector(ROWS, 5, COLUMNS * 8, number, &by_bytes));
    CALL(cableway_type_extent(block, &extent));
    CHECK_EQUAL(extent, ((ROWS - 1) * COLUMNS + 5) * 8);
    CALL(cableway_type_resized(block, 0, ROWS * COLUMNS * 8, &resized));
    /* Types made from it outlive it. */
    CALL(cableway_type_free(&number));
    memset(mask, 0, sizeof mask);
    for (row = 0; row < 2 * ROWS; row++) {
        for (column = 0; column < 5 * 8; column++) {
            mask[row * COLUMNS * 8 + column] = 1;
        }
        if (ROWS - 1 == row) {
            exchange(block, 1, ROWS * COLUMNS * 8, mask);
            exchange(by_bytes, 1, ROWS * COLUMNS * 8, mask);
        }
    }
    exchange(resized, 2, sizeof mask, mask);
    CALL(cableway_type_free(&block));
    CALL(cableway_type_free(&by_bytes));
    CALL(cableway_type_free(&resized));
}

static void others(void)
{
    static unsigned char mask[10 * sizeof(struct particle)];
    int64_t lengths[] = {2, 1, 3}, displacements[] = {1, 5, 8}, offsets[3];
    cableway_datatype *indexed, *particle, *whole;
    const cableway_datatype *types[3] = {CABLEWAY_BYTE, CABLEWAY_BYTE, CABLEWAY_BYTE};
    size_t at;
    int block;
    uint64_t packed;

    memset(mask, 0, sizeof mask);
    for (block = 0; block < 3; block++) {
        memset(mask + displacements[block], 1, (size_t) lengths[block]);
    }
    CALL(cableway_type_indexed(3, lengths, displacements, CABLEWAY_BYTE, &indexed));
    exchange(indexed, 1, 16, mask);
    CALL(cableway_type_free(&indexed));

    lengths[0] = sizeof(double) * 3;
    lengths[1] = 5;
    lengths[2] = sizeof(int32_t);
    offsets[0] = offsetof(struct particle, position);
    offsets[1] = offsetof(struct particle, name);
    offsets[2] = offsetof(struct particle, charge);
    CALL(cableway_type_struct(3, lengths, offsets, types, &particle));
    CALL(cableway_type_resized(particle, 0, sizeof(struct particle), &whole));
    CALL(cableway_type_size(whole, &packed));
    CHECK_EQUAL(packed, 3 * sizeof(double) + 5 + sizeof(int32_t));
    memset(mask, 0, sizeof mask);
    for (at = 0; at < sizeof mask; at += sizeof(struct particle)) {
        for (block = 0; block < 3; block++) {
            memset(mask + at + offsets[block], 1, (size_t) lengths[block]);
        }
    }
    exchange(whole, 10, sizeof mask, mask);
    CALL(cableway_type_free(&particle));
    CALL(cableway_type_free(&whole));

    CALL(cableway_type_size(CABLEWAY_BYTE, &packed));
    CHECK_EQUAL(packed, 1);
}

int main(int argc, char **argv)
{
    begin();
    select_memory(argc, argv);
    vectors();
    others();
    end();
    return 0;
}
