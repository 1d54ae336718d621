/* Loads the named files as Open MPI loads components. They must be one object with one state, which stays loaded
 * after a close. */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>

#define REQUIRE(condition)                                                                                            \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                            \
            return 1;                                                                                                 \
        }                                                                                                             \
    } while (0)

int main(int argc, char **argv)
{
    int initialized;
    void *first = NULL, *component = NULL, *again;
    /* The symbols of Open MPI that the object needs; a program that calls MPI has them. */
    REQUIRE(argc > 1 && MPI_SUCCESS == MPI_Initialized(&initialized));
    for (int i = 1; NULL != argv[i]; i++) {
        void *handle = dlopen(argv[i], RTLD_LAZY | RTLD_LOCAL);
        if (NULL == handle) {
            fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
        if (NULL == first) {
            first = handle;
            component = dlsym(handle, "mca_pml_cableway_component");
        }
        REQUIRE(handle == first);
        REQUIRE(NULL != component && component == dlsym(handle, "mca_pml_cableway_component"));
        REQUIRE(NULL != dlsym(handle, "mca_coll_cableway_component"));
        /* Other objects see none of its symbols. */
        REQUIRE(NULL == dlsym(RTLD_DEFAULT, "mca_pml_cableway_component"));
    }
    REQUIRE(NULL != first);
    for (int i = 1; NULL != argv[i]; i++) {
        dlclose(first);
    }
    again = dlopen(argv[1], RTLD_LAZY | RTLD_NOLOAD);
    REQUIRE(NULL != again && component == dlsym(again, "mca_pml_cableway_component"));
    return 0;
}
