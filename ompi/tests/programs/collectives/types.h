/* The types of reductions, with the predefined operations that MPI allows for each and Open MPI has. */
#ifndef TYPES_H
#define TYPES_H

#include <mpi-ext.h>

#include "values.h"

struct type {
    const char *name;
    MPI_Datatype type;
    const struct kind *kind;
    unsigned ops; /* bit i: enum op */
};

enum { MOST_TYPES = 80 };
static struct type types[MOST_TYPES];
static int type_count;

#define BIT(op) (1u << (op))
enum {
    ORDERED = BIT(MIN) | BIT(MAX),
    ARITHMETICAL = BIT(SUM) | BIT(PROD),
    LOGICALS = BIT(LAND) | BIT(LOR) | BIT(LXOR),
    BITWISE = BIT(BAND) | BIT(BOR) | BIT(BXOR),
    C_INTEGERS = ORDERED | ARITHMETICAL | LOGICALS | BITWISE,
    OTHER_INTEGERS = ORDERED | ARITHMETICAL | BITWISE, /* Fortran's, and those of all languages */
    FLOATS = ORDERED | ARITHMETICAL,
    PLACES = BIT(MINLOC) | BIT(MAXLOC),
};

/* The user's operations are made by `make_types`. */
static MPI_Op ops[OPS];
static const char *const op_names[OPS] = {"SUM", "PROD", "MIN", "MAX", "LAND", "LOR", "LXOR",
                                          "BAND", "BOR", "BXOR", "MINLOC", "MAXLOC", "a user's sum", "a user's product"};

/* Called on the thousands of elements of a buffer. `in` is the left operand. */
static void add(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void) type;
    for (int i = 0; i < *count; i++) {
        fold_strided(ADD, (char *) inout + i * strided.size, (char *) in + i * strided.size);
    }
}

static void multiply(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void) type;
    for (int i = 0; i < *count; i++) {
        unsigned char left[16];
        memcpy(left, (char *) in + i * sizeof left, sizeof left);
        fold_matrix(MULTIPLY, left, (char *) inout + i * sizeof left);
        memcpy((char *) inout + i * sizeof left, left, sizeof left);
    }
}

