/* The data of movements: which part of a buffer goes where. */
#ifndef MOVED_H
#define MOVED_H

#include "job.h"

/* Returns how many units go from one process to another, or to all. Some parts are empty. */
static int units(const struct job *job, int from, int to)
{
    const struct shape *shape = &job->shape;
    if (!is_varied(shape->call)) {
        return shape->count;
    }
    bool both_ways = shape->in_place && is_alltoall(shape->call);
    if (both_ways && from > to) {
        int other = from; /* in place, both directions have the same length */
        from = to;
        to = other;
    }
    uint64_t hash = mix(shape->salt, (uint64_t) from * 1000 + (uint64_t) to, 61);
    if (both_ways && BLOCKING != shape->form) {
        /* Open MPI 4.1's MPI_Ialltoallv in place gives later non-blocking operations other tags on a process that has
         * nothing to send than on one that has. */
        return 1 + shape->count + (int) (hash / 5 % 7);
    }
    return 0 == hash % 5 ? 0 : shape->count + (int) (hash / 5 % 7);
}

/* Lays out a side with a part for each of these processes. Parts of varied length lie out of order, with gaps. Returns
 * the bytes that they span. */
static size_t arrange(struct job *job, struct side *side, const struct view *view, const struct view *alternative,
                      int parts, const int *lengths)
{
    const bool varied = is_varied(job->shape.call);
    const bool wide = ALLTOALLW == job->shape.call || NEIGHBOR_ALLTOALLW == job->shape.call;
    const int turn = varied && 0 < parts ? (int) (mix(job->shape.salt, 7, 67) % (uint64_t) parts) : 0;
    size_t bytes = 0;
    int elements = 0;
    side->view = view;
    side->parts = parts;
    side->count = job->shape.count * view->per_unit;
    for (int step = 0; step < parts; step++) {
        const int part = varied ? (2 * parts - 1 - step + turn) % parts : step;
        const struct view *own = wide && part % 2 ? alternative : view;
        side->counts[part] = lengths[part] * own->per_unit;
        side->types[part] = own->type;
        side->views[part] = own;
        side->places[part] = elements;
        side->wide[part] = wide ? (MPI_Aint) bytes : elements * own->extent;
        side->bytes_from[part] = (int) side->wide[part];
        elements += side->counts[part] + varied;
        bytes += (size_t) (side->counts[part] + varied) * (size_t) own->extent;
    }
    return bytes;
}

/* The processes whose parts this one sends, or receives, and how many units each has. */
struct parts {
    int count;
    int from[MOST], to[MOST], units[MOST];
};

static void add_part(const struct job *job, struct parts *parts, int from, int to)
{
    parts->from[parts->count] = from;
    parts->to[parts->count] = to;
    /* No part comes from outside the topology, but its place has a length. */
    parts->units[parts->count] = units(job, from, to);
    parts->count++;
}

static struct parts sent(const struct job *job)
{
    const struct group *group = job->group;
    const enum call call = job->shape.call;
    const int me = my_number(job);
    struct parts parts = {0};
    if (is_neighbor(call) && is_alltoall(call)) {
        for (int i = 0; i < group->targets; i++) {
            add_part(job, &parts, me, group->target[i]);
        }
    } else if (is_alltoall(call) || (is_scatter(call) && job->is_root)) {
        for (int i = 0; i < group->partners; i++) {
            add_part(job, &parts, me, group->their_base + i);
        }
    } else if (!is_scatter(call) && BCAST != call && !(group->inter && job->is_root) && !job->is_outside) {
        add_part(job, &parts, me, TO_ALL);
    }
    return parts;
}

static struct parts received(const struct job *job)
{
    const struct group *group = job->group;
    const enum call call = job->shape.call;
    const int me = my_number(job);
    struct parts parts = {0};
    if (is_neighbor(call)) {
        for (int i = 0; i < group->sources; i++) {
            add_part(job, &parts, group->source[i], is_alltoall(call) ? me : TO_ALL);
        }
    } else if (BCAST == call) {
        if (!job->is_outside) {
            add_part(job, &parts, root_number(job), TO_ALL);
        }
    } else if (is_scatter(call)) {
        if (!job->is_outside && !(group->inter && job->is_root)) {
            add_part(job, &parts, root_number(job), me);
        }
    } else if (!is_gather(call) || job->is_root) {
        for (int i = 0; i < group->partners; i++) {
            add_part(job, &parts, group->their_base + i, is_alltoall(call) ? me : TO_ALL);
        }
    }
    return parts;
}

static void arrange_movement(struct job *job)
{
    const struct shape *shape = &job->shape;
    const struct layout *layout = shape->layout;
    const struct parts out = sent(job), in = received(job);
    const struct view *view = &layout->received, *other = &layout->sent;
    if (shape->in_place) {
        other = view;
    } else if (BCAST == shape->call && job->is_root) {
        view = &layout->sent; /* a broadcast has one buffer only */
    }
    size_t sends = arrange(job, &job->out, other, view, out.count, out.units);
    size_t receives = arrange(job, &job->in, view, other, in.count, in.units);
    /* Where a call has one length for what is a single part here. */
    if (1 == out.count && !is_alltoall(shape->call) && !is_scatter(shape->call)) {
        job->out.count = job->out.counts[0];
    }
    if (SCATTERV == shape->call && 1 == in.count) {
        job->in.count = job->in.counts[0];
    }
    memory_use(&job->send, on_device(job, true), shape->misaligned ? (size_t) other->extent : 0, sends, SEND_GAP);
    memory_use(&job->recv, on_device(job, false), shape->misaligned ? (size_t) view->extent : 0, receives, RECV_GAP);
}

static void write_parts(const struct job *job, const struct side *side, const struct parts *parts, unsigned char *image)
{
    for (int i = 0; i < parts->count; i++) {
        if (MPI_PROC_NULL != parts->from[i] && MPI_PROC_NULL != parts->to[i]) {
            write_part(image + side->wide[i], side->views[i], side->counts[i], data_salt(job), parts->from[i],
                       parts->to[i]);
        }
    }
}

static void fill_movement(struct job *job)
{
    const enum call call = job->shape.call;
    const struct parts out = sent(job), in = received(job);
    unsigned char *before = data(&job->recv, job->recv.before), *want = data(&job->recv, job->recv.want);
    const bool in_place = job->shape.in_place && (!has_root(call) || job->is_root);
    memset(job->send.before, SEND_GAP, memory_whole(&job->send));
    memset(job->recv.before, RECV_GAP, memory_whole(&job->recv));
    write_parts(job, &job->out, &out, data(&job->send, job->send.before));
    memcpy(job->send.want, job->send.before, memory_whole(&job->send));
    if (in_place && is_alltoall(call)) {
        struct parts own = in;
        for (int i = 0; i < own.count; i++) {
            own.to[i] = in.from[i], own.from[i] = in.to[i];
        }
        write_parts(job, &job->in, &own, before);
    } else if (in_place && !is_scatter(call)) {
        const int me = job->group->me;
        write_part(before + job->in.wide[me], job->in.views[me], job->in.counts[me], data_salt(job), my_number(job), TO_ALL);
    } else if (BCAST == call && job->is_root) {
        write_parts(job, &job->in, &in, before);
    }
    memcpy(job->recv.want, job->recv.before, memory_whole(&job->recv));
    if (!(in_place && is_scatter(call))) {
        write_parts(job, &job->in, &in, want);
    }
}

#endif
