/* The version of Open MPI that this component was built for, and the check that the running one is compatible. */
#include "shim.h"

#define QUOTE(number) QUOTED(number)
#define QUOTED(number) #number

/* `cableway ompi` searches the component's file for this text. */
static const char built_for[] = "cableway component for Open MPI " QUOTE(OMPI_MAJOR_VERSION) "." QUOTE(
    OMPI_MINOR_VERSION) "." QUOTE(OMPI_RELEASE_VERSION);

/* Another major version cannot even load the component, because it lacks symbols. So sizes tell minor versions
 * apart. */
const char *cableway_incompatible_build(void)
{
    const bool same = sizeof(ompi_communicator_t) == ompi_communicator_t_class.cls_sizeof
                      && sizeof(ompi_datatype_t) == ompi_datatype_t_class.cls_sizeof
                      && sizeof(ompi_request_t) == ompi_request_t_class.cls_sizeof
                      && sizeof(opal_free_list_t) == opal_free_list_t_class.cls_sizeof
                      && sizeof(opal_mutex_t) == opal_mutex_t_class.cls_sizeof;
    return same ? NULL : built_for;
}
