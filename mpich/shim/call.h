/* A collective call on its way to the one who performs it. */
#ifndef CABLEWAY_CALL_H
#define CABLEWAY_CALL_H

#include "members.h"
#include "types.h"

/* Used as
 *
 *     struct call call;
 *     if (!call_begin(&call, BROADCAST, comm)) {
 *         return PMPI_Bcast(...);
 *     }
 *     describe both sides by the functions below
 *     if (call_performed(&call, bytes)) {
 *         return call.code;
 *     }
 *     return call_end(&call, PMPI_Bcast(... call.send, call.receive ...));
 */
struct call {
    const void *send;   /* for MPI: the program's addresses, or those of host copies */
    void *receive;
    struct members *members;
    struct cableway_call described;
    struct cableway_memory single[2]; /* parts of sides that have one */
    void *copies;
    bool wrong;         /* MPI refuses the arguments */
    int code;           /* of a call that was performed */
};

/* A size that is not the same on all members. */
#define UNEQUAL UINT64_MAX

/* Counts the call. Returns false if MPI performs it, and no buffer is on a device. */
bool call_begin(struct call *call, int kind, MPI_Comm comm);
/* Says that the root of a call is this one. Returns whether this member is the root. */
bool call_root(struct call *call, int root);
/* Returns whether this member's arguments count: in an intercommunicator, those of the root's group do not. */
bool call_takes_part(const struct call *call, int root);

/* The parts of the sides: one, or one for each member. `places` of elements, or NULL for parts of equal length. A type
 * for each part belongs to places in bytes. */
void call_send(struct call *call, const void *buffer, int count, MPI_Datatype type);
void call_receive(struct call *call, void *buffer, int count, MPI_Datatype type);
void call_send_parts(struct call *call, const void *buffer, const int *counts, const int *places, int count,
                     MPI_Datatype type, const MPI_Datatype *types);
void call_receive_parts(struct call *call, void *buffer, const int *counts, const int *places, int count,
                        MPI_Datatype type, const MPI_Datatype *types);
/* The operands of a reduction of `inputs` elements, of which this member gets `outputs`: none if it is negative. */
void call_operands(struct call *call, const void *send, void *receive, long inputs, long outputs, MPI_Datatype type,
                   MPI_Op op);

/* Returns the bytes of so many elements. */
uint64_t call_bytes(int count, MPI_Datatype type);

/* Returns whether Cableway has performed the call, or failed. If it returns false, MPI performs it. `bytes` is a size that
 * is equal at all members, or UNEQUAL. */
bool call_performed(struct call *call, uint64_t bytes);
/* Ends a call that MPI has performed. Returns the code of the whole. */
int call_end(struct call *call, int code);

#endif
