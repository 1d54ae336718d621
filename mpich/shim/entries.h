/* The functions behind MPI's names, which `src/entries.rs` exports. */
#ifndef CABLEWAY_ENTRIES_H
#define CABLEWAY_ENTRIES_H

#include <mpi.h>

int shim_init(int *argc, char ***argv);
int shim_init_thread(int *argc, char ***argv, int required, int *provided);
int shim_finalize(void);
void shim_progress(void);
int shim_comm_free(MPI_Comm *comm);
int shim_comm_disconnect(MPI_Comm *comm);

int shim_bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
int shim_gather(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                MPI_Datatype receive_type, int root, MPI_Comm comm);
int shim_gatherv(const void *send, int send_count, MPI_Datatype send_type, void *receive, const int counts[],
                 const int places[], MPI_Datatype receive_type, int root, MPI_Comm comm);
int shim_scatter(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                 MPI_Datatype receive_type, int root, MPI_Comm comm);
int shim_scatterv(const void *send, const int counts[], const int places[], MPI_Datatype send_type, void *receive,
                  int receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm);
int shim_allgather(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                   MPI_Datatype receive_type, MPI_Comm comm);
int shim_allgatherv(const void *send, int send_count, MPI_Datatype send_type, void *receive, const int counts[],
                    const int places[], MPI_Datatype receive_type, MPI_Comm comm);
int shim_alltoall(const void *send, int send_count, MPI_Datatype send_type, void *receive, int receive_count,
                  MPI_Datatype receive_type, MPI_Comm comm);
int shim_alltoallv(const void *send, const int send_counts[], const int send_places[], MPI_Datatype send_type,
                   void *receive, const int counts[], const int places[], MPI_Datatype receive_type, MPI_Comm comm);
int shim_alltoallw(const void *send, const int send_counts[], const int send_places[], const MPI_Datatype send_types[],
                   void *receive, const int counts[], const int places[], const MPI_Datatype receive_types[],
                   MPI_Comm comm);

int shim_allreduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int shim_reduce(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm);
int shim_reduce_scatter(const void *send, void *receive, const int counts[], MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int shim_reduce_scatter_block(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int shim_scan(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);
int shim_exscan(const void *send, void *receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);

#endif
