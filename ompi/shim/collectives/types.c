/* The numbers of MPI's operations and types in the engine's lists. */
#include "described.h"

/* The numbers of `Element` in Rust. */
enum element {
    I8, I16, I32, I64, U8, U16, U32, U64, F16, F32, F64, COMPLEX32, COMPLEX64,
    FLOAT_INT, DOUBLE_INT, LONG_INT, TWO_INT, SHORT_INT, TWO_FLOAT, TWO_DOUBLE, NO_ELEMENT = -1
};

/* Returns the number of the element of this size among those of 1, 2, 4 and 8 bytes. */
static int sized(int first, size_t size)
{
    return 1 == size ? first : 2 == size ? first + 1 : 4 == size ? first + 2 : 8 == size ? first + 3 : NO_ELEMENT;
}

static int floating(size_t size)
{
    return 2 == size ? F16 : 4 == size ? F32 : 8 == size ? F64 : NO_ELEMENT;
}

static int complex(size_t size)
{
    return 8 == size ? COMPLEX32 : 16 == size ? COMPLEX64 : NO_ELEMENT;
}

static bool is_one_of(const ompi_datatype_t *datatype, const MPI_Datatype *list)
{
    for (; MPI_DATATYPE_NULL != *list; list++) {
        if (datatype == *list) {
            return true;
        }
    }
    return false;
}

static int element_of(ompi_datatype_t *datatype)
{
    static const MPI_Datatype integers[] = {
        MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_SHORT, MPI_SIGNED_CHAR, MPI_INT8_T, MPI_INT16_T, MPI_INT32_T,
        MPI_INT64_T, MPI_AINT, MPI_OFFSET, MPI_COUNT, MPI_INTEGER, MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4,
        MPI_INTEGER8, MPI_LOGICAL, MPI_DATATYPE_NULL,
    };
    static const MPI_Datatype naturals[] = {
        MPI_UNSIGNED, MPI_UNSIGNED_LONG, MPI_UNSIGNED_LONG_LONG, MPI_UNSIGNED_SHORT, MPI_UNSIGNED_CHAR, MPI_UINT8_T,
        MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T, MPI_BYTE, MPI_C_BOOL, MPI_CXX_BOOL, MPI_DATATYPE_NULL,
    };
    static const MPI_Datatype floats[] = {
        MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_DOUBLE_PRECISION, MPI_REAL4, MPI_REAL8,
#ifdef MPIX_C_FLOAT16
        MPIX_C_FLOAT16,
#endif
        MPI_DATATYPE_NULL,
    };
    static const MPI_Datatype complexes[] = {
        MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_COMPLEX, MPI_DOUBLE_COMPLEX, MPI_COMPLEX8, MPI_COMPLEX16,
        MPI_CXX_FLOAT_COMPLEX, MPI_CXX_DOUBLE_COMPLEX, MPI_DATATYPE_NULL,
    };
    static const struct {
        MPI_Datatype datatype;
        int element;
        ptrdiff_t extent;
    } pairs[] = {
        {MPI_FLOAT_INT, FLOAT_INT, 8}, {MPI_DOUBLE_INT, DOUBLE_INT, 16}, {MPI_LONG_INT, LONG_INT, 16},
        {MPI_2INT, TWO_INT, 8}, {MPI_SHORT_INT, SHORT_INT, 8}, {MPI_2INTEGER, TWO_INT, 8},
        {MPI_2REAL, TWO_FLOAT, 8}, {MPI_2DOUBLE_PRECISION, TWO_DOUBLE, 16},
    };
    size_t size = datatype->super.size;
    ptrdiff_t extent = datatype->super.ub - datatype->super.lb;

    if (!ompi_datatype_is_predefined(datatype)) {
        return NO_ELEMENT;
    }
    if (is_one_of(datatype, floats)) {
        return floating(size);
    }
    if (is_one_of(datatype, integers)) {
        return sized(I8, size);
    }
    if (is_one_of(datatype, naturals)) {
        return sized(U8, size);
    }
    if (is_one_of(datatype, complexes)) {
        return complex(size);
    }
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (datatype == pairs[i].datatype && extent == pairs[i].extent && 0 == datatype->super.lb) {
            return pairs[i].element;
        }
    }
    return NO_ELEMENT;
}

static int operation_of(const ompi_op_t *op)
{
    static const struct {
        MPI_Op op;
        int operation;
    } operations[] = {
        {MPI_SUM, 0}, {MPI_PROD, 1}, {MPI_MIN, 2}, {MPI_MAX, 3}, {MPI_LAND, 4}, {MPI_LOR, 5}, {MPI_LXOR, 6},
        {MPI_BAND, 7}, {MPI_BOR, 8}, {MPI_BXOR, 9}, {MPI_MINLOC, 10}, {MPI_MAXLOC, 11},
    };
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (op == operations[i].op) {
            return operations[i].operation;
        }
    }
    return -1;
}

bool cableway_reduces(ompi_op_t *op, ompi_datatype_t *datatype, int *operation, int *element)
{
    *operation = operation_of(op);
    *element = *operation >= 0 ? element_of(datatype) : NO_ELEMENT;
    /* MPI_2INTEGER may be twice 8 bytes. */
    return NO_ELEMENT != *element && cableway_reduction_defined(*operation, *element);
}
