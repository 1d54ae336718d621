/*
 * The collective functions that move data, against copies made by hand: each with parts of one length and of different
 * ones, apart and in place, contiguous and in blocks, blocking and nonblocking, on memory of every kind.
 */
#include "forms.h"
#include "memory.h"

enum { MOST = 8 };

/* The datatype of all calls, and the bytes of an element; of blocks the last third of an element is a gap. */
static const cableway_datatype *type;
static size_t element;
static int gaps;

/* A buffer on the host beside the memory that calls use. */
struct buffer {
    struct memory memory;
    unsigned char *host;
    size_t bytes;
};

static struct buffer make(size_t elements)
{
    struct buffer buffer;
    buffer.bytes = elements * element + 1;
    buffer.host = allocate(buffer.bytes);
    buffer.memory = obtain(buffer.bytes);
    memset(buffer.host, 0xee, buffer.bytes);
    put(&buffer.memory, buffer.host, buffer.bytes);
    return buffer;
}

static void destroy(struct buffer *buffer)
{
    release(&buffer->memory);
    free(buffer->host);
}

/* What element `at` of the part that `from` has for `to` holds. */
static unsigned char value(int from, int to, size_t at)
{
    return (unsigned char) (1 + 17 * from + 5 * to + (int) at % 7);
}

/* Writes a part to the host's copy, except gaps; and to the memory. */
static void write_part(struct buffer *buffer, size_t first, size_t count, int from, int to)
{
    size_t at;
    for (at = 0; at < count; at++) {
        memset(buffer->host + (first + at) * element, value(from, to, at), element - (gaps ? element / 3 : 0));
    }
    put(&buffer->memory, buffer->host, buffer->bytes);
}

static void check_part(const struct buffer *buffer, size_t first, size_t count, int from, int to)
{
    size_t at, inside, data = element - (gaps ? element / 3 : 0);
    for (at = 0; at < count; at++) {
        const unsigned char *here = buffer->host + (first + at) * element;
        for (inside = 0; inside < element; inside++) {
            CHECK_EQUAL(here[inside], inside < data ? value(from, to, at) : 0xee);
        }
    }
}

/* Fetches what a call has stored. The byte behind the last element was not touched. */
static void fetch(struct buffer *buffer)
{
    get(&buffer->memory, buffer->host, buffer->bytes);
    CHECK_EQUAL(buffer->host[buffer->bytes - 1], 0xee);
}

/* The number of elements that `from` has for `to`, different for each pair but the same from both sides. */
static size_t length(int from, int to)
{
    return (size_t) (3 * (from + to) % 5);
}

static void broadcast(int root, size_t count)
{
    struct buffer data = make(count);
    if (rank == root) {
        write_part(&data, 0, count, root, 0);
    }
    CALL(EITHER(bcast, data.memory.address, count, type, root, everyone));
    fetch(&data);
    check_part(&data, 0, count, root, 0);
    destroy(&data);
}

static void gather_and_scatter(int root, size_t count, int in_place)
{
    struct buffer part = make(count), all = make(count * (size_t) size);
    const void *send = part.memory.address;
    int from;

    write_part(&part, 0, count, rank, 0);
    if (rank == root && in_place) {
        write_part(&all, count * (size_t) rank, count, rank, 0);
        send = CABLEWAY_IN_PLACE;
    }
    CALL(EITHER(gather, send, count, type, rank == root ? all.memory.address : NULL, count, type, root, everyone));
    fetch(&all);
    for (from = 0; from < size && rank == root; from++) {
        check_part(&all, count * (size_t) from, count, from, 0);
    }
    destroy(&part);

    part = make(count);
    CALL(EITHER(scatter, rank == root ? all.memory.address : NULL, count, type,
                rank == root && in_place ? CABLEWAY_IN_PLACE : part.memory.address, count, type, root,
                everyone));
    fetch(&part);
    if (rank != root || !in_place) {
        check_part(&part, 0, count, rank, 0);
    }
    destroy(&part);
    destroy(&all);
}

