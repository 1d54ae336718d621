// Messages that a running kernel starts and waits for, by LibMP's names. The host takes descriptors of requests and passes
// them to the kernel, by value or in memory that it reaches. One thread calls a function of mp::device::mlx5 for a request.
#ifndef CABLEWAY_MP_DEVICE_CUH
#define CABLEWAY_MP_DEVICE_CUH

#include <gdsync/device.cuh>
#include <mp/kernel.h>

namespace mp {

namespace mlx5 {

typedef gdsync::isem32_t isem32_t;

typedef struct send_desc {
    gdsync::isem32_t db; // starts the request
} send_desc_t;

typedef struct wait_desc {
    gdsync::wait_cond_t sema_cond;
    gdsync::isem32_t sema; // tells that the request is over
    gdsync::isem32_t flag; // tells that the kernel has seen it
} wait_desc_t;

// Return MP_SUCCESS or MP_FAILURE. See mp/kernel.h.

// A word of the program.
inline int get_descriptors(isem32_t *psem, uint32_t *ptr, uint32_t value)
{
    psem->value = value;
    return mp_kernel_word(ptr, &psem->ptr);
}

// A prepared send or put.
inline int get_descriptors(send_desc_t *sreq, mp_request_t *req)
{
    struct mp_kernel_send descriptor;
    if (MP_SUCCESS != mp_kernel_send_descriptor(req, &descriptor)) {
        return MP_FAILURE;
    }
    sreq->db.ptr = descriptor.start;
    sreq->db.value = descriptor.value;
    return MP_SUCCESS;
}

// A request for which the kernel waits.
inline int get_descriptors(wait_desc_t *wreq, mp_request_t *req)
{
    struct mp_kernel_wait descriptor;
    if (MP_SUCCESS != mp_kernel_wait_descriptor(req, &descriptor)) {
        return MP_FAILURE;
    }
    wreq->sema_cond = GDS_WAIT_COND_GEQ;
    wreq->sema.ptr = descriptor.over;
    wreq->sema.value = descriptor.value;
    wreq->flag.ptr = descriptor.seen;
    wreq->flag.value = descriptor.seen_value;
    return MP_SUCCESS;
}

} // namespace mlx5

namespace device {
namespace mlx5 {

using namespace gdsync::device;

// Starts a request, after all that this thread did before, and other threads before a barrier with it.
CABLEWAY_ON_BOTH inline void send(::mp::mlx5::send_desc_t &info)
{
    release(info.db);
}

// Waits until a request is over. Returns 0, or ERROR_FAILED if it failed: mp_wait tells why.
CABLEWAY_ON_BOTH inline int wait(::mp::mlx5::wait_desc_t &info)
{
    int rc = ::gdsync::device::wait(info.sema, info.sema_cond);
    if (0 == rc && load(info.sema.ptr) != info.sema.value) {
        rc = ::gdsync::ERROR_FAILED;
    }
    return rc;
}

// Says that the kernel has seen the end of a request: mp_wait may return.
CABLEWAY_ON_BOTH inline void signal(::mp::mlx5::wait_desc_t &info)
{
    release(info.flag);
}

} // namespace mlx5
} // namespace device
} // namespace mp

#endif
