/* Draws collectives. All processes of a communicator draw the same with the same salt. */
#ifndef DRAW_H
#define DRAW_H

#include "job.h"

static uint64_t pick(uint64_t salt, int what, uint64_t choices)
{
    return mix(salt, (uint64_t) what, 71) % choices;
}

static inline enum call draw_call(uint64_t salt, const struct group *group)
{
    if (group->is_graph) {
        return (enum call) (NEIGHBOR_ALLGATHER + pick(salt, 1, NEIGHBOR_ALLTOALLW - NEIGHBOR_ALLGATHER + 1));
    }
    const enum call call = (enum call) pick(salt, 1, CALLS);
    return is_neighbor(call) ? ALLREDUCE : call;
}

/* Most are short, some have a few thousand units, few are large. */
static int draw_count(uint64_t salt)
{
    const int most[] = {2, 10, 100, 100, 1100, 1100, 5000, 40000};
    return (int) pick(salt, 2, (uint64_t) most[pick(salt, 3, 8)]);
}

static void draw_type(struct shape *shape)
{
    const struct type *type;
    int op;
    for (int i = 0; 0 == (type = &types[pick(shape->salt, 4 + 64 * i, (uint64_t) type_count)])->ops; i++) {
    }
    for (op = (int) pick(shape->salt, 5, OPS); !(type->ops & BIT(op)); op = (op + 1) % OPS) {
    }
    shape->type = type;
    shape->op = (enum op) op;
}

static inline struct shape draw_shape(uint64_t salt, const struct group *group, enum call call)
{
    struct shape shape = {.call = call, .salt = salt};
    shape.form = REDUCE_LOCAL == call ? BLOCKING : (enum form) pick(salt, 6, FORMS);
    shape.placement = pick(salt, 7, 2) ? ANYWHERE : (enum placement) pick(salt, 8, PLACEMENTS);
    shape.in_place = can_be_in_place(call) && 0 == pick(salt, 9, 3);
    shape.misaligned = 0 == pick(salt, 10, 3);
    shape.count = draw_count(salt);
    shape.root = (int) pick(salt, 11, (uint64_t) group->partners);
    shape.first_has_root = true;
    if (is_reduction(call)) {
        draw_type(&shape);
    } else {
        shape.layout = &layouts[pick(salt, 12, LAYOUTS)];
    }
    return shape;
}

#endif
