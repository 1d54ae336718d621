/* Rows: calls that Cableway's intercepting functions serve. */

#define PACKED (C * 6 * (int) sizeof(int))

ROW(MPI_Pack, {
    int position = 3;
    MPI_Pack(S, C, T, R, PACKED + 64, &position, comm);
    int length;
    MPI_Type_size(T, &length);
    CHECK_EQUAL(position, 3 + C * length);
})
ROW(MPI_Unpack, {
    int position = 3;
    MPI_Unpack(S, PACKED + 64, &position, R, C, T, comm);
})
ROW(MPI_Pack_external, {
    MPI_Aint position = 5;
    MPI_Pack_external("external32", S, C, T, R, PACKED + 64, &position);
})
ROW(MPI_Unpack_external, {
    MPI_Aint position = 5;
    MPI_Unpack_external("external32", S, PACKED + 64, &position, R, C, T);
})
ROW(MPI_Sendrecv_replace, {
    MPI_Sendrecv_replace(R, C, T, next, 9, previous, 9, comm, MPI_STATUS_IGNORE);
})
/* A message that is shorter than the buffer leaves the rest unchanged. */
VARIANT(MPI_Sendrecv_replace, longer, {
    MPI_Request request;
    MPI_Isend(S, C - 3, T, next, 9, comm, &request);
    MPI_Sendrecv_replace(R, C, T, MPI_PROC_NULL, 9, previous, 9, comm, MPI_STATUS_IGNORE);
    WAIT(request);
})
ROW(MPI_Buffer_attach, {
    int error;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    error = MPI_Buffer_attach(R, 4096);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_ARE_FATAL);
    CHECK_EQUAL(error, R == device_receive ? MPI_ERR_BUFFER : MPI_SUCCESS);
    if (MPI_SUCCESS == error) {
        void *buffer;
        int length;
        MPI_Buffer_detach(&buffer, &length);
    }
})
ROW(MPIX_Query_cuda_support, { CHECK_EQUAL(MPIX_Query_cuda_support(), 1); })
#if OMPI_MAJOR_VERSION >= 5
ROW(MPIX_Query_rocm_support, { CHECK_EQUAL(MPIX_Query_rocm_support(), 1); })
#endif

/* --- files --- */

static MPI_File file = MPI_FILE_NULL;
static const char *file_name;

