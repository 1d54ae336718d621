/* Decides who performs the collective calls of a communicator. All members must take the same decision at the same call.
 *
 * Every member counts the calls on the communicator, which all members make in the same order. Before calls 1, 2, 4 and so
 * on the members look: they complete the MPI_Iallreduce of the last look, which says whether any of them had passed device
 * memory by then, and start the next one. If one had, they join: they start their engines, exchange addresses, and Cableway
 * performs this call and all later ones. Until then each member with device memory has its own host copies.
 *
 * So a member waits at call 2n until all have begun call n, and for nobody else. */
#include "members.h"

#include <pthread.h>
#include <stdlib.h>

/* The largest distance between two looks, in calls. */
enum { LONGEST = 64 };

bool cableway_active;

static int key = MPI_KEYVAL_INVALID;
static struct members *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void settle(struct members *members)
{
    if (MPI_REQUEST_NULL != members->request) {
        PMPI_Wait(&members->request, MPI_STATUS_IGNORE);
    }
}

/* Called when the program has freed the communicator. */
static int forget(MPI_Comm comm, int keyval, void *value, void *extra)
{
    struct members *members = value;
    (void) comm, (void) keyval, (void) extra;
    pthread_mutex_lock(&lock);
    *members->link = members->next;
    if (NULL != members->next) {
        members->next->link = members->link;
    }
    pthread_mutex_unlock(&lock);
    if (NULL != members->group) {
        cableway_group_free(members->group);
    }
    free(members);
    return MPI_SUCCESS;
}

void members_begin(void)
{
    struct cableway_hello mine, *hellos;
    char processor[MPI_MAX_PROCESSOR_NAME] = "";
    int rank, size, length;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &size);
    PMPI_Get_processor_name(processor, &length);
    cableway_prepare(&mine, processor, rank);
    hellos = malloc(sizeof *hellos * (size_t) size);
    if (NULL == hellos) {
        PMPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, hellos, sizeof mine, MPI_BYTE, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) {
        cableway_active |= 0 != hellos[i].expects;
    }
    if (cableway_active) {
        cableway_job(hellos, rank, size);
        PMPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &key, NULL);
    }
    free(hellos);
}

void members_end(void)
{
    if (!cableway_active) {
        return;
    }
    cableway_active = false;
    /* All members have begun the same exchanges, in the same order on each communicator. */
    pthread_mutex_lock(&lock);
    for (struct members *members = all; NULL != members; members = members->next) {
        settle(members);
    }
    pthread_mutex_unlock(&lock);
    cableway_stop();
}

static struct members *find(MPI_Comm comm)
{
    void *value;
    int found = 0;
    PMPI_Comm_get_attr(comm, key, &value, &found);
    return found ? value : NULL;
}

static struct members *make(MPI_Comm comm)
{
    struct members *members = calloc(1, sizeof *members);
    int inter = 0;
    if (NULL == members) {
        return NULL;
    }
    PMPI_Comm_test_inter(comm, &inter);
    members->comm = comm;
    members->inter = inter;
    members->request = MPI_REQUEST_NULL;
    members->look = inter || CABLEWAY_MPI == cableway_performer() ? 0 : 1;
    PMPI_Comm_rank(comm, &members->rank);
    PMPI_Comm_size(comm, &members->local_size);
    members->size = members->local_size;
    if (inter) {
        PMPI_Comm_remote_size(comm, &members->size);
    }
    pthread_mutex_lock(&lock);
    members->next = all;
    members->link = &all;
    if (NULL != all) {
        all->link = &members->next;
    }
    all = members;
    pthread_mutex_unlock(&lock);
    if (MPI_SUCCESS != PMPI_Comm_set_attr(comm, key, members)) {
        forget(comm, key, members, NULL);
        return NULL;
    }
    return members;
}

struct members *members_of(MPI_Comm comm)
{
    if (MPI_COMM_NULL == comm) {
        return NULL;
    }
    struct members *members = find(comm);
    return NULL != members ? members : make(comm);
}

void members_settle(MPI_Comm comm)
{
    struct members *members = cableway_active && MPI_COMM_NULL != comm ? find(comm) : NULL;
    if (NULL != members) {
        settle(members);
    }
}

/* --- joining --- */

/* What the members know of each other while they join. */
struct joining {
    struct cableway_card *cards;
    int *processes;        /* the members in MPI_COMM_WORLD */
    int *ranks;            /* 0, 1, 2 ... */
    int *lengths, *places; /* of the addresses */
    char *addresses;
};

