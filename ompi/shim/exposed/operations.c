/* The operations on windows in device memory. */
#include "exposed.h"

#define TARGET int target, ptrdiff_t at, int target_count, ompi_datatype_t *target_type
#define TARGET_ARGUMENTS target, at, target_count, target_type

/* An operation, and the error of its description. */
struct described {
    struct cableway_window_access access;
    int rc;
};

static void describe(struct described *described, struct cableway_buffer *out, const void *address, int count,
                     ompi_datatype_t *type)
{
    int rc = cableway_describe(out, address, (size_t) count, type);
    described->rc = OMPI_SUCCESS == described->rc ? rc : described->rc;
}

static struct described to_target(int change, TARGET)
{
    struct described described = {
        .access = {.change = change, .target = (uint32_t) target, .displacement = at},
        .rc = OMPI_SUCCESS,
    };
    describe(&described, &described.access.reach, NULL, target_count, target_type);
    return described;
}

/* Names the operation and the type of the elements by their Fortran handles. */
static void combine(struct described *described, ompi_datatype_t *target_type, const struct ompi_op_t *op)
{
    ompi_datatype_t *element;
    if (op == &ompi_mpi_op_replace.op) {
        described->access.combine = CABLEWAY_COMBINE_REPLACE;
        return;
    }
    if (op == &ompi_mpi_op_no_op.op) {
        described->access.combine = CABLEWAY_COMBINE_KEEP;
        return;
    }
    element = ompi_datatype_is_predefined(target_type) ? target_type
                                                       : ompi_datatype_get_single_predefined_type_from_args(target_type);
    described->access.combine = CABLEWAY_COMBINE_REDUCE;
    if (NULL != element) {
        described->access.operation = (uint32_t) op->o_f_to_c_index;
        described->access.element = (uint32_t) element->d_f_to_c_index;
    }
    if (NULL == element
        || 0 == shim_window_element_size(described->access.operation, described->access.element)) {
        described->rc = OMPI_SUCCESS == described->rc ? MPI_ERR_OP : described->rc;
    }
}

/* Starts an operation. Sets *request if `request` is not NULL. */
static int start(const struct described *described, ompi_win_t *win, ompi_request_t **request)
{
    ompi_request_t *owner = NULL;
    int rc = described->rc;
    if (OMPI_SUCCESS != rc) {
        return rc;
    }
    if (NULL != request) {
        owner = cableway_exposed_request(win);
        if (NULL == owner) {
            return OMPI_ERR_OUT_OF_RESOURCE;
        }
    }
    rc = cableway_exposed_error(cableway_exposed_start(cableway_exposed_of(win)->window, &described->access, owner));
    if (NULL != request) {
        if (OMPI_SUCCESS == rc) {
            *request = owner;
        } else {
            cableway_exposed_request_discard(owner);
        }
    }
    return rc;
}

static int rput(const void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win,
                ompi_request_t **request)
{
    struct described described = to_target(CABLEWAY_PUT, TARGET_ARGUMENTS);
    describe(&described, &described.access.origin, origin, count, type);
    return start(&described, win, request);
}

static int put(const void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win)
{
    return rput(origin, count, type, TARGET_ARGUMENTS, win, NULL);
}

static int rget(void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win, ompi_request_t **request)
{
    struct described described = to_target(CABLEWAY_GET, TARGET_ARGUMENTS);
    describe(&described, &described.access.result, origin, count, type);
    return start(&described, win, request);
}

static int get(void *origin, int count, ompi_datatype_t *type, TARGET, ompi_win_t *win)
{
    return rget(origin, count, type, TARGET_ARGUMENTS, win, NULL);
}

static int raccumulate(const void *origin, int count, ompi_datatype_t *type, TARGET, struct ompi_op_t *op,
                       ompi_win_t *win, ompi_request_t **request)
{
    struct described described = to_target(CABLEWAY_ACCUMULATE, TARGET_ARGUMENTS);
    combine(&described, target_type, op);
    describe(&described, &described.access.origin, origin, count, type);
    return start(&described, win, request);
}

static int accumulate(const void *origin, int count, ompi_datatype_t *type, TARGET, struct ompi_op_t *op,
                      ompi_win_t *win)
{
    return raccumulate(origin, count, type, TARGET_ARGUMENTS, op, win, NULL);
}

static int rget_accumulate(const void *origin, int count, ompi_datatype_t *type, void *result, int result_count,
                           ompi_datatype_t *result_type, TARGET, struct ompi_op_t *op, ompi_win_t *win,
                           ompi_request_t **request)
{
    struct described described = to_target(CABLEWAY_GET_ACCUMULATE, TARGET_ARGUMENTS);
    combine(&described, target_type, op);
    if (CABLEWAY_COMBINE_KEEP != described.access.combine) {
        describe(&described, &described.access.origin, origin, count, type);
    }
    describe(&described, &described.access.result, result, result_count, result_type);
    return start(&described, win, request);
}

static int get_accumulate(const void *origin, int count, ompi_datatype_t *type, void *result, int result_count,
                          ompi_datatype_t *result_type, TARGET, struct ompi_op_t *op, ompi_win_t *win)
{
    return rget_accumulate(origin, count, type, result, result_count, result_type, TARGET_ARGUMENTS, op, win, NULL);
}

static int fetch_and_op(const void *origin, void *result, ompi_datatype_t *type, int target, ptrdiff_t at,
                        struct ompi_op_t *op, ompi_win_t *win)
{
    return get_accumulate(origin, 1, type, result, 1, type, target, at, 1, type, op, win);
}

static int compare_and_swap(const void *origin, const void *compare, void *result, ompi_datatype_t *type, int target,
                            ptrdiff_t at, ompi_win_t *win)
{
    struct described described = to_target(CABLEWAY_COMPARE_SWAP, target, at, 1, type);
    describe(&described, &described.access.origin, origin, 1, type);
    describe(&described, &described.access.expected, compare, 1, type);
    describe(&described, &described.access.result, result, 1, type);
    return start(&described, win, NULL);
}

void cableway_exposed_operations(ompi_osc_base_module_t *table)
{
    table->osc_put = put;
    table->osc_get = get;
    table->osc_accumulate = accumulate;
    table->osc_compare_and_swap = compare_and_swap;
    table->osc_fetch_and_op = fetch_and_op;
    table->osc_get_accumulate = get_accumulate;
    table->osc_rput = rput;
    table->osc_rget = rget;
    table->osc_raccumulate = raccumulate;
    table->osc_rget_accumulate = rget_accumulate;
}
