/* An object that loads another by its bare name. Only this object's RUNPATH finds that. */
#include <dlfcn.h>

void *load(const char *name);

void *load(const char *name)
{
    /* Not a tail call, so that this object is the caller. */
    void *volatile loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return loaded;
}