static void add_type(const char *name, MPI_Datatype type, const struct kind *kind, unsigned allowed)
{
    MPI_Aint lower, extent;
    MPI_Type_get_extent(type, &lower, &extent);
    if (extent != (MPI_Aint) kind->size) {
        fprintf(stderr, "%s has %ld bytes, not %zu\n", name, (long) extent, kind->size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    CHECK(type_count < MOST_TYPES);
    types[type_count++] = (struct type){name, type, kind, allowed};
}

/* Removes what this Open MPI has no function for, and says so. */
static void remove_unsupported(void)
{
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    for (int i = 0; i < type_count; i++) {
        for (int op = 0; op < OPS; op++) {
            unsigned char left[64], right[64];
            if (!(types[i].ops & BIT(op))) {
                continue;
            }
            types[i].kind->make(op, 1, left), types[i].kind->make(op, 2, right);
            if (MPI_SUCCESS != MPI_Reduce_local(left, right, 1, types[i].type, ops[op])) {
                types[i].ops &= ~BIT(op);
                if (0 == test.rank) {
                    printf("Open MPI has no %s of %s\n", op_names[op], types[i].name);
                }
            }
        }
    }
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_ARE_FATAL);
}

#define ADD_TYPE(NAME, kind, allowed) add_type(#NAME, NAME, &kind, allowed);
/* Integers by their width. */
#define BY_WIDTH(T, one) (1 == sizeof(T) ? &one##_1 : 2 == sizeof(T) ? &one##_2 : 4 == sizeof(T) ? &one##_4 : &one##_8)
#define ADD_SIGNED(NAME, T, allowed) add_type(#NAME, NAME, BY_WIDTH(T, signed), allowed);
#define ADD_UNSIGNED(NAME, T, allowed) add_type(#NAME, NAME, BY_WIDTH(T, unsigned), allowed);

static void add_c_types(void)
{
    ADD_SIGNED(MPI_SIGNED_CHAR, signed char, C_INTEGERS)
    ADD_SIGNED(MPI_SHORT, short, C_INTEGERS)
    ADD_SIGNED(MPI_INT, int, C_INTEGERS)
    ADD_SIGNED(MPI_LONG, long, C_INTEGERS)
    ADD_SIGNED(MPI_LONG_LONG, long long, C_INTEGERS)
    ADD_UNSIGNED(MPI_UNSIGNED_CHAR, unsigned char, C_INTEGERS)
    ADD_UNSIGNED(MPI_UNSIGNED_SHORT, unsigned short, C_INTEGERS)
    ADD_UNSIGNED(MPI_UNSIGNED, unsigned, C_INTEGERS)
#if OMPI_MAJOR_VERSION < 5
    /* Open MPI 4.1 compares them as signed (its issue 10525). */
    ADD_TYPE(MPI_UNSIGNED_LONG, unsigned_8_low, C_INTEGERS)
#else
    ADD_UNSIGNED(MPI_UNSIGNED_LONG, unsigned long, C_INTEGERS)
#endif
    ADD_UNSIGNED(MPI_UNSIGNED_LONG_LONG, unsigned long long, C_INTEGERS)
    ADD_TYPE(MPI_INT8_T, signed_1, C_INTEGERS)
    ADD_TYPE(MPI_INT16_T, signed_2, C_INTEGERS)
    ADD_TYPE(MPI_INT32_T, signed_4, C_INTEGERS)
    ADD_TYPE(MPI_INT64_T, signed_8, C_INTEGERS)
    ADD_TYPE(MPI_UINT8_T, unsigned_1, C_INTEGERS)
    ADD_TYPE(MPI_UINT16_T, unsigned_2, C_INTEGERS)
    ADD_TYPE(MPI_UINT32_T, unsigned_4, C_INTEGERS)
    ADD_TYPE(MPI_UINT64_T, unsigned_8, C_INTEGERS)
    ADD_SIGNED(MPI_AINT, MPI_Aint, OTHER_INTEGERS)
    ADD_TYPE(MPI_OFFSET, unsigned_8_low, OTHER_INTEGERS) /* Open MPI compares them as unsigned */
    ADD_SIGNED(MPI_COUNT, MPI_Count, OTHER_INTEGERS)
    ADD_TYPE(MPI_BYTE, unsigned_1, BITWISE)
    ADD_TYPE(MPI_C_BOOL, logical_1, LOGICALS)
#ifdef MPI_CXX_BOOL
    ADD_TYPE(MPI_CXX_BOOL, logical_1, LOGICALS)
    ADD_TYPE(MPI_CXX_FLOAT_COMPLEX, complex_4, ARITHMETICAL)
    ADD_TYPE(MPI_CXX_DOUBLE_COMPLEX, complex_8, ARITHMETICAL)
    ADD_TYPE(MPI_CXX_LONG_DOUBLE_COMPLEX, complex_long, ARITHMETICAL)
#endif
    ADD_TYPE(MPI_FLOAT, float_4, FLOATS)
    ADD_TYPE(MPI_DOUBLE, float_8, FLOATS)
    ADD_TYPE(MPI_LONG_DOUBLE, float_long, FLOATS)
#if defined MPIX_C_FLOAT16 && defined __FLT16_MAX__
    ADD_TYPE(MPIX_C_FLOAT16, float_2, FLOATS)
#endif
    ADD_TYPE(MPI_C_FLOAT_COMPLEX, complex_4, ARITHMETICAL)
    ADD_TYPE(MPI_C_DOUBLE_COMPLEX, complex_8, ARITHMETICAL)
    ADD_TYPE(MPI_C_LONG_DOUBLE_COMPLEX, complex_long, ARITHMETICAL)
    ADD_TYPE(MPI_FLOAT_INT, pair_float_int, PLACES)
    ADD_TYPE(MPI_DOUBLE_INT, pair_double_int, PLACES)
    ADD_TYPE(MPI_LONG_INT, pair_long_int, PLACES)
    ADD_TYPE(MPI_2INT, pair_int_int, PLACES)
    ADD_TYPE(MPI_SHORT_INT, pair_short_int, PLACES)
    ADD_TYPE(MPI_LONG_DOUBLE_INT, pair_long_double_int, PLACES)
}

/* The usual widths. Fortran's compilers can be told others, but then Open MPI was built for these. */
static void add_fortran_types(void)
{
    ADD_TYPE(MPI_INTEGER, signed_4, OTHER_INTEGERS)
    ADD_TYPE(MPI_INTEGER1, signed_1, OTHER_INTEGERS)
    ADD_TYPE(MPI_INTEGER2, signed_2, OTHER_INTEGERS)
    ADD_TYPE(MPI_INTEGER4, signed_4, OTHER_INTEGERS)
    ADD_TYPE(MPI_INTEGER8, signed_8, OTHER_INTEGERS)
    ADD_TYPE(MPI_REAL, float_4, FLOATS)
    ADD_TYPE(MPI_REAL4, float_4, FLOATS)
    ADD_TYPE(MPI_REAL8, float_8, FLOATS)
#ifdef MPI_REAL16
    ADD_TYPE(MPI_REAL16, float_long, FLOATS) /* Open MPI takes it as C's long double */
#endif
    ADD_TYPE(MPI_DOUBLE_PRECISION, float_8, FLOATS)
    ADD_TYPE(MPI_COMPLEX, complex_4, ARITHMETICAL)
    ADD_TYPE(MPI_COMPLEX8, complex_4, ARITHMETICAL)
    ADD_TYPE(MPI_COMPLEX16, complex_8, ARITHMETICAL)
#ifdef MPI_COMPLEX32
    ADD_TYPE(MPI_COMPLEX32, complex_long, ARITHMETICAL)
#endif
    ADD_TYPE(MPI_DOUBLE_COMPLEX, complex_8, ARITHMETICAL)
    ADD_TYPE(MPI_LOGICAL, logical_4, LOGICALS)
#ifdef MPI_LOGICAL1
    ADD_TYPE(MPI_LOGICAL1, logical_1, LOGICALS)
#endif
#ifdef MPI_LOGICAL2
    ADD_TYPE(MPI_LOGICAL2, logical_2, LOGICALS)
#endif
#ifdef MPI_LOGICAL4
    ADD_TYPE(MPI_LOGICAL4, logical_4, LOGICALS)
#endif
#ifdef MPI_LOGICAL8
    ADD_TYPE(MPI_LOGICAL8, logical_8, LOGICALS)
#endif
    ADD_TYPE(MPI_2REAL, pair_float_float, PLACES)
    ADD_TYPE(MPI_2DOUBLE_PRECISION, pair_double_double, PLACES)
    ADD_TYPE(MPI_2INTEGER, pair_int_int, PLACES)
}

/* The last two types. */
static MPI_Datatype strided_type, matrix_type;

static void make_types(void)
{
    MPI_Datatype blocks;
    const MPI_Op predefined[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_LAND, MPI_LOR,
                                 MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR, MPI_MINLOC, MPI_MAXLOC};
    memcpy(ops, predefined, sizeof predefined);
    MPI_Op_create(add, 1, &ops[ADD]);
    MPI_Op_create(multiply, 0, &ops[MULTIPLY]);
    MPI_Type_vector(2, 2, 3, MPI_UINT32_T, &blocks);
    MPI_Type_create_resized(blocks, 0, 24, &strided_type);
    MPI_Type_free(&blocks);
    MPI_Type_commit(&strided_type);
    MPI_Type_contiguous(4, MPI_UINT32_T, &matrix_type);
    MPI_Type_commit(&matrix_type);
    add_c_types();
    add_fortran_types();
    add_type("blocks with gaps", strided_type, &strided, BIT(ADD));
    add_type("matrices", matrix_type, &matrix, BIT(MULTIPLY));
    remove_unsupported();
}

static void free_types(void)
{
    MPI_Op_free(&ops[ADD]);
    MPI_Op_free(&ops[MULTIPLY]);
    MPI_Type_free(&strided_type);
    MPI_Type_free(&matrix_type);
}

#endif
