/* Collectives that reduce data. */
#include "call.h"
#include "entries.h"

int shim_allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, ALLREDUCE, comm)) {
        return PMPI_Allreduce(send, receive, count, type, op, comm);
    }
    call_operands(&call, send, receive, count, count, type, op);
    if (call_performed(&call, call_bytes(count, type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Allreduce(call.send, call.receive, count, type, op, comm));
}

int shim_reduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, REDUCE, comm)) {
        return PMPI_Reduce(send, receive, count, type, op, root, comm);
    }
    const bool gets = call_root(&call, root);
    call.send = send, call.receive = receive;
    if (call.members->inter && gets) {
        call_receive(&call, receive, count, type);
    } else if (call_takes_part(&call, root)) {
        call_operands(&call, send, receive, count, gets ? count : -1, type, op);
    }
    if (call_performed(&call, call_bytes(count, type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Reduce(call.send, call.receive, count, type, op, root, comm));
}

int shim_reduce_scatter(const void *send, void *receive, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    long sum = 0;
    if (!call_begin(&call, REDUCE_SCATTER, comm)) {
        return PMPI_Reduce_scatter(send, receive, counts, type, op, comm);
    }
    for (int i = 0; i < call.members->local_size; i++) {
        call.wrong |= 0 > counts[i];
        sum += counts[i];
    }
    call_operands(&call, send, receive, sum, counts[call.members->rank], type, op);
    call.described.counts = counts;
    call.described.ranks = (size_t) call.members->local_size;
    if (call_performed(&call, INT32_MAX >= sum ? call_bytes((int) sum, type) : UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Reduce_scatter(call.send, call.receive, counts, type, op, comm));
}

int shim_reduce_scatter_block(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, REDUCE_SCATTER, comm)) {
        return PMPI_Reduce_scatter_block(send, receive, count, type, op, comm);
    }
    const long sum = (long) count * call.members->local_size;
    call_operands(&call, send, receive, sum, count, type, op);
    call.described.counts = &count;
    call.described.ranks = 1;
    if (call_performed(&call, INT32_MAX >= sum ? call_bytes((int) sum, type) : UNEQUAL)) {
        return call.code;
    }
    return call_end(&call, PMPI_Reduce_scatter_block(call.send, call.receive, count, type, op, comm));
}

int shim_scan(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, SCAN, comm)) {
        return PMPI_Scan(send, receive, count, type, op, comm);
    }
    call_operands(&call, send, receive, count, count, type, op);
    if (call_performed(&call, call_bytes(count, type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Scan(call.send, call.receive, count, type, op, comm));
}

int shim_exscan(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    struct call call;
    if (!call_begin(&call, EXCLUSIVE_SCAN, comm)) {
        return PMPI_Exscan(send, receive, count, type, op, comm);
    }
    call_operands(&call, send, receive, count, count, type, op);
    /* Rank 0 gets nothing, so that its buffer must keep what it holds. */
    call.described.receive.read |= 0 == call.members->rank;
    if (call_performed(&call, call_bytes(count, type))) {
        return call.code;
    }
    return call_end(&call, PMPI_Exscan(call.send, call.receive, count, type, op, comm));
}
