/* What a running kernel needs to start a request and to wait for it. mp/device.cuh has the kernel's side, and LibMP's names
 * for these functions. The words are host memory that the current context reaches, so a context is current.
 *
 * Call these functions before the kernel runs: for many requests at a time they register more memory, and the driver may
 * wait for kernels then. Memory of peers is not mapped while such a request lives. */
#ifndef CABLEWAY_MP_KERNEL_H
#define CABLEWAY_MP_KERNEL_H

#include <mp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The kernel stores the value to the word: the send or put starts. */
struct mp_kernel_send {
    uint32_t *start;
    uint32_t value;
};

/* The kernel waits until the word has at least the value. It has more if the request failed. Afterwards the kernel stores the
 * second value to the second word, and does not use the words any more. */
struct mp_kernel_wait {
    uint32_t *over;
    uint32_t value;
    uint32_t *seen;
    uint32_t seen_value;
};

/* Takes a prepared send or put, which counts as posted. Requests to one rank start in the order of these calls, so one
 * waits for the stores of those before it. */
int mp_kernel_send_descriptor(mp_request_t *req, struct mp_kernel_send *descriptor);
/* Takes a request that has started, or whose send descriptor was taken. mp_wait returns after the kernel's second store,
 * unless the request failed. */
int mp_kernel_wait_descriptor(mp_request_t *req, struct mp_kernel_wait *descriptor);
/* Returns the address by which kernels reach a word of the program: in device memory, in host memory of the driver, or in
 * memory that mp_register was given. */
int mp_kernel_word(uint32_t *ptr, uint32_t **address);

#ifdef __cplusplus
}
#endif

#endif
