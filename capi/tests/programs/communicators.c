/* Copies and parts of a communicator. */
#include "job.h"

static int sum_of(cableway_communicator *on, int value)
{
    int32_t mine = value, sum = 0;
    CALL(cableway_allreduce(&mine, &sum, 1, CABLEWAY_INT32, CABLEWAY_SUM, on));
    return sum;
}

int main(void)
{
    cableway_communicator *copy, *part, *none, *backwards;
    cableway_request *request;
    int value = -1, part_rank, part_size, even;

    begin();
    CALL(cableway_dup(everyone, &copy));
    /* A message on one never matches a receive on the other. */
    CALL(cableway_irecv(&value, sizeof value, CABLEWAY_BYTE, CABLEWAY_ANY_SOURCE, CABLEWAY_ANY_TAG, copy, &request));
    {
        int next = (rank + 1) % size, got = 0;
        CALL(cableway_sendrecv(&rank, sizeof rank, CABLEWAY_BYTE, next, 1, &got, sizeof got, CABLEWAY_BYTE,
                               CABLEWAY_ANY_SOURCE, 1, everyone, NULL));
        CHECK_EQUAL(got, (rank + size - 1) % size);
        CHECK_EQUAL(value, -1);
        CALL(cableway_barrier(everyone));
        got = 500 + rank;
        CALL(cableway_send(&got, sizeof got, CABLEWAY_BYTE, next, 1, copy));
    }
    /* The operation goes on after its communicator was freed. */
    {
        cableway_communicator *freed = copy;
        CALL(cableway_communicator_free(&freed));
        CHECK(NULL == freed);
    }
    CALL(cableway_wait(&request, NULL));
    CHECK_EQUAL(value, 500 + (rank + size - 1) % size);

    CALL(cableway_split(everyone, rank % 2, 0, &part));
    CALL(cableway_rank(part, &part_rank));
    CALL(cableway_size(part, &part_size));
    even = (size + 1) / 2;
    CHECK_EQUAL(part_size, 0 == rank % 2 ? even : size - even);
    CHECK_EQUAL(part_rank, rank / 2);
    CHECK_EQUAL(sum_of(part, 1), part_size);

    CALL(cableway_split(everyone, 7, -rank, &backwards));
    CALL(cableway_rank(backwards, &part_rank));
    CHECK_EQUAL(part_rank, size - 1 - rank);
    CHECK_EQUAL(sum_of(backwards, rank), size * (size - 1) / 2);

    CALL(cableway_split(everyone, 0 == rank ? CABLEWAY_UNDEFINED : 1, 0, &none));
    CHECK((NULL == none) == (0 == rank));
    if (NULL != none) {
        CALL(cableway_barrier(none));
    }
    CALL(cableway_communicator_free(&none));
    CALL(cableway_communicator_free(&part));
    CALL(cableway_communicator_free(&backwards));
    CHECK_EQUAL(sum_of(everyone, 1), size);
    end();
    return 0;
}
