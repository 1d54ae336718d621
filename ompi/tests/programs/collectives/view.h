/* Data of a type in an image of a buffer. */
#ifndef VIEW_H
#define VIEW_H

#include "memory.h"

struct view {
    MPI_Datatype type;
    int per_unit; /* elements of this type in a unit, which has the same bytes on both sides */
    int size;
    MPI_Aint extent;
};

static struct view view(MPI_Datatype type, int per_unit)
{
    struct view view = {.type = type, .per_unit = per_unit};
    MPI_Aint lower;
    MPI_Type_get_extent(type, &lower, &view.extent);
    MPI_Type_size(type, &view.size);
    CHECK_EQUAL(lower, 0);
    return view;
}

/* Writes the data that goes from one process to another (or from one to all) into an image of a buffer, as elements of
 * the view. Every word tells who sent it to whom, and its place. */
static void write_part(unsigned char *image, const struct view *view, int count, uint64_t salt, int from, int to)
{
    size_t bytes = (size_t) count * (size_t) view->size, words = (bytes + 7) / 8;
    uint64_t key = mix(salt, (uint64_t) from, (uint64_t) to);
    uint64_t *packed = malloc(8 * words + 8);
    int position = 0;
    CHECK(NULL != packed);
    for (size_t i = 0; i < words; i++) {
        packed[i] = mix(key, i, 11);
    }
    if (view->extent == view->size && (MPI_BYTE == view->type || MPI_DOUBLE == view->type || MPI_INT == view->type)) {
        memcpy(image, packed, bytes);
    } else if (0 != bytes) {
        MPI_Unpack(packed, (int) bytes, &position, image, count, view->type, MPI_COMM_SELF);
        CHECK_EQUAL(position, bytes);
    }
    free(packed);
}

#endif
