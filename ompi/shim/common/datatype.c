/* Describes buffers and derived datatypes to the engine.
 *
 * The layout of a datatype is derived once from Open MPI's description, and stored in the datatype's `pml_data`, which
 * is reserved for the PML. The latest layouts are kept by these descriptions, for types that programs make for each call. An attribute of the datatype has a delete callback that frees the layout with the
 * datatype. */
#include "shim.h"

#include "ompi/attribute/attribute.h"
#include "opal/datatype/opal_convertor.h"
#include "opal/datatype/opal_datatype_internal.h"

#include <stdlib.h>

enum { IOVECS = 256 };
/* The longest description by which a layout is kept, and the words of its parts. */
enum { MOST_ELEMENTS = 128, HEAD = 3, ELEMENT = 5 };

static int keyval = MPI_KEYVAL_INVALID;
static opal_mutex_t lock = OPAL_MUTEX_STATIC_INIT;

/* A duplicated datatype does not inherit the attribute, and derives a layout of its own. */
static int copy_attribute(CABLEWAY_TYPE_COPY_PARAMETERS)
{
    *keep = 0;
    return MPI_SUCCESS;
}

static int delete_attribute(ompi_datatype_t *datatype, int key, void *value, void *state)
{
    (void) key, (void) state;
    datatype->pml_data = 0;
    cableway_layout_free(value);
    return MPI_SUCCESS;
}

struct blocks {
    int64_t *offsets, *lengths;
    size_t count, room;
};

static bool append(struct blocks *blocks, int64_t offset, int64_t length)
{
    if (blocks->count == blocks->room) {
        size_t room = blocks->room ? 2 * blocks->room : IOVECS;
        int64_t *offsets = realloc(blocks->offsets, room * sizeof *offsets);
        int64_t *lengths;
        if (NULL == offsets) {
            return false;
        }
        blocks->offsets = offsets;
        lengths = realloc(blocks->lengths, room * sizeof *lengths);
        if (NULL == lengths) {
            return false;
        }
        blocks->lengths = lengths;
        blocks->room = room;
    }
    blocks->offsets[blocks->count] = offset;
    blocks->lengths[blocks->count] = length;
    blocks->count++;
    return true;
}

/* Collects the blocks of one element in packing order. */
static bool collect(const ompi_datatype_t *datatype, struct blocks *blocks)
{
    opal_convertor_t convertor;
    struct iovec iovecs[IOVECS];
    /* The convertor returns addresses relative to this one, which is never dereferenced. NULL would mean no buffer. */
    char *const origin = (char *) ((uintptr_t) 1 << 46);
    bool fits = true;
    int done = 0;

    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    opal_convertor_copy_and_prepare_for_send(ompi_mpi_local_convertor, &datatype->super, 1, origin, 0, &convertor);
    while (fits && !done) {
        uint32_t count = IOVECS;
        size_t length = 0;
        done = opal_convertor_raw(&convertor, iovecs, &count, &length);
        for (uint32_t i = 0; fits && i < count; i++) {
            fits = append(blocks, (char *) iovecs[i].iov_base - origin, (int64_t) iovecs[i].iov_len);
        }
    }
    OBJ_DESTRUCT(&convertor);
    return fits;
}

/* Writes what the layout depends on: Open MPI's description of the type. Returns the number of words, or 0 if they are too
 * many. */
static size_t describe_type(const ompi_datatype_t *datatype, int64_t *words)
{
    const dt_type_desc_t *description = &datatype->super.desc;
    if (NULL == description->desc || description->used > MOST_ELEMENTS) {
        return 0;
    }
    *words++ = datatype->super.lb;
    *words++ = datatype->super.ub;
    *words++ = (int64_t) datatype->super.size;
    for (size_t i = 0; i < description->used; i++) {
        const union dt_elem_desc *element = &description->desc[i];
        *words++ = element->elem.common.type;
        switch (element->elem.common.type) {
        case OPAL_DATATYPE_LOOP:
            *words++ = (int64_t) element->loop.items;
            *words++ = (int64_t) element->loop.loops;
            *words++ = element->loop.extent;
            *words++ = 0;
            break;
        case OPAL_DATATYPE_END_LOOP:
            *words++ = (int64_t) element->end_loop.items;
            *words++ = (int64_t) element->end_loop.size;
            *words++ = element->end_loop.first_elem_disp;
            *words++ = 0;
            break;
        default:
            *words++ = (int64_t) element->elem.blocklen;
            *words++ = (int64_t) element->elem.count;
            *words++ = element->elem.extent;
            *words++ = element->elem.disp;
        }
    }
    return HEAD + ELEMENT * (size_t) description->used;
}

static void *derive(ompi_datatype_t *datatype)
{
    int64_t description[HEAD + ELEMENT * MOST_ELEMENTS];
    const size_t words = describe_type(datatype, description);
    struct blocks blocks = {0};
    void *layout = words ? cableway_layout_known(description, words) : NULL;
    if (NULL != layout) {
        return layout;
    }
    if (collect(datatype, &blocks)) {
        const struct cableway_type_blocks all = {blocks.offsets, blocks.lengths, blocks.count, datatype->super.lb,
                                            datatype->super.ub - datatype->super.lb};
        layout = cableway_layout_create(&all, description, words);
    }
    free(blocks.offsets);
    free(blocks.lengths);
    return layout;
}

static void *layout_of(ompi_datatype_t *datatype)
{
    void *layout = (void *) (uintptr_t) datatype->pml_data;
    if (OPAL_LIKELY(NULL != layout)) {
        return layout;
    }
    opal_mutex_atomic_lock(&lock);
    if (MPI_KEYVAL_INVALID == keyval) {
        ompi_attribute_fn_ptr_union_t copy = {.attr_datatype_copy_fn = copy_attribute};
        ompi_attribute_fn_ptr_union_t del = {.attr_datatype_delete_fn = delete_attribute};
        (void) ompi_attr_create_keyval(TYPE_ATTR, copy, del, &keyval, NULL, 0, NULL);
    }
    layout = (void *) (uintptr_t) datatype->pml_data;
    if (NULL == layout && NULL != (layout = derive(datatype))) {
        if (OMPI_SUCCESS
            != ompi_attr_set_c(TYPE_ATTR, datatype, &datatype->d_keyhash, keyval, layout, false)) {
            cableway_layout_free(layout);
            layout = NULL;
        } else {
            opal_atomic_wmb();
            datatype->pml_data = (uint64_t) (uintptr_t) layout;
        }
    }
    opal_mutex_atomic_unlock(&lock);
    return layout;
}

int cableway_describe(struct cableway_buffer *out, const void *address, size_t count, ompi_datatype_t *datatype)
{
    out->layout = NULL;
    out->count = count;
    if (cableway_contiguous(address, count, datatype, &out->address, &out->len)) {
        return OMPI_SUCCESS;
    }
    out->address = (void *) address;
    out->layout = layout_of(datatype);
    return NULL != out->layout ? OMPI_SUCCESS : OMPI_ERR_OUT_OF_RESOURCE;
}

void cableway_datatype_close(void)
{
    if (MPI_KEYVAL_INVALID != keyval) {
        (void) ompi_attr_free_keyval(TYPE_ATTR, &keyval, false);
        keyval = MPI_KEYVAL_INVALID;
    }
}
