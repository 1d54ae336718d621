/* An object that loads another by its bare name, which this one's RUNPATH alone finds. */
#include <dlfcn.h>

void *load(const char *name);

void *load(const char *name)
{
    /* Not the last thing done, so that this object is the caller. */
    void *volatile loaded = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return loaded;
}
