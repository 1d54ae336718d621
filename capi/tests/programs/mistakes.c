/* Calls with wrong arguments: each one fails with its code and a text, and the next call works. */
#include "job.h"

static char byte = 1, other[8];

static void messages(void)
{
    cableway_request *request = NULL;
    cableway_status status;
    int found;
    const cableway_datatype *bytes = CABLEWAY_BYTE;

    FAILS(cableway_send(NULL, 1, bytes, 0, 0, everyone), CABLEWAY_ERR_ARGUMENT, "the buffer is a null pointer");
    FAILS(cableway_send(&byte, SIZE_MAX, bytes, 0, 0, everyone), CABLEWAY_ERR_ARGUMENT, "cannot have");
    FAILS(cableway_send(&byte, 1, bytes, size, 0, everyone), CABLEWAY_ERR_RANK, "invalid rank 2: there are 2 ranks");
    FAILS(cableway_send(&byte, 1, bytes, -1, 0, everyone), CABLEWAY_ERR_RANK, "invalid rank -1");
    FAILS(cableway_send(&byte, 1, bytes, 0, -5, everyone), CABLEWAY_ERR_TAG, "invalid tag -5");
    FAILS(cableway_ssend(&byte, 1, bytes, size, 0, everyone), CABLEWAY_ERR_RANK, "rank 2");
    FAILS(cableway_recv(&byte, 1, bytes, -7, 0, everyone, NULL), CABLEWAY_ERR_RANK, "invalid rank -7");
    FAILS(cableway_recv(&byte, 1, bytes, size, 0, everyone, &status), CABLEWAY_ERR_RANK, "receive of 1 bytes");
    FAILS(cableway_recv(&byte, 1, bytes, 0, -16, everyone, NULL), CABLEWAY_ERR_TAG, "invalid tag -16");
    FAILS(cableway_probe(0, -2, everyone, NULL), CABLEWAY_ERR_TAG, "probe from rank 0, tag -2");
    FAILS(cableway_iprobe(0, 1, everyone, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the answer is a null");
    FAILS(cableway_iprobe(5, 1, everyone, &found, NULL), CABLEWAY_ERR_RANK, "5");
    FAILS(cableway_isend(&byte, 1, bytes, 0, 0, everyone, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the request");
    FAILS(cableway_isend(&byte, 1, bytes, 9, 0, everyone, &request), CABLEWAY_ERR_RANK, "rank 9");
    FAILS(cableway_isend(&byte, 1, bytes, 0, -1, everyone, &request), CABLEWAY_ERR_TAG, "tag -1");
    FAILS(cableway_irecv(&byte, 1, bytes, 9, 0, everyone, &request), CABLEWAY_ERR_RANK, "rank 9");
    FAILS(cableway_irecv(NULL, 1, bytes, 0, 0, everyone, &request), CABLEWAY_ERR_ARGUMENT, "the buffer");
    CHECK(NULL == request);
    FAILS(cableway_wait(NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the place of the request");
    FAILS(cableway_waitall(1, NULL, NULL), CABLEWAY_ERR_ARGUMENT, "the array of requests");
    FAILS(cableway_cancel(NULL), CABLEWAY_ERR_HANDLE, "a request is needed, not a null pointer");
    /* Without bytes the address is ignored. */
    CALL(cableway_isend(NULL, 0, bytes, rank, 0, everyone, &request));
    CALL(cableway_recv(NULL, 0, bytes, rank, 0, everyone, NULL));
    CALL(cableway_wait(&request, NULL));
}

/* Handles of another kind. The casts keep the compiler from finding them. */
static void handles(void)
{
    int value;
    cableway_request *request, *requests[2];
    cableway_datatype *type;
    void *volatile wrong = everyone;

    FAILS(cableway_rank(NULL, &value), CABLEWAY_ERR_HANDLE, "a communicator is needed, not a null pointer");
    FAILS(cableway_rank((cableway_communicator *) (void *) world, &value), CABLEWAY_ERR_HANDLE, "another kind");
    FAILS(cableway_rank(everyone, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the rank is a null pointer");
    FAILS(cableway_local_size(wrong, &value), CABLEWAY_ERR_HANDLE, "a world is needed");
    FAILS(cableway_progress(NULL), CABLEWAY_ERR_HANDLE, "a world is needed");
    FAILS(cableway_cancel(wrong), CABLEWAY_ERR_HANDLE, "a request is needed");
    FAILS(cableway_send(&byte, 1, wrong, 0, 0, everyone), CABLEWAY_ERR_HANDLE, "a datatype is needed");
    FAILS(cableway_device_write(wrong, 0, &byte, 1), CABLEWAY_ERR_HANDLE, "a device buffer is needed");
    FAILS(cableway_communicator_free(&everyone), CABLEWAY_ERR_ARGUMENT, "belongs to the world");
    FAILS(cableway_send(&byte, 1, CABLEWAY_BYTE, 0, 0, (void *) (other + 1)), CABLEWAY_ERR_HANDLE, "no handle");

    /* No request of the array ends if one of the handles is wrong. */
    CALL(cableway_irecv(other, 1, CABLEWAY_BYTE, rank, 3, everyone, &request));
    requests[0] = request;
    requests[1] = wrong;
    FAILS(cableway_waitall(2, requests, NULL), CABLEWAY_ERR_HANDLE, "a request is needed");
    CHECK(request == requests[0]);
    CALL(cableway_send(&byte, 1, CABLEWAY_BYTE, rank, 3, everyone));
    CALL(cableway_wait(&request, NULL));

    CALL(cableway_type_contiguous(3, CABLEWAY_BYTE, &type));
    wrong = type;
    FAILS(cableway_wait((cableway_request **) &wrong, NULL), CABLEWAY_ERR_HANDLE, "a request is needed");
    CHECK(wrong == type);
    CALL(cableway_type_free(&type));
    CHECK(NULL == type);
    CALL(cableway_type_free(&type));
}

static void collectives(void)
{
    cableway_communicator *made = NULL;
    double numbers[4] = {1, 2, 3, 4}, result[4];
    size_t counts[2] = {1, SIZE_MAX};
    cableway_request *request = NULL;
    int value;

    FAILS(cableway_split(everyone, -3, 0, &made), CABLEWAY_ERR_ARGUMENT, "invalid colour -3");
    FAILS(cableway_bcast(&value, sizeof value, CABLEWAY_BYTE, 2, everyone), CABLEWAY_ERR_RANK, "invalid root 2");
    FAILS(cableway_bcast(&value, sizeof value, CABLEWAY_BYTE, -1, everyone), CABLEWAY_ERR_RANK, "invalid rank -1");
    FAILS(cableway_allreduce(numbers, result, 4, 99, CABLEWAY_SUM, everyone), CABLEWAY_ERR_ARGUMENT,
          "no type of elements 99");
    FAILS(cableway_allreduce(numbers, result, 4, CABLEWAY_DOUBLE, 0, everyone), CABLEWAY_ERR_ARGUMENT, "no operation 0");
    FAILS(cableway_allreduce(numbers, result, 4, CABLEWAY_DOUBLE, CABLEWAY_BIT_AND, everyone), CABLEWAY_ERR_OPERATION,
          "BitAnd is not defined");
    FAILS(cableway_allreduce((char *) numbers + 1, result, 1, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone),
          CABLEWAY_ERR_ARGUMENT, "misaligned");
    FAILS(cableway_allreduce(numbers, NULL, 4, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone), CABLEWAY_ERR_ARGUMENT, "null");
    FAILS(cableway_allreduce(numbers, result, SIZE_MAX / 2, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone),
          CABLEWAY_ERR_ARGUMENT, "elements of 8 bytes");
    FAILS(cableway_reduce_scatter_block(numbers, result, SIZE_MAX, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone),
          CABLEWAY_ERR_ARGUMENT, "for each rank");
    FAILS(cableway_reduce(CABLEWAY_IN_PLACE, result, 4, CABLEWAY_DOUBLE, CABLEWAY_SUM, 1 - rank, everyone),
          CABLEWAY_ERR_ARGUMENT, "CABLEWAY_IN_PLACE is for the root");
    FAILS(cableway_ireduce(CABLEWAY_IN_PLACE, result, 4, CABLEWAY_DOUBLE, CABLEWAY_SUM, 1 - rank, everyone, &request),
          CABLEWAY_ERR_ARGUMENT, "CABLEWAY_IN_PLACE is for the root");
    FAILS(cableway_reduce_scatter(numbers, result, NULL, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone), CABLEWAY_ERR_ARGUMENT,
          "the array of counts");
    FAILS(cableway_reduce_scatter(numbers, result, counts, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone),
          CABLEWAY_ERR_ARGUMENT, "more than memory can hold");
    FAILS(cableway_reduce_scatter_block(numbers, result, 1, CABLEWAY_DOUBLE, CABLEWAY_BIT_AND, everyone),
          CABLEWAY_ERR_OPERATION, "reduce_scatter_block of 16 bytes");
    FAILS(cableway_allgather(numbers, 8, CABLEWAY_BYTE, result, 16, CABLEWAY_BYTE, everyone), CABLEWAY_ERR_ARGUMENT,
          "allgather");
    FAILS(cableway_allgatherv(numbers, 8, CABLEWAY_BYTE, result, NULL, NULL, CABLEWAY_BYTE, everyone),
          CABLEWAY_ERR_ARGUMENT, "the array of counts");
    FAILS(cableway_allgatherv(numbers, 8, CABLEWAY_BYTE, result, counts, NULL, CABLEWAY_BYTE, everyone),
          CABLEWAY_ERR_ARGUMENT, "more than memory can hold");
    /* Nothing was sent by any of these. */
    CALL(cableway_barrier(everyone));
    CALL(cableway_allreduce(numbers, result, 4, CABLEWAY_DOUBLE, CABLEWAY_SUM, everyone));
    CHECK(2 == result[0] && 8 == result[3]);
}

static void others(void)
{
    cableway_datatype *type = NULL;
    cableway_world *second = NULL;
    cableway_device_buffer *buffer = NULL;
    void *address;
    uint64_t value;
    int64_t lengths[2] = {1, 1};

    FAILS(cableway_type_vector(-1, 1, 1, CABLEWAY_BYTE, &type), CABLEWAY_ERR_DATATYPE, "negative");
    FAILS(cableway_type_contiguous(1, CABLEWAY_BYTE, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the datatype");
    FAILS(cableway_type_indexed(2, lengths, NULL, CABLEWAY_BYTE, &type), CABLEWAY_ERR_ARGUMENT,
          "the array of displacements");
    CALL(cableway_type_contiguous(INT64_MAX / 2, CABLEWAY_BYTE, &type));
    FAILS(cableway_send(&byte, 8, type, 0, 0, everyone), CABLEWAY_ERR_DATATYPE, "more than memory can hold");
    CALL(cableway_type_free(&type));

    FAILS(cableway_counter(world, "sends", &value), CABLEWAY_ERR_ARGUMENT, "there is no counter 'sends'; they are");
    FAILS(cableway_counter(world, NULL, &value), CABLEWAY_ERR_ARGUMENT, "the name of the counter");
    FAILS(cableway_device_allocate(world, 0, 9, 1, &buffer, &address), CABLEWAY_ERR_ARGUMENT, "no kind of memory 9");
    FAILS(cableway_device_allocate(world, -1, 1, 1, &buffer, &address), CABLEWAY_ERR_ARGUMENT, "no device -1");
    /* A process joins once. */
    FAILS(cableway_init(NULL, 0, &second), CABLEWAY_ERR_JOB, "");
    CHECK(NULL == second);
}

static void parameters(void)
{
    cableway_parameter unknown = {"btl_sm_eager_limits", "8K"}, wrong = {"progress_thread", "perhaps"};
    cableway_parameter nameless = {NULL, "8K"}, no_text = {"btl", "\xff"};

    FAILS(cableway_init(&unknown, 1, &world), CABLEWAY_ERR_PARAMETER, "did you mean 'btl_sm_eager_limit'?");
    FAILS(cableway_init(&wrong, 1, &world), CABLEWAY_ERR_PARAMETER, "'progress_thread' cannot be 'perhaps'");
    FAILS(cableway_init(&nameless, 1, &world), CABLEWAY_ERR_ARGUMENT, "the name of a parameter");
    FAILS(cableway_init(&no_text, 1, &world), CABLEWAY_ERR_ARGUMENT, "no UTF-8");
    FAILS(cableway_init(NULL, 1, &world), CABLEWAY_ERR_ARGUMENT, "the array of parameters");
    FAILS(cableway_init(NULL, 0, NULL), CABLEWAY_ERR_ARGUMENT, "the place for the world");
    CHECK(NULL == world);
}

/* Communicators that outlive the world send nothing any more. */
static void afterwards(cableway_communicator *copy)
{
    FAILS(cableway_send(&byte, 1, CABLEWAY_BYTE, rank, 0, copy), CABLEWAY_ERR_FINALIZED, "finalized");
    CALL(cableway_finalize(&world));
    CALL(cableway_communicator_free(&copy));
}

int main(void)
{
    cableway_communicator *copy;
    parameters();
    begin();
    messages();
    handles();
    collectives();
    others();
    CALL(cableway_dup(everyone, &copy));
    end();
    afterwards(copy);
    return 0;
}
