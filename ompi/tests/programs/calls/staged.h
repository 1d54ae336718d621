/* Counts calls that Open MPI's own modules perform on host copies of device memory. */
#ifndef STAGED_H
#define STAGED_H

#include "calls.h"

static MPI_T_pvar_session session;
static MPI_T_pvar_handle host_copies_handle;

static void open_counter(void)
{
    int provided, variables, count;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    MPI_T_pvar_session_create(&session);
    MPI_T_pvar_get_num(&variables);
    for (int i = 0; i < variables; i++) {
        char name[256], help[1024];
        int name_length = sizeof name, help_length = sizeof help, verbosity, class, bind, read_only, continuous, atomic;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_SUCCESS
                == MPI_T_pvar_get_info(i, name, &name_length, &verbosity, &class, &type, &values, help, &help_length,
                                       &bind, &read_only, &continuous, &atomic)
            && 0 == strcmp(name, "pml_cableway_calls_on_host_copies")) {
            CHECK_EQUAL(MPI_T_pvar_handle_alloc(session, i, NULL, &host_copies_handle, &count), MPI_SUCCESS);
            return;
        }
    }
    fprintf(stderr, "there is no counter of calls on host copies\n");
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static unsigned long long host_copies(void)
{
    unsigned long long value = 0;
    CHECK_EQUAL(MPI_T_pvar_read(session, host_copies_handle, &value), MPI_SUCCESS);
    return value;
}

#endif
