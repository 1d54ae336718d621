/* The component's counters. */
#ifndef COUNTERS_H
#define COUNTERS_H

#include "../check.h"

static MPI_T_pvar_session session;

static void open_counters(void)
{
    int provided;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    MPI_T_pvar_session_create(&session);
}

static void close_counters(void)
{
    MPI_T_pvar_session_free(&session);
    MPI_T_finalize();
}

static MPI_T_pvar_handle counter(const char *wanted)
{
    MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
    int variables, count;
    MPI_T_pvar_get_num(&variables);
    for (int i = 0; i < variables; i++) {
        char name[256], help[1024];
        int name_length = sizeof name, help_length = sizeof help, verbosity, class, bind, read_only, continuous, atomic;
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_SUCCESS
                == MPI_T_pvar_get_info(i, name, &name_length, &verbosity, &class, &type, &values, help, &help_length,
                                       &bind, &read_only, &continuous, &atomic)
            && 0 == strcmp(name, wanted)) {
            CHECK_EQUAL(MPI_T_pvar_handle_alloc(session, i, NULL, &handle, &count), MPI_SUCCESS);
        }
    }
    CHECK(MPI_T_PVAR_HANDLE_NULL != handle);
    return handle;
}

static unsigned long long read_counter(MPI_T_pvar_handle handle)
{
    unsigned long long value = 0;
    CHECK_EQUAL(MPI_T_pvar_read(session, handle, &value), MPI_SUCCESS);
    return value;
}

#endif
