/* Communicators with neighbours. */
#ifndef GRAPHS_H
#define GRAPHS_H

#include "job.h"

/* A grid, whose border has no neighbours. */
static inline struct group make_grid(MPI_Comm comm)
{
    int size, dimensions[2] = {0, 0};
    const int periodic[2] = {0, 0};
    MPI_Comm grid;
    MPI_Comm_size(comm, &size);
    MPI_Dims_create(size, 2, dimensions);
    MPI_Cart_create(comm, 2, dimensions, periodic, 0, &grid);
    struct group group = group_of(grid);
    group.is_graph = true;
    group.sources = group.targets = 4;
    for (int i = 0; i < 2; i++) {
        MPI_Cart_shift(grid, i, 1, &group.source[2 * i], &group.source[2 * i + 1]);
    }
    memcpy(group.target, group.source, sizeof group.target);
    return group;
}

/* A graph with about half of all edges, to the process itself, too. Some processes may have none. */
static inline struct group make_graph(MPI_Comm comm, uint64_t salt)
{
    struct group group = group_of(comm);
    const int me = group.me, weights[MOST] = {0};
    group.is_graph = true;
    for (int i = 0; i < group.partners; i++) {
        const int other = (int) (((uint64_t) i + salt) % (uint64_t) group.partners);
        if (mix(salt, (uint64_t) other, (uint64_t) me) % 2) {
            group.source[group.sources++] = other;
        }
        if (mix(salt, (uint64_t) me, (uint64_t) other) % 2) {
            group.target[group.targets++] = other;
        }
    }
    MPI_Dist_graph_create_adjacent(comm, group.sources, group.source, weights, group.targets, group.target,
                                   weights, MPI_INFO_NULL, 0, &group.comm);
    return group;
}

#endif