/* One file for each process, or one for all, with known content that exceeds one process's share a little. */
static void open_file(bool shared)
{
    static char name[4096];
    const char *folder = getenv("CALLS_FOLDER");
    int content_bytes = (int) (C * extent * (shared ? size : 1)) + 40;
    unsigned char *content = malloc((size_t) content_bytes);
    snprintf(name, sizeof name, "%s/calls-%d-%s", NULL != folder ? folder : "/tmp", shared ? 0 : rank,
             shared ? "all" : "one");
    file_name = name;
    for (int i = 0; i < content_bytes; i++) {
        content[i] = (unsigned char) (i * 7 + 1);
    }
    MPI_File_open(shared ? comm : MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                  MPI_INFO_NULL, &file);
    MPI_File_set_errhandler(file, MPI_ERRORS_ARE_FATAL);
    MPI_File_set_size(file, 0);
    if (!shared || 0 == rank) {
        MPI_File_write_at(file, 0, content, content_bytes, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    MPI_File_sync(file);
    if (shared) {
        MPI_Barrier(comm);
    }
    free(content);
}

/* The final content of the file counts as received, after the row's receive buffer. */
static void close_file(void *R)
{
    MPI_Offset length;
    unsigned char *content;
    MPI_File_sync(file);
    MPI_Barrier(comm);
    MPI_File_get_size(file, &length);
    content = calloc(1, (size_t) length + 1);
    MPI_File_read_at(file, 0, content, (int) length, MPI_BYTE, MPI_STATUS_IGNORE);
    write_receive(AT(R, LARGE), content, (size_t) length);
    free(content);
    MPI_Barrier(comm);
    MPI_File_close(&file);
}

static void check_count(MPI_Status *status)
{
    int count;
    MPI_Get_count(status, T, &count);
    CHECK_EQUAL(count, C);
}

#define FILE_ROW(call, shared, ...)                                                                                    \
    ROW(call, {                                                                                                        \
        MPI_Status status;                                                                                             \
        open_file(shared);                                                                                             \
        __VA_ARGS__                                                                                                    \
        check_count(&status);                                                                                          \
        close_file(R);                                                                                                 \
    })
#define MINE ((MPI_Offset) (rank * C) * (MPI_Offset) extent)
#define BLOCKING(name, B)                                                                                             \
    FILE_ROW(MPI_File_##name, false, MPI_File_##name(file, B, C, T, &status);)                                         \
    FILE_ROW(MPI_File_##name##_all, true, MPI_File_seek(file, MINE, MPI_SEEK_SET);                                     \
             MPI_File_##name##_all(file, B, C, T, &status);)                                                           \
    FILE_ROW(MPI_File_##name##_shared, false, MPI_File_##name##_shared(file, B, C, T, &status);)                       \
    FILE_ROW(MPI_File_##name##_ordered, true, MPI_File_##name##_ordered(file, B, C, T, &status);)                      \
    FILE_ROW(MPI_File_##name##_at, false, MPI_File_##name##_at(file, 4, B, C, T, &status);)                            \
    FILE_ROW(MPI_File_##name##_at_all, true, MPI_File_##name##_at_all(file, MINE, B, C, T, &status);)                  \
    FILE_ROW(MPI_File_i##name, false, MPI_Request request; MPI_File_i##name(file, B, C, T, &request);                  \
             MPI_Wait(&request, &status);)                                                                             \
    FILE_ROW(MPI_File_i##name##_all, true, MPI_Request request; MPI_File_seek(file, MINE, MPI_SEEK_SET);               \
             MPI_File_i##name##_all(file, B, C, T, &request); MPI_Wait(&request, &status);)                            \
    FILE_ROW(MPI_File_i##name##_shared, false, MPI_Request request;                                                    \
             MPI_File_i##name##_shared(file, B, C, T, &request); MPI_Wait(&request, &status);)                         \
    FILE_ROW(MPI_File_i##name##_at, false, MPI_Request request; MPI_File_i##name##_at(file, 4, B, C, T, &request);     \
             MPI_Wait(&request, &status);)                                                                             \
    FILE_ROW(MPI_File_i##name##_at_all, true, MPI_Request request;                                                     \
             MPI_File_i##name##_at_all(file, MINE, B, C, T, &request); MPI_Wait(&request, &status);)                   \
    FILE_ROW(MPI_File_##name##_all_begin, true, MPI_File_seek(file, MINE, MPI_SEEK_SET);                               \
             MPI_File_##name##_all_begin(file, B, C, T); MPI_File_##name##_all_end(file, B, &status);)                 \
    FILE_ROW(MPI_File_##name##_at_all_begin, true, MPI_File_##name##_at_all_begin(file, MINE, B, C, T);                \
             MPI_File_##name##_at_all_end(file, B, &status);)                                                          \
    FILE_ROW(MPI_File_##name##_ordered_begin, true, MPI_File_##name##_ordered_begin(file, B, C, T);                    \
             MPI_File_##name##_ordered_end(file, B, &status);)

BLOCKING(read, R)
BLOCKING(write, S)
/* A read beyond the end returns less, and leaves the rest of the buffer unchanged. */
VARIANT(MPI_File_read_at, short, {
    MPI_Status status;
    int count;
    open_file(false);
    MPI_File_read_at(file, 40, R, C * (int) (extent / (int) sizeof(int)) + 20, MPI_INT, &status);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK_EQUAL(count, C * extent / (int) sizeof(int));
    close_file(R);
})
