/* Which Open MPI this was built for, and whether it is this one. */
#include "component.h"

#define QUOTE(number) QUOTED(number)
#define QUOTED(number) #number

/* `cableway ompi` looks for these words in the file. */
static const char built_for[] = "cableway component for Open MPI " QUOTE(OMPI_MAJOR_VERSION) "." QUOTE(
    OMPI_MINOR_VERSION) "." QUOTE(OMPI_RELEASE_VERSION);

/* Another major version never gets here: it lacks symbols that this one needs. */
const char *cableway_other_structures(void)
{
    const bool same = sizeof(ompi_communicator_t) == ompi_communicator_t_class.cls_sizeof
                      && sizeof(ompi_datatype_t) == ompi_datatype_t_class.cls_sizeof
                      && sizeof(ompi_request_t) == ompi_request_t_class.cls_sizeof
                      && sizeof(opal_free_list_t) == opal_free_list_t_class.cls_sizeof
                      && sizeof(opal_mutex_t) == opal_mutex_t_class.cls_sizeof;
    return same ? NULL : built_for;
}
