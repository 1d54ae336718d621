/* A second thread reads every performance variable while the first one passes messages. MPI_T has its own thread
 * level, so this is allowed under MPI_THREAD_FUNNELED, too. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { VARIABLES = 64, ROUNDS = 2000, LONGEST = 200000, LARGE_EVERY = 64 };

static MPI_Comm pair;
static MPI_T_pvar_session session;
static atomic_int rounds;
static atomic_bool over;

struct variable {
    MPI_T_pvar_handle handle;
    unsigned long long last;
    char name[256];
    bool grows;
};
static struct variable variables[VARIABLES];
static int count;

static void find_variables(void)
{
    int all;
    MPI_T_pvar_get_num(&all);
    for (int i = 0; i < all; i++) {
        struct variable *variable = &variables[count];
        char name[256], help[1024];
        int name_length = sizeof name, help_length = sizeof help, verbosity, class, bind, read_only, continuous, atomic;
        int values;
        MPI_Datatype type;
        MPI_T_enum meanings;
        if (MPI_SUCCESS
                != MPI_T_pvar_get_info(i, name, &name_length, &verbosity, &class, &type, &meanings, help, &help_length,
                                       &bind, &read_only, &continuous, &atomic)
            || 0 != strncmp(name, "pml_cableway_", strlen("pml_cableway_"))) {
            continue;
        }
        CHECK(count < VARIABLES);
        snprintf(variable->name, sizeof variable->name, "%s", name);
        variable->grows = MPI_T_PVAR_CLASS_COUNTER == class;
        CHECK_EQUAL(MPI_T_pvar_handle_alloc(session, i, MPI_T_BIND_MPI_COMM == bind ? &pair : NULL, &variable->handle,
                                            &values),
                    MPI_SUCCESS);
        CHECK_EQUAL(values, 1);
        count++;
    }
}

static unsigned long long value_of(struct variable *variable)
{
    unsigned long long counter = 0;
    unsigned length = 0;
    CHECK_EQUAL(MPI_T_pvar_read(session, variable->handle, variable->grows ? (void *) &counter : (void *) &length),
                MPI_SUCCESS);
    return variable->grows ? counter : length;
}

static unsigned long long value_by_name(const char *name)
{
    for (int i = 0; i < count; i++) {
        if (0 == strcmp(variables[i].name, name)) {
            return value_of(&variables[i]);
        }
    }
    fprintf(stderr, "there is no variable %s\n", name);
    MPI_Abort(MPI_COMM_WORLD, 1);
    return 0;
}

static void *read_variables(void *unused)
{
    while (!atomic_load(&over)) {
        for (int i = 0; i < count; i++) {
            unsigned long long value = value_of(&variables[i]);
            if (variables[i].grows) {
                CHECK(value >= variables[i].last);
                variables[i].last = value;
            } else {
                /* At most one receive is posted, and one message arrives before its receive. */
                CHECK(value <= 1);
            }
        }
        atomic_fetch_add(&rounds, 1);
    }
    return unused;
}

/* The first byte says whether a rank has seen enough. The message in which both say so is the last one. */
static unsigned long long pass_messages(int rank)
{
    static char bytes[LONGEST];
    unsigned long long sent = 0;
    do {
        int length = 0 == sent % LARGE_EVERY ? LONGEST : 8;
        if (0 == rank) {
            bytes[0] = atomic_load(&rounds) >= ROUNDS;
            MPI_Send(bytes, length, MPI_BYTE, 1, 1, pair);
            MPI_Recv(bytes, length, MPI_BYTE, 1, 1, pair, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(bytes, length, MPI_BYTE, 0, 1, pair, MPI_STATUS_IGNORE);
            bytes[0] = bytes[0] && atomic_load(&rounds) >= ROUNDS;
            MPI_Send(bytes, length, MPI_BYTE, 0, 1, pair);
        }
        sent++;
    } while (!bytes[0]);
    return sent;
}

int main(int argc, char **argv)
{
    int provided, rank;
    unsigned long long before, sent;
    pthread_t reader;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    CHECK(provided >= MPI_THREAD_FUNNELED && provided < MPI_THREAD_MULTIPLE);
    MPI_T_init_thread(MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_dup(MPI_COMM_WORLD, &pair);
    MPI_T_pvar_session_create(&session);
    find_variables();
    CHECK(count > 10);
    before = value_by_name("pml_cableway_sends_eager") + value_by_name("pml_cableway_sends_rendezvous");

    CHECK(0 == pthread_create(&reader, NULL, read_variables, NULL));
    sent = pass_messages(rank);
    atomic_store(&over, true);
    CHECK(0 == pthread_join(reader, NULL));
    /* Everything that the first thread counted during the reads of the second one must be there. */
    CHECK_EQUAL(value_by_name("pml_cableway_sends_eager") + value_by_name("pml_cableway_sends_rendezvous") - before, sent);
    CHECK_EQUAL(value_by_name("pml_cableway_posted_receives"), 0);
    CHECK_EQUAL(value_by_name("pml_cableway_unexpected_messages"), 0);

    MPI_T_pvar_session_free(&session);
    MPI_Comm_free(&pair);
    MPI_T_finalize();
    MPI_Finalize();
    return 0;
}
