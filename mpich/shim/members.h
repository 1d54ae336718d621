/* The members of a communicator, and what they have agreed on. */
#ifndef CABLEWAY_MEMBERS_H
#define CABLEWAY_MEMBERS_H

#include "shim.h"

struct members {
    MPI_Comm comm;
    bool inter;
    int rank, size;         /* size: of the other group of an intercommunicator */
    int local_size;
    unsigned long calls;    /* collective calls that this member has begun */
    unsigned long look;     /* the number of the next call before which the members combine what they know; 0: none */
    MPI_Request request;    /* of the exchange under way */
    int mine, any;          /* its operand and its result: whether this member, or any, has passed device memory */
    uint64_t device;        /* a number that stands for the device whose memory this member has passed first */
    void *group;            /* NULL until Cableway performs the calls */
    bool shared;            /* two members have the same device */
    struct members *next, **link; /* in the list of all */
};

/* Whether device memory may appear in any process of the job. Without it every call goes to MPI. */
extern bool cableway_active;

/* Sets up the job, when MPI runs. */
void members_begin(void);
/* Ends exchanges under way, and the engine. */
void members_end(void);
/* Returns the members of a communicator, or NULL. */
struct members *members_of(MPI_Comm comm);
/* Ends the exchange of a communicator that the program is about to free. */
void members_settle(MPI_Comm comm);
/* Combines what the members know, before the call with the number `look`. */
void members_look(struct members *members);

#endif
