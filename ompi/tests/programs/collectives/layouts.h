/* What moves: two types with the same signature, one for each side. */
#ifndef LAYOUTS_H
#define LAYOUTS_H

#include "view.h"

struct layout {
    const char *name;
    struct view sent, received;
};

enum { LAYOUTS = 6 };
static struct layout layouts[LAYOUTS];
static MPI_Datatype made[2 * LAYOUTS];
static int made_count;

/* A type whose elements lie this many bytes apart. */
static MPI_Datatype resized(MPI_Datatype type, MPI_Aint extent)
{
    MPI_Datatype *result = &made[made_count++];
    MPI_Type_create_resized(type, 0, extent, result);
    MPI_Type_commit(result);
    MPI_Type_free(&type);
    return *result;
}

/* A char, an int and a double, in this order, at these places. */
static MPI_Datatype record(MPI_Aint letter, MPI_Aint number, MPI_Aint value, MPI_Aint extent)
{
    const int lengths[] = {1, 1, 1};
    const MPI_Aint offsets[] = {letter, number, value};
    const MPI_Datatype members[] = {MPI_CHAR, MPI_INT, MPI_DOUBLE};
    MPI_Datatype type;
    MPI_Type_create_struct(3, lengths, offsets, members, &type);
    return resized(type, extent);
}

static MPI_Datatype ints_in_blocks(int blocks, int length, int stride, MPI_Aint extent)
{
    MPI_Datatype type;
    MPI_Type_vector(blocks, length, stride, MPI_INT, &type);
    return resized(type, extent);
}

static void make_layouts(void)
{
    MPI_Datatype four, shuffled, indexed;
    const int lengths[] = {1, 2, 1}, places[] = {5, 0, 3};
    MPI_Type_contiguous(4, MPI_INT, &four);
    MPI_Type_indexed(3, lengths, places, MPI_INT, &indexed);
    shuffled = resized(indexed, 24);
    layouts[0] = (struct layout){"bytes", view(MPI_BYTE, 1), view(MPI_BYTE, 1)};
    layouts[1] = (struct layout){"doubles", view(MPI_DOUBLE, 1), view(MPI_DOUBLE, 1)};
    layouts[2] = (struct layout){"blocks with holes", view(ints_in_blocks(2, 2, 3, 24), 1), view(ints_in_blocks(2, 2, 5, 40), 1)};
    layouts[3] = (struct layout){"ints to blocks", view(MPI_INT, 4), view(ints_in_blocks(4, 1, 2, 32), 1)};
    layouts[4] = (struct layout){"records", view(record(0, 4, 8, 16), 1), view(record(20, 0, 8, 32), 1)};
    layouts[5] = (struct layout){"blocks out of order to fours", view(shuffled, 1), view(resized(four, 16), 1)};
    for (int i = 0; i < LAYOUTS; i++) {
        const struct view *sent = &layouts[i].sent, *received = &layouts[i].received;
        CHECK_EQUAL(sent->per_unit * sent->size, received->per_unit * received->size);
    }
}

static void free_layouts(void)
{
    while (0 < made_count) {
        MPI_Type_free(&made[--made_count]);
    }
}

#endif
