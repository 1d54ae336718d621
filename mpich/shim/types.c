/* Describes MPI's types to Rust. The layout of a type that is not plain bytes is an attribute of it, so that it is made
 * once. */
#include "types.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* --- layouts --- */

static void *build(MPI_Datatype type);

static int combiner_of(int combiner)
{
    switch (combiner) {
    case MPI_COMBINER_DUP: return DUP;
    case MPI_COMBINER_CONTIGUOUS: return CONTIGUOUS;
    case MPI_COMBINER_VECTOR: return VECTOR;
    case MPI_COMBINER_HVECTOR: return HVECTOR;
    case MPI_COMBINER_INDEXED: return INDEXED;
    case MPI_COMBINER_HINDEXED: return HINDEXED;
    case MPI_COMBINER_INDEXED_BLOCK: return INDEXED_BLOCK;
    case MPI_COMBINER_HINDEXED_BLOCK: return HINDEXED_BLOCK;
    case MPI_COMBINER_STRUCT: return STRUCT;
    case MPI_COMBINER_RESIZED: return RESIZED;
    case MPI_COMBINER_SUBARRAY: return SUBARRAY;
    case MPI_COMBINER_DARRAY: return DARRAY;
    default: return -1;
    }
}

static bool is_basic(int combiner)
{
    return MPI_COMBINER_NAMED == combiner || MPI_COMBINER_F90_REAL == combiner || MPI_COMBINER_F90_COMPLEX == combiner ||
           MPI_COMBINER_F90_INTEGER == combiner;
}

static int order_of(int order)
{
    return MPI_ORDER_C == order ? ROWS_FIRST : COLUMNS_FIRST;
}

/* Replaces MPI's constants among the integers of an array type. */
static void translate(int combiner, int *integers)
{
    if (SUBARRAY == combiner) {
        int *order = &integers[1 + 3 * integers[0]];
        *order = order_of(*order);
    } else if (DARRAY == combiner) {
        const int dimensions = integers[2];
        int *distributions = &integers[3 + dimensions], *lengths = distributions + dimensions;
        int *order = &integers[3 + 4 * dimensions];
        for (int i = 0; i < dimensions; i++) {
            distributions[i] = MPI_DISTRIBUTE_BLOCK == distributions[i]  ? BLOCKS
                             : MPI_DISTRIBUTE_CYCLIC == distributions[i] ? IN_TURN
                                                                         : UNDIVIDED;
            lengths[i] = MPI_DISTRIBUTE_DFLT_DARG == lengths[i] ? -1 : lengths[i];
        }
        *order = order_of(*order);
    }
}

static void *build_basic(MPI_Datatype type)
{
    static const struct {
        MPI_Datatype type;
        int pair;
    } pairs[] = {{MPI_DOUBLE_INT, PAIR_DOUBLE_INT}, {MPI_LONG_INT, PAIR_LONG_INT}, {MPI_SHORT_INT, PAIR_SHORT_INT},
                 {MPI_LONG_DOUBLE_INT, PAIR_LONG_DOUBLE_INT}};
    int size = 0;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (type == pairs[i].type) {
            return cableway_type_pair(pairs[i].pair);
        }
    }
    PMPI_Type_size(type, &size);
    return 0 < size ? cableway_type_bytes((uint64_t) size) : NULL;
}

/* Frees a handle that MPI_Type_get_contents has returned. Predefined types are not freed. */
static void release(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    if (!is_basic(combiner)) {
        PMPI_Type_free(&type);
    }
}

static void *build_derived(MPI_Datatype type, int combiner, int integer_count, int address_count, int type_count)
{
    int *integers = malloc(sizeof(int) * (size_t) (integer_count + 1));
    MPI_Aint *addresses = malloc(sizeof(MPI_Aint) * (size_t) (address_count + 1));
    MPI_Datatype *types = malloc(sizeof(MPI_Datatype) * (size_t) (type_count + 1));
    void **members = calloc((size_t) type_count + 1, sizeof(void *));
    void *built = NULL;
    if (NULL != integers && NULL != addresses && NULL != types && NULL != members &&
        MPI_SUCCESS == PMPI_Type_get_contents(type, integer_count, address_count, type_count, integers, addresses, types)) {
        bool all = true;
        translate(combiner, integers);
        for (int i = 0; i < type_count; i++) {
            members[i] = build(types[i]);
            all = all && NULL != members[i];
            release(types[i]);
        }
        if (all) {
            built = cableway_type_make(combiner, integers, (size_t) integer_count, addresses, (size_t) address_count,
                                       members, (size_t) type_count);
        }
        for (int i = 0; i < type_count; i++) {
            cableway_type_free(members[i]);
        }
    }
    free(integers);
    free(addresses);
    free(types);
    free(members);
    return built;
}