static void allgather(size_t count, int in_place)
{
    struct buffer part = make(count), all = make(count * (size_t) size);
    int from;
    write_part(&part, 0, count, rank, 0);
    if (in_place) {
        write_part(&all, count * (size_t) rank, count, rank, 0);
    }
    CALL(EITHER(allgather, in_place ? CABLEWAY_IN_PLACE : part.memory.address, count, type, all.memory.address, count,
                type, everyone));
    fetch(&all);
    for (from = 0; from < size; from++) {
        check_part(&all, count * (size_t) from, count, from, 0);
    }
    destroy(&part);
    destroy(&all);
}

static void alltoall(size_t count, int in_place)
{
    struct buffer mine = make(count * (size_t) size), theirs = make(count * (size_t) size);
    struct buffer *sent = in_place ? &theirs : &mine;
    int peer;
    for (peer = 0; peer < size; peer++) {
        write_part(sent, count * (size_t) peer, count, rank, peer);
    }
    CALL(EITHER(alltoall, in_place ? CABLEWAY_IN_PLACE : mine.memory.address, count, type, theirs.memory.address, count,
                type, everyone));
    fetch(&theirs);
    for (peer = 0; peer < size; peer++) {
        check_part(&theirs, count * (size_t) peer, count, peer, rank);
    }
    destroy(&mine);
    destroy(&theirs);
}

/* Places parts in the order of ranks, or in the opposite order with a gap of one element between them. */
static size_t place(const size_t *counts, size_t *displacements, int backwards)
{
    size_t end = 0;
    int at;
    for (at = 0; at < size; at++) {
        int which = backwards ? size - 1 - at : at;
        displacements[which] = end;
        end += counts[which] + (size_t) backwards;
    }
    return end;
}

static void gatherv_and_scatterv(int root, int backwards, int in_place)
{
    size_t counts[MOST], at_[MOST], mine, end;
    const size_t *displacements = backwards ? at_ : NULL;
    struct buffer part, all;
    const void *send;
    int from;

    for (from = 0; from < size; from++) {
        counts[from] = length(from, root);
    }
    end = place(counts, at_, backwards);
    mine = counts[rank];
    part = make(mine);
    all = make(end);
    write_part(&part, 0, mine, rank, 0);
    send = part.memory.address;
    if (rank == root && in_place) {
        write_part(&all, at_[rank], mine, rank, 0);
        send = CABLEWAY_IN_PLACE;
    }
    if (rank == root) {
        CALL(EITHER(gatherv, send, mine, type, all.memory.address, counts, displacements, type, root, everyone));
    } else {
        CALL(EITHER(gatherv, send, mine, type, NULL, NULL, NULL, NULL, root, everyone));
    }
    fetch(&all);
    for (from = 0; from < size && rank == root; from++) {
        check_part(&all, at_[from], counts[from], from, 0);
    }
    destroy(&part);

    part = make(mine);
    if (rank == root) {
        CALL(EITHER(scatterv, all.memory.address, counts, displacements, type,
                    in_place ? CABLEWAY_IN_PLACE : part.memory.address, mine, type, root, everyone));
    } else {
        CALL(EITHER(scatterv, NULL, NULL, NULL, NULL, part.memory.address, mine, type, root, everyone));
    }
    fetch(&part);
    if (rank != root || !in_place) {
        check_part(&part, 0, mine, rank, 0);
    }
    destroy(&part);
    destroy(&all);
}

static void allgatherv(int backwards, int in_place)
{
    size_t counts[MOST], at_[MOST], end;
    const size_t *displacements = backwards ? at_ : NULL;
    struct buffer part, all;
    int from;

    for (from = 0; from < size; from++) {
        counts[from] = length(from, 1);
    }
    end = place(counts, at_, backwards);
    part = make(counts[rank]);
    all = make(end);
    write_part(&part, 0, counts[rank], rank, 0);
    if (in_place) {
        write_part(&all, at_[rank], counts[rank], rank, 0);
    }
    CALL(EITHER(allgatherv, in_place ? CABLEWAY_IN_PLACE : part.memory.address, counts[rank], type, all.memory.address,
                counts, displacements, type, everyone));
    fetch(&all);
    for (from = 0; from < size; from++) {
        check_part(&all, at_[from], counts[from], from, 0);
    }
    destroy(&part);
    destroy(&all);
}

