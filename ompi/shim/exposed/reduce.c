/* Reductions of packed elements by Open MPI's own functions, in host memory. So a window has every operation and type that
 * MPI allows, also those that kernels do not know. */
#include "exposed.h"

#include "../collectives/described.h"

/* Returns the predefined type of a Fortran handle, or NULL. */
static ompi_datatype_t *element_of(uint32_t handle)
{
    ompi_datatype_t *type = handle <= INT32_MAX ? (ompi_datatype_t *) PMPI_Type_f2c((MPI_Fint) handle) : NULL;
    const bool usable = NULL != type && MPI_DATATYPE_NULL != type && ompi_datatype_is_predefined(type)
                        && type->id >= 0 && type->id < OMPI_DATATYPE_MAX_PREDEFINED;
    return usable ? type : NULL;
}

/* Returns the operation of a Fortran handle if it combines such elements, else NULL. */
static ompi_op_t *operation_of(uint32_t handle, const ompi_datatype_t *element)
{
    ompi_op_t *op = handle <= INT32_MAX ? (ompi_op_t *) PMPI_Op_f2c((MPI_Fint) handle) : NULL;
    int at = NULL != element ? ompi_op_ddt_map[element->id] : -1;
    /* Those of the program are different in each process. */
    if (NULL == op || MPI_OP_NULL == op || !ompi_op_is_intrinsic(op) || at < 0
        || op == &ompi_mpi_op_replace.op || op == &ompi_mpi_op_no_op.op) {
        return NULL;
    }
    return NULL != op->o_func.intrinsic.fns[at] ? op : NULL;
}

static size_t extent_of(const ompi_datatype_t *type)
{
    return (size_t) (type->super.ub - type->super.lb);
}

/* Of the predefined types, those of a value and an int may have gaps, before and after the int. */
enum { INDEX = sizeof(int), WIDEST = 64, AT_A_TIME = 256 };

static bool has_gaps(const ompi_datatype_t *type)
{
    return type->super.size != extent_of(type);
}

size_t shim_window_element_size(uint32_t operation, uint32_t element)
{
    const ompi_datatype_t *type = element_of(element);
    if (NULL == type || NULL == operation_of(operation, type)) {
        return 0;
    }
    if (has_gaps(type) && (type->super.size <= INDEX || extent_of(type) > WIDEST || 0 != type->super.lb)) {
        return 0;
    }
    return type->super.size;
}

bool shim_window_kernel(uint32_t operation, uint32_t element, int *of_kernel, int *element_of_kernel)
{
    ompi_datatype_t *type = element_of(element);
    ompi_op_t *op = operation_of(operation, type);
    return NULL != op && !has_gaps(type) && cableway_reduces(op, type, of_kernel, element_of_kernel);
}

static void copy_pair(unsigned char *to, size_t index_to, const unsigned char *from, size_t index_from, size_t value)
{
    memcpy(to, from, value);
    memcpy(to + index_to, from + index_from, INDEX);
}

/* Spreads packed pairs to C structures, combines these, and packs the results. */
static void reduce_pairs(ompi_op_t *op, ompi_datatype_t *type, unsigned char *into, const unsigned char *from,
                         size_t count)
{
    _Alignas(16) unsigned char result[AT_A_TIME * WIDEST], other[AT_A_TIME * WIDEST];
    const size_t size = type->super.size, extent = extent_of(type), value = size - INDEX;
    const size_t index = (value + INDEX - 1) / INDEX * INDEX;
    while (count > 0) {
        const size_t now = count < AT_A_TIME ? count : AT_A_TIME;
        for (size_t i = 0; i < now; i++) {
            copy_pair(result + i * extent, index, into + i * size, value, value);
            copy_pair(other + i * extent, index, from + i * size, value, value);
        }
        ompi_op_reduce(op, other, result, now, type);
        for (size_t i = 0; i < now; i++) {
            copy_pair(into + i * size, value, result + i * extent, index, value);
        }
        into += now * size;
        from += now * size;
        count -= now;
    }
}

bool shim_window_reduce(uint32_t operation, uint32_t element, void *into, const void *from, size_t count)
{
    ompi_datatype_t *type = element_of(element);
    ompi_op_t *op = operation_of(operation, type);
    if (NULL == op || 0 == shim_window_element_size(operation, element)) {
        return false;
    }
    if (has_gaps(type)) {
        reduce_pairs(op, type, into, from, count);
    } else {
        ompi_op_reduce(op, (void *) from, into, count, type);
    }
    return true;
}
