/* Collectives that move data. */
#include "call.h"
#include "entries.h"

int shim_bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, BROADCAST, comm)) {
        return PMPI_Bcast(buffer, count, type, root, comm);
    }
    const bool sends = call_root(&call, root);
    call.receive = buffer;
    if (sends || call_takes_part(&call, root)) {
        call_receive(&call, buffer, count, type);
    }
    call.described.receive.read = sends;
    call.described.receive.written = !sends;
    if (call_performed(&call, call_bytes(count, type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Bcast(call.receive, count, type, root, comm));
}

int shim_gather(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                MPI_Datatype receive_type, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, GATHER, comm)) {
        return PMPI_Gather(send, send_count, send_type, receive, receive_count, receive_type, root, comm);
    }
    const bool receives = call_root(&call, root);
    call.send = send, call.receive = receive;
    if (call_takes_part(&call, root)) {
        call_send(&call, send, send_count, send_type);
    }
    if (receives) {
        call_receive_parts(&call, receive, NULL, NULL, receive_count, receive_type, NULL);
    }
    /* What the root gets from one member, and what each member sends. */
    if (call_performed(&call, receives ? call_bytes(receive_count, receive_type) : call_bytes(send_count, send_type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Gather(call.send, send_count, send_type, call.receive, receive_count, receive_type, root,
                                       comm));
}

int shim_gatherv(const void *send, int send_count, MPI_Datatype send_type, void *receive, const int counts[],
                 const int places[], MPI_Datatype receive_type, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, GATHER, comm)) {
        return PMPI_Gatherv(send, send_count, send_type, receive, counts, places, receive_type, root, comm);
    }
    const bool receives = call_root(&call, root);
    call.send = send, call.receive = receive;
    if (call_takes_part(&call, root)) {
        call_send(&call, send, send_count, send_type);
    }
    if (receives) {
        call_receive_parts(&call, receive, counts, places, 0, receive_type, NULL);
    }
    if (call_performed(&call, UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Gatherv(call.send, send_count, send_type, call.receive, counts, places, receive_type,
                                        root, comm));
}

int shim_scatter(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                 MPI_Datatype receive_type, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, SCATTER, comm)) {
        return PMPI_Scatter(send, send_count, send_type, receive, receive_count, receive_type, root, comm);
    }
    const bool sends = call_root(&call, root);
    call.send = send, call.receive = receive;
    if (sends) {
        call_send_parts(&call, send, NULL, NULL, send_count, send_type, NULL);
    }
    if (call_takes_part(&call, root)) {
        call_receive(&call, receive, receive_count, receive_type);
    }
    if (call_performed(&call, sends ? call_bytes(send_count, send_type) : call_bytes(receive_count, receive_type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Scatter(call.send, send_count, send_type, call.receive, receive_count, receive_type, root,
                                        comm));
}

int shim_scatterv(const void *send, const int counts[], const int places[], MPI_Datatype send_type, void *receive,
                  int receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, SCATTER, comm)) {
        return PMPI_Scatterv(send, counts, places, send_type, receive, receive_count, receive_type, root, comm);
    }
    call.send = send, call.receive = receive;
    if (call_root(&call, root)) {
        call_send_parts(&call, send, counts, places, 0, send_type, NULL);
    }
    if (call_takes_part(&call, root)) {
        call_receive(&call, receive, receive_count, receive_type);
    }
    if (call_performed(&call, UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Scatterv(call.send, counts, places, send_type, call.receive, receive_count, receive_type,
                                         root, comm));
}

int shim_allgather(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                   MPI_Datatype receive_type, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLGATHER, comm)) {
        return PMPI_Allgather(send, send_count, send_type, receive, receive_count, receive_type, comm);
    }
    call_send(&call, send, send_count, send_type);
    call_receive_parts(&call, receive, NULL, NULL, receive_count, receive_type, NULL);
    if (call_performed(&call, call_bytes(receive_count, receive_type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Allgather(call.send, send_count, send_type, call.receive, receive_count, receive_type,
                                          comm));
}

int shim_allgatherv(const void *send, int send_count, MPI_Datatype send_type, void *receive, const int counts[],
                    const int places[], MPI_Datatype receive_type, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLGATHER, comm)) {
        return PMPI_Allgatherv(send, send_count, send_type, receive, counts, places, receive_type, comm);
    }
    call_send(&call, send, send_count, send_type);
    call_receive_parts(&call, receive, counts, places, 0, receive_type, NULL);
    if (call_performed(&call, UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Allgatherv(call.send, send_count, send_type, call.receive, counts, places, receive_type,
                                           comm));
}

int shim_alltoall(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLTOALL, comm)) {
        return PMPI_Alltoall(send, send_count, send_type, receive, receive_count, receive_type, comm);
    }
    call_send_parts(&call, send, NULL, NULL, send_count, send_type, NULL);
    call_receive_parts(&call, receive, NULL, NULL, receive_count, receive_type, NULL);
    if (call_performed(&call, call_bytes(receive_count, receive_type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Alltoall(call.send, send_count, send_type, call.receive, receive_count, receive_type,
                                         comm));
}

int shim_alltoallv(const void *send, const int send_counts[], const int send_places[], MPI_Datatype send_type,
                   void *receive, const int counts[], const int places[], MPI_Datatype receive_type, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLTOALL, comm)) {
        return PMPI_Alltoallv(send, send_counts, send_places, send_type, receive, counts, places, receive_type, comm);
    }
    call_send_parts(&call, send, send_counts, send_places, 0, send_type, NULL);
    call_receive_parts(&call, receive, counts, places, 0, receive_type, NULL);
    if (call_performed(&call, UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Alltoallv(call.send, send_counts, send_places, send_type, call.receive, counts, places,
                                          receive_type, comm));
}

int shim_alltoallw(const void *send, const int send_counts[], const int send_places[], const MPI_Datatype send_types[],
                   void *receive, const int counts[], const int places[], const MPI_Datatype receive_types[],
                   MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLTOALL, comm)) {
        return PMPI_Alltoallw(send, send_counts, send_places, send_types, receive, counts, places, receive_types, comm);
    }
    call_send_parts(&call, send, send_counts, send_places, 0, MPI_DATATYPE_NULL, send_types);
    call_receive_parts(&call, receive, counts, places, 0, MPI_DATATYPE_NULL, receive_types);
    if (call_performed(&call, UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Alltoallw(call.send, send_counts, send_places, send_types, call.receive, counts, places,
                                          receive_types, comm));
}
