/* In place of device.h where the command was built without devices. */
static int page_locked;

static void use_device(int device)
{
    (void)device;
    give_up("built without devices");
}

static char *device_buffer(size_t size)
{
    (void)size;
    return NULL;
}

static void device_release(char *buffer)
{
    (void)buffer;
}
