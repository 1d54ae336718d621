/* A kernel of the program that fills the device until the host ends it. */
#ifndef OCCUPANT_H
#define OCCUPANT_H

#include "stream.h"

struct occupant {
    void *function, *stream;
    unsigned blocks;
    volatile unsigned *word; /* in host memory; the kernel ends once it is not 0 */
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
};

/* The threads of a block, and those of a multiprocessor of any device. */
enum { OCCUPANT_THREADS = 512, MULTIPROCESSOR_THREADS = 2048, MULTIPROCESSOR_COUNT = 16 /* an attribute */ };

static inline void occupant_load(struct occupant *occupant)
{
    static const char text[] =
        ".version 6.3\n.target sm_52\n.address_size 64\n"
        ".visible .entry occupy(\n.param .u64 occupy_param_0\n)\n{\n"
        ".reg .pred %p<2>;\n.reg .b32 %r<2>;\n.reg .b64 %rd<2>;\n"
        "ld.param.u64 %rd1, [occupy_param_0];\n"
        "$L__AGAIN:\nld.volatile.global.u32 %r1, [%rd1];\nsetp.eq.s32 %p1, %r1, 0;\n@%p1 bra $L__AGAIN;\nret;\n}\n";
    enum { PORTABLE_AND_MAPPED = 3 };
    void *driver = open_driver(), *module, *word;
    int multiprocessors, device;
    int (*load)(void **, const void *), (*find)(void **, void *, const char *), (*host)(void **, size_t, unsigned);
    int (*attribute)(int *, int, int), (*current)(int *);
    *(void **) &load = dlsym(driver, "cuModuleLoadData");
    *(void **) &find = dlsym(driver, "cuModuleGetFunction");
    *(void **) &host = dlsym(driver, "cuMemHostAlloc");
    *(void **) &attribute = dlsym(driver, "cuDeviceGetAttribute");
    *(void **) &current = dlsym(driver, "cuCtxGetDevice");
    *(void **) &occupant->launch = dlsym(driver, "cuLaunchKernel");
    CHECK(NULL != load && NULL != find && NULL != host && NULL != attribute && NULL != current && NULL != occupant->launch);
    CHECK_EQUAL(load(&module, text), 0);
    CHECK_EQUAL(find(&occupant->function, module, "occupy"), 0);
    CHECK_EQUAL(host(&word, sizeof *occupant->word, PORTABLE_AND_MAPPED), 0);
    CHECK_EQUAL(current(&device), 0);
    CHECK_EQUAL(attribute(&multiprocessors, MULTIPROCESSOR_COUNT, device), 0);
    CHECK_EQUAL(work.create(&occupant->stream, NON_BLOCKING), 0);
    occupant->blocks = (unsigned) multiprocessors * (MULTIPROCESSOR_THREADS / OCCUPANT_THREADS);
    occupant->word = word;
    *occupant->word = 1;
}

/* Has it begin in a stream: of its own, or behind what is in another one. */
static inline void occupant_begin(struct occupant *occupant, void *stream)
{
    void *arguments[] = {(void *) &occupant->word};
    *occupant->word = 0;
    CHECK_EQUAL(occupant->launch(occupant->function, occupant->blocks, 1, 1, OCCUPANT_THREADS, 1, 1, 0, stream, arguments,
                                 NULL), 0);
}

static inline void occupant_end(struct occupant *occupant)
{
    *occupant->word = 1;
}

#endif