static void *build(MPI_Datatype type)
{
    int integers, addresses, types, combiner;
    if (MPI_SUCCESS != PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner)) {
        return NULL;
    }
    if (is_basic(combiner)) {
        return build_basic(type);
    }
    const int known = combiner_of(combiner);
    return 0 <= known ? build_derived(type, known, integers, addresses, types) : NULL;
}

/* --- attributes --- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int forget(MPI_Datatype type, int keyval, void *layout, void *extra)
{
    (void) type, (void) keyval, (void) extra;
    cableway_layout_free(layout);
    return MPI_SUCCESS;
}

/* Returns the layout of a type, which lives as long as the type. */
static const void *layout_of(MPI_Datatype type)
{
    static int key = MPI_KEYVAL_INVALID;
    void *layout = NULL;
    int found = 0;
    pthread_mutex_lock(&lock);
    if (MPI_KEYVAL_INVALID == key) {
        PMPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, forget, &key, NULL);
    }
    PMPI_Type_get_attr(type, key, &layout, &found);
    if (!found) {
        void *built = build(type);
        layout = NULL != built ? cableway_layout_new(built) : NULL;
        if (NULL != layout && MPI_SUCCESS != PMPI_Type_set_attr(type, key, layout)) {
            cableway_layout_free(layout);
            layout = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    return layout;
}

/* Returns the size of a type whose elements are bytes without a gap in them or between them, or 0. */
static int dense(MPI_Datatype type)
{
    int integers, addresses, types, combiner, size = 0;
    MPI_Aint lower, extent;
    PMPI_Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    if (MPI_COMBINER_NAMED != combiner) {
        return 0;
    }
    PMPI_Type_size(type, &size);
    PMPI_Type_get_extent(type, &lower, &extent);
    return 0 == lower && extent == size ? size : 0;
}

bool types_describe(struct cableway_memory *memory, const void *address, int count, MPI_Datatype type)
{
    *memory = (struct cableway_memory){.address = (void *) (uintptr_t) address};
    if (0 == count) {
        return true; /* the type may be invalid */
    }
    if (0 > count || MPI_DATATYPE_NULL == type) {
        return false;
    }
    const int size = dense(type);
    if (0 != size) {
        memory->length = (uint64_t) count * (uint64_t) size;
        return true;
    }
    memory->count = (uint64_t) count;
    memory->layout = layout_of(type);
    return NULL != memory->layout;
}

/* --- reductions --- */

/* The numbers of `Element` in Rust. */
enum element {
    I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64, COMPLEX32, COMPLEX64,
    FLOAT_INT, DOUBLE_INT, LONG_INT, TWO_INT, SHORT_INT, TWO_FLOAT, TWO_DOUBLE, NO_ELEMENT = -1
};

/* Elements that have a number for each of several sizes. */
enum family { SIGNED, UNSIGNED, FLOATING, COMPLEX, PAIRS };

static int element_of(MPI_Datatype wanted)
{
    static const struct {
        MPI_Datatype type;
        enum family family;
        int element; /* of pairs */
    } known[] = {
        {MPI_INT, SIGNED, 0}, {MPI_LONG, SIGNED, 0}, {MPI_LONG_LONG, SIGNED, 0}, {MPI_SHORT, SIGNED, 0},
        {MPI_SIGNED_CHAR, SIGNED, 0}, {MPI_INT8_T, SIGNED, 0}, {MPI_INT16_T, SIGNED, 0}, {MPI_INT32_T, SIGNED, 0},
        {MPI_INT64_T, SIGNED, 0}, {MPI_AINT, SIGNED, 0}, {MPI_OFFSET, SIGNED, 0}, {MPI_COUNT, SIGNED, 0},
        {MPI_INTEGER, SIGNED, 0}, {MPI_INTEGER1, SIGNED, 0}, {MPI_INTEGER2, SIGNED, 0}, {MPI_INTEGER4, SIGNED, 0},
        {MPI_INTEGER8, SIGNED, 0}, {MPI_LOGICAL, SIGNED, 0},
        {MPI_UNSIGNED, UNSIGNED, 0}, {MPI_UNSIGNED_LONG, UNSIGNED, 0}, {MPI_UNSIGNED_LONG_LONG, UNSIGNED, 0},
        {MPI_UNSIGNED_SHORT, UNSIGNED, 0}, {MPI_UNSIGNED_CHAR, UNSIGNED, 0}, {MPI_UINT8_T, UNSIGNED, 0},
        {MPI_UINT16_T, UNSIGNED, 0}, {MPI_UINT32_T, UNSIGNED, 0}, {MPI_UINT64_T, UNSIGNED, 0}, {MPI_BYTE, UNSIGNED, 0},
        {MPI_C_BOOL, UNSIGNED, 0}, {MPI_CXX_BOOL, UNSIGNED, 0},
        {MPI_FLOAT, FLOATING, 0}, {MPI_DOUBLE, FLOATING, 0}, {MPI_REAL, FLOATING, 0}, {MPI_REAL4, FLOATING, 0},
        {MPI_REAL8, FLOATING, 0}, {MPI_DOUBLE_PRECISION, FLOATING, 0},
#ifdef MPIX_C_FLOAT16
        {MPIX_C_FLOAT16, FLOATING, 0},
#endif
        {MPI_C_FLOAT_COMPLEX, COMPLEX, 0}, {MPI_C_DOUBLE_COMPLEX, COMPLEX, 0}, {MPI_COMPLEX, COMPLEX, 0},
        {MPI_DOUBLE_COMPLEX, COMPLEX, 0}, {MPI_COMPLEX8, COMPLEX, 0}, {MPI_COMPLEX16, COMPLEX, 0},
        {MPI_CXX_FLOAT_COMPLEX, COMPLEX, 0}, {MPI_CXX_DOUBLE_COMPLEX, COMPLEX, 0},
        {MPI_FLOAT_INT, PAIRS, FLOAT_INT}, {MPI_DOUBLE_INT, PAIRS, DOUBLE_INT}, {MPI_LONG_INT, PAIRS, LONG_INT},
        {MPI_2INT, PAIRS, TWO_INT}, {MPI_SHORT_INT, PAIRS, SHORT_INT}, {MPI_2REAL, PAIRS, TWO_FLOAT},
        {MPI_2DOUBLE_PRECISION, PAIRS, TWO_DOUBLE}, {MPI_2INTEGER, PAIRS, TWO_INT},
    };
    int size = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        /* A type that this MPI was built without is null, and so are others. */
        if (wanted != known[i].type || MPI_DATATYPE_NULL == wanted) {
            continue;
        }
        PMPI_Type_size(wanted, &size);
        const int log = 1 == size ? 0 : 2 == size ? 1 : 4 == size ? 2 : 8 == size ? 3 : -1;
        switch (known[i].family) {
        case SIGNED: return 0 <= log ? I8 + log : NO_ELEMENT;
        case UNSIGNED: return 0 <= log ? U8 + log : NO_ELEMENT;
        case FLOATING: return 1 <= log ? F16 + log - 1 : NO_ELEMENT;
        case COMPLEX: return 8 == size ? COMPLEX32 : 16 == size ? COMPLEX64 : NO_ELEMENT;
        default: return TWO_INT == known[i].element && 8 != size ? NO_ELEMENT : known[i].element;
        }
    }
    return NO_ELEMENT;
}

static int operation_of(MPI_Op op)
{
    static const MPI_Op operations[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR,
                                        MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_MINLOC, MPI_MAXLOC};
    for (int i = 0; i < (int) (sizeof operations / sizeof *operations); i++) {
        if (op == operations[i]) {
            return i;
        }
    }
    return -1;
}

bool types_reduce(MPI_Op op, MPI_Datatype type, int *operation, int *element)
{
    *operation = operation_of(op);
    *element = 0 <= *operation ? element_of(type) : NO_ELEMENT;
    return NO_ELEMENT != *element && cableway_reduces(*operation, *element);
}
