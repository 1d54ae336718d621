/* Messages and puts by number, for libcableway_mp.so. */
#ifndef CABLEWAY_MP_COMPONENT_H
#define CABLEWAY_MP_COMPONENT_H

#include "shim.h"

#include "../mp.h"

/* --- implemented in Rust: ompi/src/mp. See ../mp.h. --- */

/* Makes a second thread possible. */
int cableway_mp_prepare(char *why, size_t room);
int cableway_mp_stream_open(int kind, uintptr_t handle, void **out, char *why, size_t room);
void cableway_stream_free(void *stream);
/* `handle` is of a communicator that nothing else uses. */
int cableway_mp_window_new(void *handle, void *address, uint64_t len, void **out, char *why, size_t room);
/* Completes what this process has started, and lets go of the other processes' memory. */
void cableway_mp_window_finish(void *window);
void cableway_mp_window_free(void *window);
void *cableway_mp_memory_register(void *address, uint64_t len);
void cableway_mp_memory_release(void *registration);
bool cableway_mp_on_host(const void *address, uint64_t len);
int cableway_mp_post(const struct cableway_mp_job *job, const void *stream, struct cableway_mp_operation *operations,
                     size_t count, char *why, size_t room);
bool cableway_mp_is_over(const void *message);
int cableway_mp_wait(const void *message, char *why, size_t room);
void cableway_stream_message_free(void *message);
int cableway_mp_words_open(struct cableway_mp_words *out, char *why, size_t room);
void cableway_mp_words_close(void *words);
void cableway_mp_words_follow(const void *words, const void *message);
bool cableway_mp_words_seen(const void *words);
bool cableway_mp_reaches(const void *address, uint64_t len);
void cableway_mp_progress(void);

/* --- implemented by the shim --- */

const struct cableway_mp *shim_mp(void);

#endif
