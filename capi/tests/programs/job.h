/* Shared by the test programs: the job, and checks that print what does not hold and end the process. */
#ifndef JOB_H
#define JOB_H

#include <cableway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Calls a function that must succeed. */
#define CALL(call)                                                                                                    \
    do {                                                                                                              \
        int code_ = (call);                                                                                           \
        if (CABLEWAY_SUCCESS != code_) {                                                                              \
            fprintf(stderr, "%s:%d: %s: %s: %s\n", __FILE__, __LINE__, #call, cableway_error_string(code_),           \
                    cableway_last_error());                                                                           \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* Calls a function that must fail with this code and a text that contains the given one. */
#define FAILS(call, code, text)                                                                                       \
    do {                                                                                                              \
        int code_ = (call);                                                                                           \
        if ((code) != code_ || NULL == strstr(cableway_last_error(), (text))) {                                       \
            fprintf(stderr, "%s:%d: %s: %d (%s) instead of %d: %s\n", __FILE__, __LINE__, #call, code_,               \
                    cableway_error_string(code_), (int) (code), cableway_last_error());                               \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                            \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

#define CHECK_EQUAL(one, other)                                                                                       \
    do {                                                                                                              \
        long long one_ = (long long) (one), other_ = (long long) (other);                                             \
        if (one_ != other_) {                                                                                         \
            fprintf(stderr, "%s:%d: %s is %lld, %s is %lld\n", __FILE__, __LINE__, #one, one_, #other, other_);       \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

static cableway_world *world;
static cableway_communicator *everyone;
static int rank, size;

/* Joins the job. */
static inline void begin(void)
{
    CALL(cableway_init(NULL, 0, &world));
    CALL(cableway_world_communicator(world, &everyone));
    CALL(cableway_rank(everyone, &rank));
    CALL(cableway_size(everyone, &size));
}

/* Leaves the job, after all have come here. The test counts the lines. */
static inline void end(void)
{
    CALL(cableway_barrier(everyone));
    CALL(cableway_finalize(&world));
    CHECK(NULL == world);
    printf("done\n");
}

/* A byte that depends on its position and on who made it. */
static inline unsigned char byte_of(int owner, size_t at)
{
    return (unsigned char) (31 * owner + 7 * (int) (at % 1021) + 1);
}

static inline void fill(unsigned char *bytes, size_t len, int owner)
{
    size_t at;
    for (at = 0; at < len; at++) {
        bytes[at] = byte_of(owner, at);
    }
}

static inline int holds(const unsigned char *bytes, size_t len, int owner)
{
    size_t at;
    for (at = 0; at < len; at++) {
        if (bytes[at] != byte_of(owner, at)) {
            return 0;
        }
    }
    return 1;
}

static inline void *allocate(size_t bytes)
{
    void *memory = malloc(bytes > 0 ? bytes : 1);
    CHECK(NULL != memory);
    return memory;
}

#endif
