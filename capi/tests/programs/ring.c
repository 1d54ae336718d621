/* Every process passes values on to the next one; and what is known of the job. */
#include "job.h"

int main(void)
{
    cableway_parameter parameters[] = {{"peer_timeout", "60s"}, {"btl_sm_eager_limit", "8K"}};
    int next, previous, local;
    uint32_t sent[4], received[4] = {0, 0, 0, 0};
    uint64_t before, after;
    cableway_status status;

    CHECK_EQUAL(cableway_version_number(), CABLEWAY_VERSION_NUMBER);
    CHECK(0 == strncmp(cableway_version(), "0.1.", 4));
    CHECK(0 == strcmp(cableway_last_error(), ""));
    CHECK(0 == strcmp(cableway_error_string(CABLEWAY_SUCCESS), "success"));
    CHECK(NULL != strstr(cableway_error_string(12345), "no code"));

    CALL(cableway_init(parameters, 2, &world));
    CALL(cableway_world_communicator(world, &everyone));
    CALL(cableway_rank(everyone, &rank));
    CALL(cableway_size(everyone, &size));
    CALL(cableway_local_size(world, &local));
    CHECK_EQUAL(local, size);

    next = (rank + 1) % size;
    previous = (rank + size - 1) % size;
    sent[0] = (uint32_t) rank;
    sent[1] = sent[2] = sent[3] = 10 * sent[0];
    CALL(cableway_counter(world, "sends_eager", &before));
    CALL(cableway_sendrecv(sent, sizeof sent, CABLEWAY_BYTE, next, 5, received, sizeof received, CABLEWAY_BYTE,
                           previous, 5, everyone, &status));
    CHECK_EQUAL(received[0], previous);
    CHECK_EQUAL(received[3], 10 * previous);
    CHECK_EQUAL(status.source, previous);
    CHECK_EQUAL(status.tag, 5);
    CHECK_EQUAL(status.bytes, sizeof sent);
    CHECK_EQUAL(status.error, CABLEWAY_SUCCESS);
    CALL(cableway_counter(world, "sends_eager", &after));
    CHECK(after > before);
    CALL(cableway_progress(world));

    /* Once around, one after the other. */
    if (0 == rank) {
        CALL(cableway_send("go", 3, CABLEWAY_BYTE, next, 6, everyone));
    }
    {
        char text[8] = "";
        CALL(cableway_recv(text, sizeof text, CABLEWAY_BYTE, previous, 6, everyone, NULL));
        CHECK(0 == strcmp(text, "go"));
        if (0 != rank) {
            CALL(cableway_send(text, 3, CABLEWAY_BYTE, next, 6, everyone));
        }
    }
    end();
    return 0;
}