/* `length` is symmetric, so both directions have the same counts, as in place requires. */
static void alltoallv(int backwards, int in_place)
{
    size_t counts[MOST], at_[MOST], end;
    const size_t *displacements = backwards ? at_ : NULL;
    struct buffer mine, theirs, *sent;
    int peer;

    for (peer = 0; peer < size; peer++) {
        counts[peer] = length(rank, peer);
    }
    end = place(counts, at_, backwards);
    mine = make(end);
    theirs = make(end);
    sent = in_place ? &theirs : &mine;
    for (peer = 0; peer < size; peer++) {
        write_part(sent, at_[peer], counts[peer], rank, peer);
    }
    CALL(EITHER(alltoallv, in_place ? CABLEWAY_IN_PLACE : mine.memory.address, counts, displacements, type,
                theirs.memory.address, counts, displacements, type, everyone));
    fetch(&theirs);
    for (peer = 0; peer < size; peer++) {
        check_part(&theirs, at_[peer], counts[peer], peer, rank);
    }
    destroy(&mine);
    destroy(&theirs);
}

/* Around a ring in both directions; with one or two processes both neighbours are the same. */
static void ring(size_t count)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    struct buffer out = make(count), from_left = make(count), from_right = make(count);
    cableway_neighbor sends[2], receives[2];

    write_part(&out, 0, count, rank, 0);
    sends[0] = (cableway_neighbor) {left, 0, out.memory.address, count, type};
    sends[1] = (cableway_neighbor) {right, 1, out.memory.address, count, type};
    receives[0] = (cableway_neighbor) {right, 0, from_right.memory.address, count, type};
    receives[1] = (cableway_neighbor) {left, 1, from_left.memory.address, count, type};
    CALL(EITHER(neighbor_alltoall, sends, 2, receives, 2, everyone));
    fetch(&from_left);
    fetch(&from_right);
    check_part(&from_left, 0, count, left, 0);
    check_part(&from_right, 0, count, right, 0);
    CALL(EITHER(neighbor_alltoall, NULL, 0, NULL, 0, everyone));
    CHECK(CABLEWAY_ERR_ARGUMENT == EITHER(neighbor_alltoall, NULL, 1, NULL, 0, everyone));
    sends[1].rank = -1;
    CHECK(CABLEWAY_ERR_RANK == EITHER(neighbor_alltoall, sends, 2, receives, 2, everyone));
    sends[1].rank = size;
    CHECK(CABLEWAY_ERR_RANK == EITHER(neighbor_alltoall, sends, 2, receives, 2, everyone));
    destroy(&out);
    destroy(&from_left);
    destroy(&from_right);
}

static void forms(size_t count)
{
    int in_place, backwards, root = size - 1;
    broadcast(0, count);
    broadcast(root, count);
    ring(count);
    for (in_place = 0; in_place < 2; in_place++) {
        gather_and_scatter(root, count, in_place);
        allgather(count, in_place);
        alltoall(count, in_place);
        for (backwards = 0; backwards < 2; backwards++) {
            gatherv_and_scatterv(root, backwards, in_place);
            allgatherv(backwards, in_place);
            alltoallv(backwards, in_place);
        }
    }
}

static void all(size_t count)
{
    for (nonblocking = 0; nonblocking < 2; nonblocking++) {
        forms(count);
    }
}

int main(int argc, char **argv)
{
    cableway_datatype *blocks, *resized;
    begin();
    select_memory(argc, argv);
    CHECK(size <= MOST);

    type = CABLEWAY_BYTE;
    element = 1;
    all(0);
    all(11);
    all(30000);
    CALL(cableway_type_contiguous(16, CABLEWAY_BYTE, &blocks));
    CALL(cableway_type_resized(blocks, 0, 24, &resized));
    type = resized;
    element = 24;
    gaps = 1;
    all(9);
    all(3000);
    CALL(cableway_type_free(&blocks));
    CALL(cableway_type_free(&resized));
    end();
    return 0;
}
