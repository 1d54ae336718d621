/*
 * Every type of elements with every operation in every reduction, apart and in place, blocking and nonblocking, on memory
 * of every kind, against a sequential reference. The values are small whole numbers, so every type holds every result
 * exactly.
 */
#include "elements.h"
#include "forms.h"
#include "memory.h"

enum { COUNT = 5, MOST_RANKS = 4, MOST = COUNT * MOST_RANKS };

enum function { ALLREDUCE, REDUCE, REDUCE_SCATTER_BLOCK, REDUCE_SCATTER, SCAN, EXSCAN, FUNCTIONS };

static struct memory input, output;
/* What each rank gets of REDUCE_SCATTER: one element more than the others, or one less. */
static size_t counts[MOST_RANKS];
static long checked;

/* What a rank contributes as element `at`. */
static struct number contribution(int from, int at)
{
    struct number number;
    number.first = (from + at) % 4;
    number.second = (2 * from + 3 * at) % 4;
    return number;
}

/* Folds the contributions of ranks `from` to `to`. */
static struct number folded(const struct element *element, int operation, int from, int to, int at)
{
    struct number number = contribution(from, at);
    for (from++; from <= to; from++) {
        number = combined(element, operation, number, contribution(from, at));
    }
    return number;
}

static int call(enum function function, const void *send, int element, int operation)
{
    void *receive = output.address;
    switch (function) {
    case ALLREDUCE:
        return EITHER(allreduce, send, receive, COUNT, element, operation, everyone);
    case REDUCE:
        return EITHER(reduce, send, 1 % size == rank ? receive : NULL, COUNT, element, operation, 1 % size, everyone);
    case REDUCE_SCATTER_BLOCK:
        return EITHER(reduce_scatter_block, send, receive, COUNT, element, operation, everyone);
    case REDUCE_SCATTER:
        return EITHER(reduce_scatter, send, receive, counts, element, operation, everyone);
    case SCAN:
        return EITHER(scan, send, receive, COUNT, element, operation, everyone);
    default:
        return EITHER(exscan, send, receive, COUNT, element, operation, everyone);
    }
}

static void perform(enum function function, const struct element *element, int operation, int in_place)
{
    unsigned char bytes[MOST * 16], before[MOST * 16];
    int scatters = REDUCE_SCATTER_BLOCK == function || REDUCE_SCATTER == function;
    int count = scatters ? COUNT * size : COUNT, at, from = 0, to = size - 1, first = 0, results = COUNT;
    int has_result = REDUCE != function || 1 % size == rank;
    size_t len = (size_t) count * element->size;

    if (in_place && !has_result) {
        in_place = 0;
    }
    memset(before, 0, sizeof before);
    for (at = 0; at < count; at++) {
        store(element, before + (size_t) at * element->size, contribution(rank, at));
    }
    put(&input, before, len);
    memset(bytes, 0x5a, sizeof bytes);
    put(&output, in_place ? before : bytes, len);
    if (in_place) {
        memcpy(bytes, before, len);
    }
    CALL(call(function, in_place ? CABLEWAY_IN_PLACE : input.address, element->id, operation));

    if (SCAN == function) {
        to = rank;
    } else if (EXSCAN == function) {
        to = rank - 1;
    } else if (REDUCE_SCATTER_BLOCK == function) {
        first = COUNT * rank;
    } else if (REDUCE_SCATTER == function) {
        for (at = 0; at < rank; at++) {
            first += (int) counts[at];
        }
        results = (int) counts[rank];
    }
    if (!has_result) {
        return;
    }
    if (EXSCAN == function && 0 == rank) {
        unsigned char after[MOST * 16];
        get(&output, after, len);
        CHECK(0 == memcmp(after, bytes, len));
        return;
    }
    get(&output, bytes, len);
    for (at = 0; at < results; at++) {
        struct number expected = folded(element, operation, from, to, first + at);
        struct number found = load(element, bytes + (size_t) at * element->size);
        if (expected.first != found.first || (has_second(element) && expected.second != found.second)) {
            fprintf(stderr, "rank %d, function %d, element %d, operation %d, %d: (%ld, %ld) instead of (%ld, %ld)\n",
                    rank, (int) function, element->id, operation, at, found.first, found.second, expected.first,
                    expected.second);
            exit(1);
        }
        checked++;
    }
}

int main(int argc, char **argv)
{
    int which, operation, in_place;
    enum function function;
    long undefined = 0;

    begin();
    select_memory(argc, argv);
    CHECK(size <= MOST_RANKS);
    input = obtain(MOST * 16);
    output = obtain(MOST * 16);
    for (which = 0; which < size; which++) {
        counts[which] = COUNT;
    }
    if (1 < size) {
        counts[0]++;
        counts[1]--;
    }
    for (which = 0; which < ELEMENTS; which++) {
        const struct element *element = &elements[which];
        CHECK_EQUAL(element->id, which + 1);
        for (operation = CABLEWAY_SUM; operation <= CABLEWAY_MAXLOC; operation++) {
            for (function = ALLREDUCE; function < FUNCTIONS; function++) {
                nonblocking = which & 1;
                if (!is_defined(element, operation)) {
                    FAILS(call(function, input.address, element->id, operation), CABLEWAY_ERR_OPERATION, "not defined");
                    undefined++;
                    continue;
                }
                for (in_place = 0; in_place < 2; in_place++) {
                    nonblocking = (which + in_place) & 1;
                    perform(function, element, operation, in_place);
                }
            }
        }
    }
    release(&input);
    release(&output);
    CHECK_EQUAL(undefined, (20 * 12 - 110) * FUNCTIONS);
    CHECK(checked >= 110L * (COUNT - 1) * 2 * (FUNCTIONS - 2));
    end();
    return 0;
}
