/* Calls MPI_Pack, which has no component interface: from this program, from objects that are loaded before and after
 * MPI_Init, through Fortran's bindings, and by an address that is looked up.
 *
 *   intercept pack          packs device memory in each of these ways
 *   intercept targets       only prints which functions calls reach
 *
 * Prints lines `WHEN CALLER OBJECT`: the time, the caller, and the object with the called function. If a tool is
 * loaded, prints the number of calls that it has seen: `tool CALLS`. */
#define _GNU_SOURCE
#include "check.h"
#include "driver.h"
#include "intercept/object.h"

#include <stdbool.h>

enum { COUNT = 1000 };

static device_pointer device;
static bool with_device;

/* A way to call the function. */
struct caller {
    const char *name;
    void *object; /* NULL: this program */
    pack_fn *pack;
    target_fn *target;
};

static int pack_here(void *from, int count, void *to, int bytes)
{
    int position = 0;
    return MPI_Pack(from, count, MPI_INT, to, bytes, &position, MPI_COMM_WORLD);
}

/* As in a program that opens MPI's library itself. */
static void *look_up(void)
{
    void *library = dlopen("libmpi.so.40", RTLD_NOW | RTLD_LOCAL);
    CHECK(NULL != library);
    return dlsym(library, "MPI_Pack");
}

static int pack_by_address(void *from, int count, void *to, int bytes)
{
    int (*pack)(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm);
    int position = 0;
    *(void **) &pack = look_up();
    return pack(from, count, MPI_INT, to, bytes, &position, MPI_COMM_WORLD);
}

static struct caller caller_in(const char *name, void *object)
{
    struct caller caller = {.name = name, .object = object};
    if (NULL == object) {
        fprintf(stderr, "%s\n", dlerror());
    }
    CHECK(NULL != object);
    *(void **) &caller.pack = dlsym(object, "pack");
    *(void **) &caller.target = dlsym(object, "target");
    CHECK(NULL != caller.pack && NULL != caller.target);
    return caller;
}

static void *open_by_path(const char *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("INTERCEPT_FOLDER"), file);
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL);
}

static void *open_by_bare_name(const char *file)
{
    void *(*load_object)(const char *);
    void *loader = open_by_path("libloader.so");
    CHECK(NULL != loader);
    *(void **) &load_object = dlsym(loader, "load");
    CHECK(NULL != load_object);
    CHECK(NULL == dlopen(file, RTLD_NOW | RTLD_LOCAL));
    return load_object(file);
}

static void say_target(const char *when, const struct caller *caller)
{
    Dl_info found;
    const char *name;
    if (NULL != caller->target) {
        CHECK(0 != dladdr(caller->target(), &found));
        name = strrchr(found.dli_fname, '/');
        printf("%s %s %s\n", when, caller->name, NULL != name ? name + 1 : found.dli_fname);
    }
}

static void check_pack(const struct caller *caller)
{
    int host[COUNT], packed[COUNT];
    if (!with_device) {
        return;
    }
    for (int i = 0; i < COUNT; i++) {
        host[i] = 3 * i;
        packed[i] = -1;
    }
    CHECK_EQUAL(cuda.to_device(device, host, sizeof host), 0);
    CHECK_EQUAL(caller->pack((void *) (uintptr_t) device, COUNT, packed, sizeof packed), MPI_SUCCESS);
    CHECK_EQUAL(memcmp(host, packed, sizeof host), 0);
    printf("packed %s\n", caller->name);
}

static void open_device(void)
{
    void *context;
    int number;
    if (with_device && 0 == device) {
        load();
        CHECK_EQUAL(cuda.init(0), 0);
        CHECK_EQUAL(cuda.device_get(&number, 0), 0);
        CHECK_EQUAL(cuda.retain(&context, number), 0);
        CHECK_EQUAL(cuda.set_current(context), 0);
        CHECK_EQUAL(cuda.alloc(&device, COUNT * sizeof(int)), 0);
    }
}

int main(int argc, char **argv)
{
    int (*tool_calls)(void);
    struct caller callers[] = {
        {.name = "program", .pack = pack_here},
        {.name = "address", .pack = pack_by_address, .target = look_up},
        caller_in("before", open_by_path("libbefore.so")),
        {.name = "later"},
        {.name = "fortran"},
    };
    const int count = sizeof callers / sizeof *callers;
    struct caller unloaded;
    with_device = argc < 2 || 0 != strcmp(argv[1], "targets");
    say_target("before", &callers[2]);
    MPI_Init(&argc, &argv);
    open_device();
    unloaded = caller_in("unloaded", open_by_path("libunloaded.so"));
    check_pack(&unloaded);
    CHECK_EQUAL(dlclose(unloaded.object), 0);
    callers[3] = caller_in("later", open_by_bare_name("liblater.so"));
    callers[4] = caller_in("fortran", open_by_path("libfortran.so"));
    for (int i = 0; i < count; i++) {
        say_target("during", &callers[i]);
        check_pack(&callers[i]);
    }
    MPI_Finalize();
    for (int i = 0; i < count; i++) {
        say_target("after", &callers[i]);
    }
    *(void **) &tool_calls = dlsym(RTLD_DEFAULT, "tool_calls");
    if (NULL != tool_calls) {
        printf("tool %d\n", tool_calls());
    }
    return 0;
}
