/* A kernel of the program that faults, which ends its context. */
#ifndef FAULT_H
#define FAULT_H

#include "stream.h"

struct fault {
    void *function;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
};

/* To be called before streams wait. */
static inline void fault_load(struct fault *fault)
{
    static const char text[] =
        ".version 6.3\n.target sm_52\n.address_size 64\n.visible .entry fault()\n{\n    trap;\n    ret;\n}\n";
    void *driver = open_driver(), *module;
    int (*load)(void **, const void *), (*find)(void **, void *, const char *);
    *(void **) &load = dlsym(driver, "cuModuleLoadData");
    *(void **) &find = dlsym(driver, "cuModuleGetFunction");
    *(void **) &fault->launch = dlsym(driver, "cuLaunchKernel");
    CHECK(NULL != load && NULL != find && NULL != fault->launch);
    CHECK_EQUAL(load(&module, text), 0);
    CHECK_EQUAL(find(&fault->function, module, "fault"), 0);
}

static inline void fault_launch(const struct fault *fault, void *stream)
{
    CHECK_EQUAL(fault->launch(fault->function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), 0);
}

#endif
