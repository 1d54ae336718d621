/* The secret with which processes of a job authenticate each other over sockets.
 *
 *   secret FILE shared      messages pass; FILE gets the secret that rank 0 has published, in hexadecimal digits
 *   secret FILE withheld    rank 0 publishes none: no message passes
 *   secret FILE falsified   rank 1 reads a wrong one: no message passes */
#include "modex.h"

#include "check.h"

#include <unistd.h>

#define KEY "cableway.secret"

static int is_secret(const char *key)
{
    return 0 == strcmp(key, KEY);
}

/* The first byte says that a value is published. */
static void write_secret(const char *path, int rank)
{
    int found = 0;
    for (int i = 0; i < modex_count; i++) {
        if (is_secret(modex_published[i].key)) {
            FILE *file = fopen(path, "w");
            CHECK(NULL != file);
            CHECK_EQUAL(modex_published[i].size, 33);
            for (size_t at = 1; at < modex_published[i].size; at++) {
                fprintf(file, "%02x", modex_published[i].bytes[at]);
            }
            CHECK_EQUAL(fclose(file), 0);
            found = 1;
        }
    }
    CHECK_EQUAL(found, 0 == rank);
}

int main(int argc, char **argv)
{
    /* The rank before MPI_Init, under mpirun and Slurm. */
    const char *rank_given = getenv("PMIX_RANK");
    const char *what = argc > 2 ? argv[2] : "";
    int rank, size, in = -1, code, passes = 0 == strcmp(what, "shared");
    if (0 == strcmp(what, "withheld")) {
        modex_withholds = is_secret;
    } else if (0 == strcmp(what, "falsified") && NULL != rank_given && 0 != strcmp(rank_given, "0")) {
        modex_falsifies = is_secret;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    write_secret(0 == rank ? argv[1] : "/dev/null", rank);
    code = MPI_Sendrecv(&rank, 1, MPI_INT, (rank + 1) % size, 0, &in, 1, MPI_INT, (rank + size - 1) % size, 0,
                        MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK_EQUAL(MPI_SUCCESS == code, passes);
    CHECK_EQUAL(in, passes ? (rank + size - 1) % size : -1);
    if (passes) {
        MPI_Finalize();
    }
    fprintf(stderr, "done\n");
    /* MPI_Finalize would wait for its own messages. */
    _exit(0);
}
