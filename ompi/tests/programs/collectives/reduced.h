/* The data of reductions: inputs that each process computes for all, and the result that follows. */
#ifndef REDUCED_H
#define REDUCED_H

#include "job.h"

/* Gap bytes between the members of results that did not keep their contents. MPI does not define them. */
static long changed_gaps;

/* Returns how many elements of a result a process of the own group gets. Two groups get as many in all. */
static int scattered_count(const struct job *job, int process)
{
    const struct shape *shape = &job->shape;
    const bool varied = REDUCE_SCATTER == shape->call;
    if (job->group->inter) {
        const int last = job->group->size - 1, share = shape->count * job->group->partners;
        return varied && 0 < last ? share + (0 == process) * share / 2 - (last == process) * (share / 2) : share;
    }
    int count = shape->count + (int) (mix(shape->salt, (uint64_t) process, 41) % 4) - 1;
    bool is_empty = 0 == mix(shape->salt, (uint64_t) process, 43) % 5 || count < 0;
    return varied ? is_empty ? 0 : count : shape->count;
}

static void arrange_reduction(struct job *job)
{
    const struct shape *shape = &job->shape;
    const size_t size = shape->type->kind->size;
    const int me = job->group->me;
    int elements = shape->count;
    job->checked_from = 0;
    job->in.count = shape->count;
    if (REDUCE_SCATTER == shape->call || REDUCE_SCATTER_BLOCK == shape->call) {
        elements = 0;
        for (int i = 0; i < job->group->size; i++) {
            job->in.counts[i] = scattered_count(job, i);
            job->checked_from += i < me ? job->in.counts[i] : 0;
            elements += job->in.counts[i];
        }
        job->in.count = job->in.counts[me];
    }
    job->expected = job->in.count;
    job->out.count = elements;
    /* In place, the receive buffer holds the input. */
    int received = shape->in_place ? elements : job->expected;
    size_t shift = shape->misaligned ? size : 0;
    memory_use(&job->send, on_device(job, true), shift, (size_t) elements * size, SEND_GAP);
    memory_use(&job->recv, on_device(job, false), shift, (size_t) received * size, RECV_GAP);
}

static void make_input(const struct job *job, int process, int first, int count, unsigned char *to)
{
    const struct kind *kind = job->shape.type->kind;
    const uint64_t salt = mix(data_salt(job), (uint64_t) process, 47);
    for (int i = 0; i < count; i++) {
        kind->make(job->shape.op, mix(salt, (uint64_t) (first + i), 53), to + (size_t) i * kind->size);
    }
}

/* Folds the inputs of these processes, in their order. */
static void make_result(const struct job *job, int from, int to, unsigned char *into)
{
    const struct kind *kind = job->shape.type->kind;
    unsigned char element[64] __attribute__((aligned(16)));
    if (from == to) {
        return;
    }
    make_input(job, from, job->checked_from, job->expected, into);
    for (int process = from + 1; process < to; process++) {
        const uint64_t salt = mix(data_salt(job), (uint64_t) process, 47);
        for (int i = 0; i < job->expected; i++) {
            kind->make(job->shape.op, mix(salt, (uint64_t) (job->checked_from + i), 53), element);
            kind->fold(job->shape.op, into + (size_t) i * kind->size, element);
        }
    }
}

static void fill_reduction(struct job *job)
{
    const enum call call = job->shape.call;
    const int me = my_number(job), first = job->group->their_base;
    unsigned char *result = data(&job->recv, job->recv.want);
    bool in_place = job->shape.in_place && (REDUCE != call || job->is_root);
    memset(job->recv.before, RECV_GAP, memory_whole(&job->recv));
    memset(job->recv.want, RECV_GAP, memory_whole(&job->recv));
    memset(job->send.before, SEND_GAP, memory_whole(&job->send));
    if (REDUCE_LOCAL == call) {
        make_input(job, first, 0, job->expected, data(&job->send, job->send.before));
        make_input(job, first + 1, 0, job->expected, data(&job->recv, job->recv.before));
        make_result(job, first, first + 2, result);
    } else {
        struct memory *input = in_place ? &job->recv : &job->send;
        make_input(job, me, 0, job->out.count, data(input, input->before));
        if (in_place) {
            memcpy(job->recv.want, job->recv.before, memory_whole(&job->recv));
        }
        if (SCAN == call || EXSCAN == call) {
            make_result(job, first, me + (SCAN == call), result);
        } else if (REDUCE != call || job->is_root) {
            make_result(job, first, first + job->group->partners, result);
        }
    }
    memcpy(job->send.want, job->send.before, memory_whole(&job->send));
}

/* Compares a receive buffer that is not equal byte by byte. Sets `at` to the first byte that is wrong. */
static bool result_differs(struct job *job, long *at)
{
    const struct memory *recv = &job->recv;
    const struct kind *kind = job->shape.type->kind;
    const size_t begin = GUARD + recv->shift, whole = memory_whole(recv);
    size_t end = begin + (size_t) job->expected * kind->size;
    for (size_t i = 0; i < whole; i++) {
        if ((i < begin || i >= begin + recv->bytes) && recv->got[i] != recv->want[i]) {
            *at = (long) i;
            return true;
        }
    }
    if (EXSCAN == job->shape.call && 0 == job->group->me) {
        return false; /* undefined */
    }
    for (size_t i = begin; i < end; i += kind->size) {
        for (size_t byte = 0; byte < kind->size; byte++) {
            bool is_gap = kind->gaps >> byte & 1;
            if (is_gap && recv->got[i + byte] != recv->want[i + byte]) {
                __atomic_fetch_add(&changed_gaps, 1, __ATOMIC_RELAXED);
            }
        }
        if (!kind->same(recv->got + i, recv->want + i)) {
            for (*at = (long) i; recv->got[*at] == recv->want[*at]; ++*at) {
            }
            return true;
        }
    }
    /* What lies behind the result of an operation in place is not defined. */
    return false;
}

#endif
