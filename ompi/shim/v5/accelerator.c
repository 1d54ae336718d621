/* The accelerator component mca_accelerator_cableway, which Open MPI 5.0 uses for its convertor and MPI-IO.
 *
 * Copies are synchronous, so streams are empty and events are complete at once. IPC, registration and address ranges
 * are reported as not supported. Open MPI then works without them. */
#include "shim.h"

#include "opal/mca/accelerator/accelerator.h"
#include "opal/mca/accelerator/base/base.h"

#include <string.h>

#include "../accelerator.h"

static int code_of(int code)
{
    return CABLEWAY_OK == code ? OPAL_SUCCESS : OPAL_ERROR;
}

static int check_addr(const void *address, int *device, uint64_t *flags)
{
    int kind;
    *device = MCA_ACCELERATOR_NO_DEVICE_ID;
    *flags = 0;
    if (NULL == address) {
        return 0;
    }
    kind = cableway_accelerator_check(address, device);
    if (2 == kind) {
        *flags |= MCA_ACCELERATOR_FLAGS_UNIFIED_MEMORY;
    }
    return 0 != kind;
}

static int create_stream(int device, opal_accelerator_stream_t **stream)
{
    (void) device;
    *stream = OBJ_NEW(opal_accelerator_stream_t);
    return NULL != *stream ? OPAL_SUCCESS : OPAL_ERR_OUT_OF_RESOURCE;
}

static int create_event(int device, opal_accelerator_event_t **event)
{
    (void) device;
    *event = OBJ_NEW(opal_accelerator_event_t);
    return NULL != *event ? OPAL_SUCCESS : OPAL_ERR_OUT_OF_RESOURCE;
}

static int record_event(int device, opal_accelerator_event_t *event, opal_accelerator_stream_t *stream)
{
    (void) device;
    return NULL != event && NULL != stream ? OPAL_SUCCESS : OPAL_ERR_BAD_PARAM;
}

static int query_event(int device, opal_accelerator_event_t *event)
{
    (void) device;
    return NULL != event ? OPAL_SUCCESS : OPAL_ERR_BAD_PARAM;
}

static int mem_copy(int to_device, int from_device, void *to, const void *from, size_t size,
                    opal_accelerator_transfer_type_t type)
{
    (void) to_device, (void) from_device, (void) type;
    return code_of(cableway_accelerator_copy(to, from, size));
}

static int mem_copy_async(int to_device, int from_device, void *to, const void *from, size_t size,
                          opal_accelerator_stream_t *stream, opal_accelerator_transfer_type_t type)
{
    (void) stream;
    return mem_copy(to_device, from_device, to, from, size, type);
}

static int mem_alloc(int device, void **address, size_t size)
{
    *address = cableway_accelerator_allocate(MCA_ACCELERATOR_NO_DEVICE_ID == device ? 0 : device, size);
    return NULL != *address ? OPAL_SUCCESS : OPAL_ERR_OUT_OF_RESOURCE;
}

static int mem_release(int device, void *address)
{
    (void) device;
    return cableway_accelerator_release(address) ? OPAL_SUCCESS : OPAL_ERR_BAD_PARAM;
}

static int get_address_range(int device, const void *address, void **base, size_t *size)
{
    (void) device, (void) address, (void) base, (void) size;
    return OPAL_ERR_NOT_SUPPORTED;
}

static int host_register(int device, void *address, size_t size)
{
    (void) device, (void) address, (void) size;
    return OPAL_ERR_NOT_SUPPORTED;
}

static int host_unregister(int device, void *address)
{
    (void) device, (void) address;
    return OPAL_ERR_NOT_SUPPORTED;
}

static int get_device(int *device)
{
    (void) device;
    return OPAL_ERR_NOT_SUPPORTED;
}

static int get_device_pci_attr(int device, opal_accelerator_pci_attr_t *attributes)
{
    (void) device, (void) attributes;
    return OPAL_ERR_NOT_SUPPORTED;
}

static int device_can_access_peer(int *access, int from, int to)
{
    *access = from == to;
    return OPAL_SUCCESS;
}

static int get_buffer_id(int device, const void *address, opal_accelerator_buffer_id_t *id)
{
    (void) device;
    *id = cableway_accelerator_buffer_id(address);
    return 0 != *id ? OPAL_SUCCESS : OPAL_ERR_NOT_SUPPORTED;
}

static opal_accelerator_base_module_t module = {
    .check_addr = check_addr,
    .create_stream = create_stream,
    .create_event = create_event,
    .record_event = record_event,
    .query_event = query_event,
    .mem_copy_async = mem_copy_async,
    .mem_copy = mem_copy,
    .mem_move = mem_copy,
    .mem_alloc = mem_alloc,
    .mem_release = mem_release,
    .get_address_range = get_address_range,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .get_device = get_device,
    .get_device_pci_attr = get_device_pci_attr,
    .device_can_access_peer = device_can_access_peer,
    .get_buffer_id = get_buffer_id,
};

/* Returns no module on a node without devices, so that Open MPI does not call the component there. */
static opal_accelerator_base_module_t *init(void)
{
    return cableway_accelerator_start() ? &module : NULL;
}

/* MPIX_Query_cuda_support returns 1 if the accelerator component is named "cuda". Rename this component once its PML is
 * enabled: only then do all calls support device memory. */
void cableway_on_enable(void)
{
    char *name = opal_accelerator_base_selected_component.base_version.mca_component_name;
    if (0 == strcmp(name, "cableway")) {
        strcpy(name, "cuda");
    }
}

static void finalize(opal_accelerator_base_module_t *self)
{
    (void) self;
}

static const opal_accelerator_base_component_t component = {
    .base_version = {
        OPAL_ACCELERATOR_BASE_VERSION_1_0_0,
        .mca_component_name = "cableway",
        MCA_BASE_MAKE_VERSION(component, 0, 1, 0),
    },
    .base_data = {MCA_BASE_METADATA_PARAM_NONE},
    .accelerator_init = init,
    .accelerator_finalize = finalize,
};

extern unsigned char mca_accelerator_cableway_component[];
CABLEWAY_EXPORT_COMPONENT(mca_accelerator_cableway_component, component)
