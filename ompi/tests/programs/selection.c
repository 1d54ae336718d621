/* Starts MPI where the component may be unusable, and checks which PML is selected.
 *
 *   selection PML [other-structures]    PML: ob1 or cableway; other-structures: simulates another version of Open MPI */
#include "modex.h"

#include "check.h"

/* The beginning of Open MPI's opal_class_t. */
struct class {
    const char *name;
    void *parent, *construct, *destruct;
    int initialized, depth;
    void *constructors, *destructors;
    size_t size;
};

static void change_structures(void)
{
    struct class *class = dlsym(RTLD_DEFAULT, "ompi_communicator_t_class");
    CHECK(NULL != class && 0 == strcmp(class->name, "ompi_communicator_t"));
    class->size += 64;
}

/* The variables of a PML that was not selected do not exist any more. */
static int has_variable(const char *wanted)
{
    int variables, found = 0;
    MPI_T_pvar_get_num(&variables);
    for (int i = 0; i < variables; i++) {
        char name[256], help[1024];
        int name_length = sizeof name, help_length = sizeof help, rest[6];
        MPI_Datatype type;
        MPI_T_enum values;
        if (MPI_SUCCESS
                == MPI_T_pvar_get_info(i, name, &name_length, &rest[0], &rest[1], &type, &values, help, &help_length,
                                       &rest[2], &rest[3], &rest[4], &rest[5])
            && 0 == strcmp(name, wanted)) {
            found = 1;
        }
    }
    return found;
}

/* An unused component publishes nothing. */
static void look_at_modex(int used)
{
    for (int i = 0; i < modex_count; i++) {
        CHECK_EQUAL(0 != modex_published[i].size, used);
    }
    CHECK(!used || 0 != modex_count);
}

static void exchange(int rank, int size)
{
    static int out[1 << 18], in[1 << 18];
    int sum;
    out[0] = rank;
    MPI_Sendrecv(out, 1 << 18, MPI_INT, (rank + 1) % size, 0, in, 1 << 18, MPI_INT, (rank + size - 1) % size, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQUAL(in[0], (rank + size - 1) % size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQUAL(sum, size * (size - 1) / 2);
}

int main(int argc, char **argv)
{
    int rank, size, provided, cableway = argc > 1 && 0 == strcmp(argv[1], "cableway");
    if (argc > 2) {
        change_structures();
    }
    /* With threads the component replaces the functions by which Open MPI waits. */
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    CHECK_EQUAL(has_variable("pml_cableway_posted_receives"), cableway);
    CHECK_EQUAL(has_variable("pml_ob1_posted_recvq_length"), !cableway);
    MPI_T_finalize();
    look_at_modex(cableway);
    exchange(rank, size);
    MPI_Finalize();
    fprintf(stderr, "done\n");
    return 0;
}
