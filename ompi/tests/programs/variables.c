/* Performance variables, read through MPI_T. */
#include "check.h"

static MPI_T_pvar_session session;

static MPI_T_pvar_handle handle_of(const char *wanted, MPI_Comm *communicator, int wanted_class)
{
    int variables, found = -1, class = 0, bind = 0, count;
    MPI_T_pvar_handle handle;
    MPI_T_pvar_get_num(&variables);
    for (int i = 0; i < variables && found < 0; i++) {
        char name[256], help[1024];
        int name_length = sizeof name, help_length = sizeof help, verbosity, read_only, continuous, atomic;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_SUCCESS
                == MPI_T_pvar_get_info(i, name, &name_length, &verbosity, &class, &type, &values, help, &help_length,
                                       &bind, &read_only, &continuous, &atomic)
            && 0 == strcmp(name, wanted)) {
            CHECK_EQUAL(class, wanted_class);
            CHECK(help[0] != '\0');
            found = i;
        }
    }
    if (found < 0) {
        fprintf(stderr, "there is no variable %s\n", wanted);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    CHECK_EQUAL(MPI_T_pvar_handle_alloc(session, found, communicator, &handle, &count), MPI_SUCCESS);
    CHECK_EQUAL(count, 1);
    return handle;
}

static unsigned queue(const char *name, MPI_Comm communicator)
{
    MPI_T_pvar_handle handle = handle_of(name, &communicator, MPI_T_PVAR_CLASS_SIZE);
    unsigned length = 4711;
    CHECK_EQUAL(MPI_T_pvar_read(session, handle, &length), MPI_SUCCESS);
    MPI_T_pvar_handle_free(session, &handle);
    return length;
}

/* Returns the count since the handle was created. */
static unsigned long long counted(MPI_T_pvar_handle handle)
{
    unsigned long long value = 0;
    CHECK_EQUAL(MPI_T_pvar_read(session, handle, &value), MPI_SUCCESS);
    return value;
}

int main(int argc, char **argv)
{
    static char bytes[1 << 20];
    MPI_Request requests[3];
    MPI_Comm world;
    MPI_T_pvar_handle eager, rendezvous, fetched, pieces, mappings, hits;
    unsigned long long before;
    int provided, rank;
    MPI_Init(&argc, &argv);
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    MPI_T_pvar_session_create(&session);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &world);

    for (int i = 0; i < 3; i++) {
        MPI_Irecv(bytes, 1, MPI_BYTE, 1 - rank, 50 + i, world, &requests[i]);
    }
    CHECK_EQUAL(queue("pml_cableway_posted_receives", world), 3);
    for (int i = 0; i < 3; i++) {
        MPI_Cancel(&requests[i]);
    }
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    CHECK_EQUAL(queue("pml_cableway_posted_receives", world), 0);

    MPI_Send(bytes, 1, MPI_BYTE, 1 - rank, 1, world);
    MPI_Send(bytes, 1, MPI_BYTE, 1 - rank, 2, world);
    MPI_Recv(bytes, 1, MPI_BYTE, 1 - rank, 2, world, MPI_STATUS_IGNORE);
    CHECK_EQUAL(queue("pml_cableway_unexpected_messages", world), 1);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Recv(bytes, 1, MPI_BYTE, 1 - rank, 1, world, MPI_STATUS_IGNORE);
    CHECK_EQUAL(queue("pml_cableway_unexpected_messages", world), 0);
    MPI_Barrier(MPI_COMM_WORLD);

    eager = handle_of("pml_cableway_bytes_eager", NULL, MPI_T_PVAR_CLASS_COUNTER);
    before = counted(eager);
    MPI_Send(bytes, 100, MPI_BYTE, 1 - rank, 4, world);
    CHECK_EQUAL(counted(eager) - before, 100);
    MPI_Recv(bytes, 100, MPI_BYTE, 1 - rank, 4, world, MPI_STATUS_IGNORE);
    /* Variables of device memory, which this program does not use. */
    mappings = handle_of("pml_cableway_ipc_mappings", NULL, MPI_T_PVAR_CLASS_COUNTER);
    hits = handle_of("pml_cableway_ipc_hits", NULL, MPI_T_PVAR_CLASS_COUNTER);
    CHECK_EQUAL(counted(mappings) + counted(hits), 0);

    rendezvous = handle_of("pml_cableway_sends_rendezvous", NULL, MPI_T_PVAR_CLASS_COUNTER);
    fetched = handle_of("pml_cableway_bytes_get", NULL, MPI_T_PVAR_CLASS_COUNTER);
    pieces = handle_of("pml_cableway_bytes_fragments", NULL, MPI_T_PVAR_CLASS_COUNTER);
    CHECK_EQUAL(counted(rendezvous), 0);
    MPI_Sendrecv_replace(bytes, sizeof bytes, MPI_BYTE, 1 - rank, 3, 1 - rank, 3, world, MPI_STATUS_IGNORE);
    MPI_Barrier(world);
    CHECK_EQUAL(counted(rendezvous), 1);
    /* Each rank counts its own operations, and either may have moved the data in both directions. */
    unsigned long long moved = counted(fetched) + counted(pieces), by_both;
    MPI_Allreduce(&moved, &by_both, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, world);
    CHECK(by_both >= 2 * sizeof bytes);
    MPI_Comm_free(&world);
    MPI_T_finalize();
    MPI_Finalize();
    return 0;
}
