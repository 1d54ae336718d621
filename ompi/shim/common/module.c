/* The PML module: its function table, processes and communicators. */
#include "module.h"

#include <limits.h>
#include <stdlib.h>

bool cableway_explain_enabled;

static int add_procs(ompi_proc_t **procs, size_t count)
{
    /* The architecture of a peer is checked at first contact: this function sees only some of the peers. */
    return mca_pml_base_pml_check_selected("cableway", procs, count);
}

static int del_procs(ompi_proc_t **procs, size_t count)
{
    (void) procs, (void) count;
    return OMPI_SUCCESS;
}

static int enable(bool on)
{
    if (on) {
        cableway_on_enable();
        cableway_interception_begin();
    }
    return OMPI_SUCCESS;
}

static int add_comm(ompi_communicator_t *communicator)
{
    ompi_group_t *group = communicator->c_remote_group;
    size_t size = group->grp_proc_count;
    uint64_t *names = calloc(size ? size : 1, sizeof *names);
    if (NULL == names) {
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    for (size_t i = 0; i < size; i++) {
        opal_process_name_t name = ompi_group_get_proc_name(group, (int) i);
        names[i] = (uint64_t) name.jobid << 32 | name.vpid;
    }
    communicator->c_pml_comm = cableway_communicator_add(cableway_context(communicator), names, size,
                                                         (uint32_t) communicator->c_my_rank);
    if (cableway_explain_enabled && communicator == &ompi_mpi_comm_world.comm && 0 == communicator->c_my_rank
        && size > 1) {
        cableway_explain(names[1]);
    }
    free(names);
    return NULL != communicator->c_pml_comm ? OMPI_SUCCESS : OMPI_ERROR;
}

static int del_comm(ompi_communicator_t *communicator)
{
    if (NULL != communicator->c_pml_comm) {
        cableway_communicator_remove(cableway_handle(communicator));
        communicator->c_pml_comm = NULL;
    }
    return OMPI_SUCCESS;
}

static int dump(ompi_communicator_t *communicator, int verbose)
{
    (void) verbose;
    cableway_dump(cableway_handle(communicator));
    return OMPI_SUCCESS;
}

mca_pml_base_module_t cableway_module = {
    .pml_add_procs = add_procs,
    .pml_del_procs = del_procs,
    .pml_enable = enable,
    .pml_progress = cableway_progress,
    .pml_add_comm = add_comm,
    .pml_del_comm = del_comm,
    .pml_irecv_init = cableway_pml_irecv_init,
    .pml_irecv = cableway_fast_irecv,
    .pml_recv = cableway_fast_recv,
    .pml_isend_init = cableway_pml_isend_init,
    .pml_isend = cableway_fast_isend,
    .pml_send = cableway_fast_send,
    .pml_iprobe = cableway_pml_iprobe,
    .pml_probe = cableway_pml_probe,
    .pml_start = cableway_pml_start,
    .pml_improbe = cableway_pml_improbe,
    .pml_mprobe = cableway_pml_mprobe,
    .pml_imrecv = cableway_pml_imrecv,
    .pml_mrecv = cableway_pml_mrecv,
    .pml_dump = dump,
    CABLEWAY_MODULE_FIELDS
    .pml_max_contextid = INT_MAX,
    .pml_max_tag = INT_MAX,
};
