/* The calls that begin and end MPI, and those that free communicators. */
#include "entries.h"
#include "members.h"

/* A communicator on which nothing arrives, and a receive on it that does not complete. To ask about it makes progress. A probe
 * would not do: among the processes of MPI_COMM_SELF it looks at messages only. */
static MPI_Comm nobody = MPI_COMM_NULL;
static MPI_Request never = MPI_REQUEST_NULL;

static int begun(int code)
{
    if (MPI_SUCCESS == code) {
        members_begin();
        if (cableway_active) {
            PMPI_Comm_dup(MPI_COMM_SELF, &nobody);
            PMPI_Irecv(NULL, 0, MPI_BYTE, 0, 0, nobody, &never);
        }
    }
    return code;
}

int shim_init(int *argc, char ***argv)
{
    return begun(PMPI_Init(argc, argv));
}

int shim_init_thread(int *argc, char ***argv, int required, int *provided)
{
    return begun(PMPI_Init_thread(argc, argv, required, provided));
}

int shim_finalize(void)
{
    members_end();
    if (MPI_COMM_NULL != nobody) {
        PMPI_Cancel(&never);
        PMPI_Wait(&never, MPI_STATUS_IGNORE);
        PMPI_Comm_free(&nobody);
    }
    return PMPI_Finalize();
}

/* Called while a member waits for others, who may wait for it in MPI. */
void shim_progress(void)
{
    int over;
    /* It reads the request only, so that several threads may ask. */
    PMPI_Request_get_status(never, &over, MPI_STATUS_IGNORE);
}

int shim_comm_free(MPI_Comm *comm)
{
    members_settle(*comm);
    return PMPI_Comm_free(comm);
}

int shim_comm_disconnect(MPI_Comm *comm)
{
    members_settle(*comm);
    return PMPI_Comm_disconnect(comm);
}
