/* Messages between device memory of two processes, of many sizes, at any alignment, blocking and not. */
#include "memory.h"

static const size_t SIZES[] = {1, 7, 4096, 20000, 100000, 3 << 20};

static void exchange(size_t bytes)
{
    int peer = 1 - rank;
    unsigned char *host = allocate(bytes + 5);
    struct memory from = obtain(bytes + 5), to = obtain(bytes + 5);
    cableway_request *requests[2];
    cableway_status status;

    fill(host, bytes + 5, rank);
    put(&from, host, bytes + 5);
    memset(host, 0, bytes + 5);
    put(&to, host, bytes + 5);
    CALL(cableway_irecv((char *) to.address + 2, bytes, CABLEWAY_BYTE, peer, 1, everyone, &requests[0]));
    CALL(cableway_isend((char *) from.address + 3, bytes, CABLEWAY_BYTE, peer, 1, everyone, &requests[1]));
    CALL(cableway_waitall(2, requests, NULL));
    get(&to, host, bytes + 5);
    CHECK_EQUAL(host[1], 0);
    CHECK_EQUAL(host[2], byte_of(peer, 3));
    CHECK_EQUAL(host[bytes + 1], byte_of(peer, bytes + 2));
    CHECK_EQUAL(host[bytes + 2], 0);

    CALL(cableway_sendrecv(from.address, bytes, CABLEWAY_BYTE, peer, 2, to.address, bytes, CABLEWAY_BYTE, peer, 2,
                           everyone, &status));
    CHECK_EQUAL(status.bytes, bytes);
    get(&to, host, bytes);
    CHECK(holds(host, bytes, peer));

    /* To and from the host's memory. */
    if (0 == rank) {
        CALL(cableway_send(host, bytes, CABLEWAY_BYTE, 1, 3, everyone));
        memset(host, 0, bytes);
        CALL(cableway_recv(host, bytes, CABLEWAY_BYTE, 1, 4, everyone, NULL));
        CHECK(holds(host, bytes, 1));
    } else {
        CALL(cableway_recv(to.address, bytes, CABLEWAY_BYTE, 0, 3, everyone, NULL));
        get(&to, host, bytes);
        CHECK(holds(host, bytes, 1));
        CALL(cableway_send(to.address, bytes, CABLEWAY_BYTE, 0, 4, everyone));
    }
    release(&from);
    release(&to);
    free(host);
}

/* What the library allocates. */
static void allocations(void)
{
    int devices, kinds[] = {CABLEWAY_MEMORY_DEVICE, CABLEWAY_MEMORY_MANAGED, CABLEWAY_MEMORY_PINNED}, at;
    cableway_device_buffer *buffer = NULL;
    void *address = NULL;
    char text[8] = "";

    CALL(cableway_device_count(world, &devices));
    CHECK(devices > 0);
    for (at = 0; at < 3; at++) {
        CALL(cableway_device_allocate(world, devices - 1, kinds[at], 4096, &buffer, &address));
        CHECK(NULL != address);
        CALL(cableway_device_write(buffer, 100, "cable", 6));
        CALL(cableway_device_read(buffer, 102, text, 4));
        CHECK(0 == strcmp(text, "ble"));
        FAILS(cableway_device_write(buffer, 4095, text, 2), CABLEWAY_ERR_DEVICE, "the buffer has 4096 bytes");
        FAILS(cableway_device_read(buffer, 4097, text, 0), CABLEWAY_ERR_DEVICE, "the buffer has 4096 bytes");
        FAILS(cableway_device_read(buffer, 0, NULL, 1), CABLEWAY_ERR_ARGUMENT, "the memory to copy to");
        CALL(cableway_device_free(&buffer));
        CHECK(NULL == buffer);
    }
    FAILS(cableway_device_allocate(world, devices, CABLEWAY_MEMORY_DEVICE, 1, &buffer, &address), CABLEWAY_ERR_DEVICE,
          "");
    FAILS(cableway_device_allocate(world, 0, CABLEWAY_MEMORY_DEVICE, 0, &buffer, &address), CABLEWAY_ERR_DEVICE,
          "cannot be empty");
}

int main(int argc, char **argv)
{
    size_t at;
    uint64_t copies;
    begin();
    select_memory(argc, argv);
    for (at = 0; at < sizeof SIZES / sizeof SIZES[0]; at++) {
        exchange(SIZES[at]);
    }
    allocations();
    CALL(cableway_counter(world, "device_bytes", &copies));
    CHECK(copies > 0);
    end();
    return 0;
}
