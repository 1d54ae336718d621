/* Describes calls, and gives them to the one who performs them. */
#include "call.h"

#include <stdlib.h>

bool call_begin(struct call *call, int kind, MPI_Comm comm)
{
    struct members *members = cableway_active ? members_of(comm) : NULL;
    if (NULL == members) {
        return false;
    }
    members->calls++;
    if (NULL == members->group && members->calls != members->look && !cableway_present()) {
        return false;
    }
    *call = (struct call){.members = members};
    call->described.kind = kind;
    call->described.operation = call->described.element = -1;
    call->described.send.read = call->described.receive.written = true;
    return true;
}

bool call_root(struct call *call, int root)
{
    call->described.root = root;
    if (call->members->inter) {
        return MPI_ROOT == root;
    }
    call->wrong |= 0 > root || call->members->size <= root;
    return call->members->rank == root;
}

bool call_takes_part(const struct call *call, int root)
{
    return !call->members->inter || 0 <= root;
}

static void one_part(struct call *call, struct cableway_side *side, struct cableway_memory *memory, const void *buffer,
                     int count, MPI_Datatype type)
{
    call->wrong |= !types_describe(memory, buffer, count, type);
    side->parts = memory;
    side->count = 1;
}

void call_send(struct call *call, const void *buffer, int count, MPI_Datatype type)
{
    call->send = buffer;
    if (MPI_IN_PLACE == buffer) {
        call->described.in_place = call->described.receive.read = true;
    } else {
        one_part(call, &call->described.send, &call->single[0], buffer, count, type);
    }
}

void call_receive(struct call *call, void *buffer, int count, MPI_Datatype type)
{
    call->receive = buffer;
    if (MPI_IN_PLACE == buffer) {
        call->described.in_place = true;
    } else {
        one_part(call, &call->described.receive, &call->single[1], buffer, count, type);
    }
}

static void parts(struct call *call, struct cableway_side *side, const void *buffer, const int *counts, const int *places,
                  int count, MPI_Datatype type, const MPI_Datatype *types)
{
    const size_t size = (size_t) call->members->size;
    MPI_Aint lower, extent = 1;
    side->parts = malloc(sizeof *side->parts * size);
    if (NULL == side->parts) {
        PMPI_Abort(call->members->comm, MPI_ERR_NO_MEM);
        return;
    }
    if (NULL == types) {
        if (MPI_DATATYPE_NULL == type) {
            call->wrong = true;
        } else {
            PMPI_Type_get_extent(type, &lower, &extent);
        }
    }
    for (size_t i = 0; i < size; i++) {
        const MPI_Aint place = NULL != places ? places[i] : (MPI_Aint) i * count;
        const char *address = (const char *) buffer + place * extent;
        call->wrong |= !types_describe(&side->parts[i], address, NULL != counts ? counts[i] : count,
                                       NULL != types ? types[i] : type);
    }
    side->count = size;
}

void call_send_parts(struct call *call, const void *buffer, const int *counts, const int *places, int count,
                     MPI_Datatype type, const MPI_Datatype *types)
{
    call->send = buffer;
    if (MPI_IN_PLACE == buffer) {
        call->described.in_place = call->described.receive.read = true;
    } else {
        parts(call, &call->described.send, buffer, counts, places, count, type, types);
    }
}

void call_receive_parts(struct call *call, void *buffer, const int *counts, const int *places, int count,
                        MPI_Datatype type, const MPI_Datatype *types)
{
    call->receive = buffer;
    parts(call, &call->described.receive, buffer, counts, places, count, type, types);
}

void call_operands(struct call *call, const void *send, void *receive, long inputs, long outputs, MPI_Datatype type,
                   MPI_Op op)
{
    struct cableway_call *described = &call->described;
    call->send = send;
    call->receive = receive;
    call->wrong |= 0 > inputs || INT32_MAX < inputs || INT32_MAX < outputs || MPI_OP_NULL == op;
    if (call->wrong) {
        return;
    }
    if (MPI_IN_PLACE == send) {
        /* The input of a reduce-scatter is longer than what this member gets. */
        described->in_place = described->receive.read = true;
        one_part(call, &described->receive, &call->single[1], receive, (int) inputs, type);
    } else {
        one_part(call, &described->send, &call->single[0], send, (int) inputs, type);
        if (0 <= outputs) {
            one_part(call, &described->receive, &call->single[1], receive, (int) outputs, type);
        }
    }
    described->elements = (uint64_t) inputs;
    described->input = send;
    described->output = receive;
    if (!types_reduce(op, type, &described->operation, &described->element)) {
        described->operation = described->element = -1;
    }
}

uint64_t call_bytes(int count, MPI_Datatype type)
{
    int size = 0;
    if (0 < count && MPI_DATATYPE_NULL != type) {
        PMPI_Type_size(type, &size);
    }
    return 0 < size ? (uint64_t) count * (uint64_t) size : 0;
}

static void discard(struct call *call)
{
    if (call->described.send.parts != &call->single[0]) {
        free(call->described.send.parts);
    }
    if (call->described.receive.parts != &call->single[1]) {
        free(call->described.receive.parts);
    }
}

/* Has the program's error handler see an error. Returns its code. */
static int failed(const struct call *call, int code)
{
    const int class = CABLEWAY_NO_MEMORY == code ? MPI_ERR_NO_MEM : MPI_ERR_INTERN;
    PMPI_Comm_call_errhandler(call->members->comm, class);
    return class;
}

/* Returns whether all members give this call to Cableway: they decide by what is the same on all of them. */
static bool is_cableways(const struct call *call, uint64_t bytes)
{
    const struct members *members = call->members;
    const struct cableway_call *described = &call->described;
    const bool reduces = ALLREDUCE <= described->kind;
    return NULL != members->group && (!reduces || 0 <= described->operation) &&
           (!members->shared || cableway_shared_limit() <= bytes);
}

bool call_performed(struct call *call, uint64_t bytes)
{
    struct members *members = call->members;
    struct cableway_call *described = &call->described;
    const struct cableway_side *const sides[2] = {&described->send, &described->receive};
    void *bases[2] = {(void *) (uintptr_t) call->send, call->receive};
    if (0 == members->device && !call->wrong) {
        const uint64_t device = cableway_device_of(sides[1]);
        members->device = 0 != device ? device : cableway_device_of(sides[0]);
    }
    if (members->calls == members->look) {
        members_look(members);
    }
    if (call->wrong) {
        return false;
    }
    if (is_cableways(call, bytes)) {
        const int code = cableway_run(members->group, described);
        discard(call);
        call->code = CABLEWAY_OK == code ? MPI_SUCCESS : failed(call, code);
        return true;
    }
    const int code = 0 != members->device ? cableway_stage(&call->copies, sides, bases) : CABLEWAY_OK;
    if (CABLEWAY_OK != code) {
        discard(call);
        call->code = failed(call, code);
        return true;
    }
    call->send = bases[0];
    call->receive = bases[1];
    return false;
}

int call_end(struct call *call, int code)
{
    if (NULL != call->copies) {
        const int unstaged = cableway_unstage(call->copies, MPI_SUCCESS != code);
        if (MPI_SUCCESS == code && CABLEWAY_OK != unstaged) {
            code = failed(call, unstaged);
        }
    }
    discard(call);
    return code;
}