static bool allocate(struct joining *joining, int size)
{
    size_t count = (size_t) size;
    joining->cards = malloc(count * sizeof *joining->cards);
    joining->processes = malloc(count * sizeof(int));
    joining->ranks = malloc(count * sizeof(int));
    joining->lengths = malloc(count * sizeof(int));
    joining->places = malloc(count * sizeof(int));
    return NULL != joining->cards && NULL != joining->processes && NULL != joining->ranks && NULL != joining->lengths &&
           NULL != joining->places;
}

static void discard(struct joining *joining)
{
    free(joining->cards);
    free(joining->processes);
    free(joining->ranks);
    free(joining->lengths);
    free(joining->places);
    free(joining->addresses);
}

/* Finds the members in MPI_COMM_WORLD. Processes of other jobs are not there. */
static bool find_processes(const struct members *members, struct joining *joining)
{
    MPI_Group here, world;
    bool found = true;
    for (int i = 0; i < members->size; i++) {
        joining->ranks[i] = i;
    }
    PMPI_Comm_group(members->comm, &here);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_translate_ranks(here, members->size, joining->ranks, world, joining->processes);
    PMPI_Group_free(&here);
    PMPI_Group_free(&world);
    for (int i = 0; i < members->size; i++) {
        found = found && MPI_UNDEFINED != joining->processes[i];
    }
    return found;
}

/* Returns whether all members are ready, and fills in what all know then. */
static bool exchange_cards(struct members *members, struct joining *joining, bool ready)
{
    struct cableway_card mine = {0};
    long place = 0;
    if (ready) {
        cableway_start(&mine);
    }
    mine.device = members->device;
    if (MPI_SUCCESS != PMPI_Allgather(&mine, sizeof mine, MPI_BYTE, joining->cards, sizeof mine, MPI_BYTE, members->comm)) {
        return false;
    }
    for (int i = 0; i < members->size; i++) {
        const struct cableway_card *card = &joining->cards[i];
        ready = ready && 1 == card->ready && card->length <= INT32_MAX - (uint64_t) place;
        joining->lengths[i] = ready ? (int) card->length : 0;
        joining->places[i] = (int) place;
        place += joining->lengths[i];
        for (int other = 0; other < i; other++) {
            members->shared |= 0 != card->device && card->device == joining->cards[other].device;
        }
    }
    return ready && 0 != joining->cards[0].context;
}

static bool exchange_addresses(struct members *members, struct joining *joining)
{
    const int last = members->size - 1;
    const int mine = joining->lengths[members->rank];
    bool met = true;
    /* A member without memory cannot leave the others alone in this exchange. */
    joining->addresses = malloc((size_t) joining->places[last] + (size_t) joining->lengths[last] + 1);
    if (NULL == joining->addresses) {
        PMPI_Abort(members->comm, MPI_ERR_NO_MEM);
        return false;
    }
    if (MPI_SUCCESS != PMPI_Allgatherv(cableway_addresses(), mine, MPI_BYTE, joining->addresses, joining->lengths,
                                       joining->places, MPI_BYTE, members->comm)) {
        return false;
    }
    for (int i = 0; i < members->size; i++) {
        met = met && cableway_meet(joining->processes[i], joining->addresses + joining->places[i], (size_t) joining->lengths[i]);
    }
    return met;
}

/* Has Cableway perform the calls from now on, if every member can. Otherwise MPI performs them for ever. */
static void join(struct members *members)
{
    struct joining joining = {0};
    int ready = 0, all_ready = 0;
    members->look = 0;
    if (!allocate(&joining, members->size)) {
        PMPI_Abort(members->comm, MPI_ERR_NO_MEM);
        return;
    }
    if (exchange_cards(members, &joining, find_processes(members, &joining))) {
        if (exchange_addresses(members, &joining)) {
            members->group =
                cableway_group_new(joining.cards[0].context, joining.processes, members->size, members->rank);
        }
        ready = NULL != members->group;
        /* Nobody sends before all have the addresses. */
        PMPI_Allreduce(&ready, &all_ready, 1, MPI_INT, MPI_MIN, members->comm);
        if (!all_ready && NULL != members->group) {
            cableway_group_free(members->group);
            members->group = NULL;
        }
        if (all_ready && 0 == members->rank) {
            cableway_took_over(members->size, members->shared);
        }
    }
    discard(&joining);
}

void members_look(struct members *members)
{
    if (CABLEWAY_ALWAYS == cableway_performer()) {
        join(members);
        return;
    }
    settle(members);
    if (members->any) {
        join(members);
        return;
    }
    members->mine = 0 != members->device;
    if (MPI_SUCCESS
        != PMPI_Iallreduce(&members->mine, &members->any, 1, MPI_INT, MPI_MAX, members->comm, &members->request)) {
        members->request = MPI_REQUEST_NULL;
    }
    members->look = members->calls + (members->calls < LONGEST ? members->calls : LONGEST);
}
