/* Functions of the PML module that only Open MPI calls. shim.h declares those that the shim calls as well. */
#ifndef CABLEWAY_MODULE_H
#define CABLEWAY_MODULE_H

#include "shim.h"

int cableway_pml_isend_init(const void *address, size_t count, ompi_datatype_t *datatype, int dest, int tag,
                            mca_pml_base_send_mode_t mode, ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_irecv_init(void *address, size_t count, ompi_datatype_t *datatype, int source, int tag,
                            ompi_communicator_t *communicator, ompi_request_t **out);
int cableway_pml_iprobe(int source, int tag, ompi_communicator_t *communicator, int *found,
                        ompi_status_public_t *status);
int cableway_pml_probe(int source, int tag, ompi_communicator_t *communicator, ompi_status_public_t *status);
int cableway_pml_improbe(int source, int tag, ompi_communicator_t *communicator, int *found,
                         ompi_message_t **message, ompi_status_public_t *status);
int cableway_pml_mprobe(int source, int tag, ompi_communicator_t *communicator, ompi_message_t **message,
                        ompi_status_public_t *status);
int cableway_pml_imrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                        ompi_request_t **out);
int cableway_pml_mrecv(void *address, size_t count, ompi_datatype_t *datatype, ompi_message_t **message,
                       ompi_status_public_t *status);

static inline enum cableway_mode cableway_mode_of(mca_pml_base_send_mode_t mode)
{
    return MCA_PML_BASE_SEND_SYNCHRONOUS == mode ? CABLEWAY_SYNCHRONOUS
           : MCA_PML_BASE_SEND_READY == mode     ? CABLEWAY_READY
                                                 : CABLEWAY_STANDARD;
}

#endif
