/* Stream objects, made of an info. */
#include "streams.h"

#include "opal/util/output.h"

#include <stdlib.h>

/* A value of the info `value`: bytes in the order of memory, two hexadecimal digits each. */
enum { DIGITS = 2, LONGEST = MPI_MAX_INFO_VAL / DIGITS };

int cableway_mpix_info_set_hex(void *info, const char *key, const void *value, int size)
{
    static const char digits[] = "0123456789abcdef";
    char text[DIGITS * LONGEST + 1];
    const unsigned char *bytes = value;
    if (0 > size || LONGEST <= size || (0 != size && NULL == value)) {
        return cableway_mpix_failed(NULL, MPI_ERR_INFO_VALUE, "MPIX_Info_set_hex");
    }
    for (int i = 0; i < size; i++) {
        text[DIGITS * i] = digits[bytes[i] >> 4];
        text[DIGITS * i + 1] = digits[bytes[i] & 15];
    }
    text[DIGITS * size] = '\0';
    /* It checks the info and the key, and calls the error handler. */
    return PMPI_Info_set(info, key, text);
}

static int digit(char character)
{
    return '0' <= character && character <= '9'   ? character - '0'
           : 'a' <= character && character <= 'f' ? character - 'a' + 10
           : 'A' <= character && character <= 'F' ? character - 'A' + 10
                                                  : -1;
}

static bool decode(const char *text, void *value, size_t size)
{
    if (DIGITS * size != strlen(text)) {
        return false;
    }
    for (size_t i = 0; i < size; i++) {
        const int high = digit(text[DIGITS * i]), low = digit(text[DIGITS * i + 1]);
        if (0 > high || 0 > low) {
            return false;
        }
        ((unsigned char *) value)[i] = (unsigned char) (high << 4 | low);
    }
    return true;
}

/* Reads what an info says of a stream. Returns MPI_SUCCESS, and -1 as the kind of a stream of no device. */
static int read_info(MPI_Info info, int *kind, uintptr_t *handle)
{
    char text[MPI_MAX_INFO_VAL + 1];
    int found = 0, rc;
    *kind = -1;
    if (MPI_INFO_NULL == info) {
        return MPI_SUCCESS;
    }
    rc = PMPI_Info_get(info, "type", MPI_MAX_INFO_VAL, text, &found);
    if (MPI_SUCCESS != rc || !found) {
        return rc;
    }
    if (0 == strcmp(text, "cudaStream_t")) {
        *kind = CABLEWAY_CUDA_STREAM;
    } else if (0 == strcmp(text, "hipStream_t")) {
        *kind = CABLEWAY_HIP_STREAM;
    } else {
        opal_output(0, "cableway: MPIX_Stream_create: the info has type %s: use cudaStream_t or hipStream_t", text);
        return MPI_ERR_INFO_VALUE;
    }
    rc = PMPI_Info_get(info, "value", MPI_MAX_INFO_VAL, text, &found);
    if (MPI_SUCCESS != rc) {
        return rc;
    }
    if (!found) {
        opal_output(0, "cableway: MPIX_Stream_create: the info has no value: set the stream by MPIX_Info_set_hex");
        return MPI_ERR_INFO_NOKEY;
    }
    if (!decode(text, handle, sizeof *handle)) {
        opal_output(0, "cableway: MPIX_Stream_create: the info has value %s, which is no stream of %zu bytes: set it by "
                       "MPIX_Info_set_hex", text, sizeof *handle);
        return MPI_ERR_INFO_VALUE;
    }
    return MPI_SUCCESS;
}

int cableway_mpix_stream_create(void *info, MPIX_Stream *stream)
{
    static const char call[] = "MPIX_Stream_create";
    uintptr_t handle = 0;
    int kind, rc;
    MPIX_Stream new;
    if (NULL == stream || NULL == info) {
        return cableway_mpix_failed(NULL, NULL == stream ? MPI_ERR_ARG : MPI_ERR_INFO, call);
    }
    rc = read_info(info, &kind, &handle);
    if (MPI_SUCCESS != rc) {
        return cableway_mpix_failed(NULL, rc, call);
    }
    if (!opal_using_threads() && shim_is_completing()) {
        opal_output(0, "cableway: %s: the first stream cannot be created within a callback of MPI", call);
        return cableway_mpix_failed(NULL, MPI_ERR_OTHER, call);
    }
    new = calloc(1, sizeof *new);
    if (NULL == new) {
        return cableway_mpix_failed(NULL, MPI_ERR_NO_MEM, call);
    }
    new->references = 1;
    if (0 <= kind) {
        rc = cableway_stream_create(kind, handle, &new->engine);
        if (CABLEWAY_OK != rc) {
            free(new);
            return cableway_mpix_failed(NULL, cableway_error(rc), call);
        }
    }
    *stream = new;
    return MPI_SUCCESS;
}

void cableway_mpix_stream_release(MPIX_Stream stream)
{
    if (NULL != stream && 0 == opal_atomic_add_fetch_32(&stream->references, -1)) {
        if (NULL != stream->engine) {
            cableway_stream_free(stream->engine);
        }
        free(stream);
    }
}

int cableway_mpix_stream_free(MPIX_Stream *stream)
{
    static const char call[] = "MPIX_Stream_free";
    if (NULL == stream || NULL == *stream) {
        return cableway_mpix_failed(NULL, MPI_ERR_ARG, call);
    }
    cableway_mpix_free_groups();
    if (0 != (*stream)->communicators) {
        opal_output(0, "cableway: %s: the stream is attached to %d communicators: free them first", call,
                    (int) (*stream)->communicators);
        return cableway_mpix_failed(NULL, MPI_ERR_OTHER, call);
    }
    /* Requests may outlive it. But the program may destroy its stream now. */
    if (NULL != (*stream)->engine) {
        cableway_stream_retire((*stream)->engine);
    }
    cableway_mpix_stream_release(*stream);
    *stream = NULL;
    return MPI_SUCCESS;
}
