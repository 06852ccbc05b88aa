/* libbackstay: keeps a training job's state alive in the memory of the job's own machines.
 *
 * This is the stable C ABI; backstay.hpp is the C++ API over it. One header, and so longer than
 * most, because it is the whole contract with programs that were built elsewhere.
 *
 * Versions: within one BACKSTAY_ABI_VERSION functions are only added, and structs only grow at
 * their end. The caller sets `struct_size` of every struct that has one to its own sizeof, in or
 * out; the library reads and writes no further, and fields that an older caller does not have take
 * the value 0. An array of such structs has the stride struct_size of its first element.
 *
 * Errors: a function that can fail returns a backstay_code and, where `error` is not NULL, fills it
 * with a message that says what was being done, to what, and what to try. Outputs are only written
 * on success.
 *
 * Waits: every wait has a timeout in milliseconds, at most BACKSTAY_TIMEOUT_MS_MAX; 0 looks and
 * does not wait. A wait that ran out returns BACKSTAY_DEADLINE: the outcome is unknown, and waiting
 * again is legal.
 *
 * Threads: backstay_connect() starts one thread, which owns the socket. Copy threads start with the
 * first copy (or verified read) that asks for more than the calling thread, and are kept. No
 * function installs a signal handler, forks, or calls back. A client handle may be used by any
 * threads at once. A save or shard handle may be waited on, abandoned and read by any threads at
 * once; building a save (add_*, start_copy) is for one thread at a time, and so is destroying any
 * handle.
 *
 * Forking: a child made by fork() without exec (a data loader) holds nothing: the slots are not
 * mapped in it, the socket and every other descriptor of the library are closed in it, and every
 * call there on a handle of the parent returns BACKSTAY_PERMISSION (destroying one only forgets
 * it). The service watches the process, not the socket, so a child that lives on never keeps a dead
 * trainer's memory.
 *
 * Ownership: handles are the caller's until destroyed. Destroy saves and shards before their
 * client. Strings and arrays passed in are copied, except for tensors' data: see
 * backstay_save_add_tensor().
 */
#ifndef BACKSTAY_H_
#define BACKSTAY_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BACKSTAY_ABI_VERSION 1
#define BACKSTAY_TIMEOUT_MS_MAX 86400000u /* One day; longer ones are refused. */
#define BACKSTAY_MESSAGE_BYTES 1024       /* Longer messages are cut. */
#define BACKSTAY_NAME_BYTES 257           /* Names have at most 256 bytes. */
#define BACKSTAY_DIMENSIONS_MAX 16        /* Of a tensor. */

#if defined(_WIN32)
#error "Backstay runs on Linux"
#endif
#define BACKSTAY_API __attribute__((visibility("default")))

/* One code per distinct reaction of a caller. */
typedef enum backstay_code {
  BACKSTAY_OK = 0,
  BACKSTAY_NOT_FOUND = 1, /* It is certain that there is none. */
  BACKSTAY_CORRUPT = 2,   /* Bytes failed verification, from every holder. */
  BACKSTAY_NO_SPACE = 3,  /* A budget, quota, slot or limit is exhausted. */
  BACKSTAY_STALE = 4,     /* The generation is over: stop saving, reconfigure. */
  /* Could not be found out now, or the service is away: try again later. */
  BACKSTAY_UNAVAILABLE = 5,
  BACKSTAY_DEADLINE = 6, /* The timeout passed; nothing is known about the effect. */
  /* Sent, not answered: it may or may not have happened. Ask, or repeat. */
  BACKSTAY_UNKNOWN_OUTCOME = 7,
  BACKSTAY_INVALID_ARGUMENT = 8, /* The call can never succeed as it is. */
  BACKSTAY_PERMISSION = 9        /* Wrong token, or a call from a forked child. */
} backstay_code;

typedef struct backstay_error {
  size_t struct_size;
  int32_t code; /* backstay_code */
  char message[BACKSTAY_MESSAGE_BYTES];
} backstay_error;

typedef struct backstay_client backstay_client;
typedef struct backstay_save backstay_save;
typedef struct backstay_shard backstay_shard;
typedef struct backstay_index backstay_index;

BACKSTAY_API uint32_t backstay_abi_version(void);
BACKSTAY_API const char* backstay_version(void);              /* "0.1.0" */
BACKSTAY_API const char* backstay_code_name(int code);        /* "no space" */
BACKSTAY_API const char* backstay_dtype_name(uint32_t dtype); /* "bf16" */

/* ---- Connection ------------------------------------------------------------------------------ */

typedef struct backstay_connect_options {
  size_t struct_size;
  const char* socket_path; /* NULL: the environment's BACKSTAY_SOCKET. */
  uint32_t timeout_ms;
} backstay_connect_options;

/* Connects to the service of this node. Starts the library's one thread. */
BACKSTAY_API int backstay_connect(const backstay_connect_options* options, backstay_client** client,
                                  backstay_error* error);
/* Ends every wait with BACKSTAY_UNAVAILABLE, then the connection. What was sealed stays with the
 * service. NULL is ignored. */
BACKSTAY_API void backstay_close(backstay_client* client);

typedef struct backstay_register_options {
  size_t struct_size;
  const char* job;
  const char* token;    /* The job's secret; the first registration of a job sets it. */
  const char* shard_id; /* NULL: the rank's number. */
  uint32_t rank;
  uint32_t world_size;
  uint32_t replicas;     /* Copies on other failure domains, 0 to 3. */
  uint32_t versions;     /* Committed snapshots to keep, at least 1. */
  uint64_t size_bytes;   /* Of the shard, at most: see backstay_plan(). */
  int32_t numa_node;     /* That the slots' memory is to come from, if it has any; -1: any. */
  int32_t wait_for_slot; /* When no slot is free at begin: not 0 waits, 0 fails that save. */
  uint32_t timeout_ms;
} backstay_register_options;

typedef struct backstay_registration {
  size_t struct_size;
  uint32_t chunk_bytes;
  uint64_t reserved_bytes_local;
  uint64_t reserved_bytes_peers;
  uint32_t replica_node_count;
  char replica_nodes[4][BACKSTAY_NAME_BYTES];
} backstay_registration;

/* Claims a shard of a job for this process, and reserves what the policy needs or refuses with the
 * sum. A second claim, from any process, fences the older one. The library repeats the claim by
 * itself when the service was away. `registration` may be NULL. */
BACKSTAY_API int backstay_register(backstay_client* client,
                                   const backstay_register_options* options,
                                   backstay_registration* registration, backstay_error* error);
/* Changes the registered size. A refused resize leaves the old size in force. */
BACKSTAY_API int backstay_resize(backstay_client* client, uint64_t size_bytes, uint32_t timeout_ms,
                                 backstay_error* error);
/* The job is done. Its state stays, to go on from or to fork, until it is dropped: now if
 * `drop_state`, or later with `backstay rm`. */
BACKSTAY_API int backstay_finish(backstay_client* client, int drop_state, uint32_t timeout_ms,
                                 backstay_error* error);

typedef struct backstay_client_info {
  size_t struct_size;
  int32_t connected;
  char node_id[BACKSTAY_NAME_BYTES];
  uint64_t node_incarnation;
  uint64_t generation; /* That this trainer is in; 0: none yet. */
  uint32_t chunk_bytes;
} backstay_client_info;

BACKSTAY_API int backstay_get_client_info(backstay_client* client, backstay_client_info* info,
                                          backstay_error* error);

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef enum backstay_dtype {
  BACKSTAY_BF16 = 1,
  BACKSTAY_FP16 = 2,
  BACKSTAY_FP8_E4M3 = 3,
  BACKSTAY_FP8_E5M2 = 4,
  BACKSTAY_FP32 = 5,
  BACKSTAY_FP64 = 6,
  BACKSTAY_INT8 = 7,
  BACKSTAY_INT16 = 8,
  BACKSTAY_INT32 = 9,
  BACKSTAY_INT64 = 10,
  BACKSTAY_UINT8 = 11,
  BACKSTAY_BOOL = 12
} backstay_dtype;

typedef enum backstay_slice {
  BACKSTAY_WHOLE = 0,      /* All of a tensor that only this shard has. */
  BACKSTAY_REPLICATED = 1, /* All of a tensor of which every rank has the same. */
  BACKSTAY_BOXES = 2,      /* One or more boxes of the global tensor. */
  BACKSTAY_FLAT = 3, /* A range of the global tensor's elements in row-major order, then padding. */
  BACKSTAY_EMPTY = 4, /* Nothing of the global tensor lies on this rank. */
  BACKSTAY_ALIAS = 5  /* The same memory as another tensor of this save; stored once. */
} backstay_slice;

typedef struct backstay_box {
  const uint64_t* offset; /* global_dimension_count elements each. */
  const uint64_t* extent;
} backstay_box;

/* A tensor in memory, and which part of the global tensor it is. Sizes and strides are in elements.
 * Zero-sized tensors and any bit pattern (NaN) are legal. */
typedef struct backstay_tensor {
  size_t struct_size;
  const char* name; /* Unique in the shard; 1 to 256 bytes, any but NUL. */
  uint32_t dtype;   /* backstay_dtype */
  uint32_t dimension_count;
  const void* data; /* The element with index 0 in every dimension. May be NULL when there are no
                       elements. */
  const uint64_t* shape;  /* dimension_count; NULL for a scalar. */
  const int64_t* strides; /* dimension_count, none negative; NULL: contiguous, row-major. */
  uint32_t slice;         /* backstay_slice */
  uint32_t global_dimension_count;
  const uint64_t* global_shape; /* NULL: as `shape` (whole, replicated); ALIAS: as alias_of has. */
  const backstay_box* boxes;    /* BOXES: one box has the extents `shape`; several lie one after the
                                   other, each row-major, in a one-dimensional `shape`. */
  size_t box_count;
  uint64_t flat_offset; /* FLAT: `shape` has one dimension, of flat_count + padding elements. */
  uint64_t flat_count;
  uint64_t padding_elements;
  /* ALIAS: name of a tensor that was added before, with the same dtype and shape. */
  const char* alias_of;
  uint32_t group; /* For backstay_save_wait(): groups are copied in ascending order. */
} backstay_tensor;

/* The bytes that a shard with these tensors and blobs (by size) needs. */
BACKSTAY_API int backstay_plan(const backstay_tensor* tensors, size_t tensor_count,
                               const uint64_t* blob_sizes, size_t blob_count, uint64_t* size_bytes,
                               backstay_error* error);

/* ---- Save ------------------------------------------------------------------------------------ */

typedef struct backstay_begin_options {
  size_t struct_size;
  uint64_t step;       /* From 1 on; they grow. */
  uint32_t timeout_ms; /* Also how long to wait for a slot, where registered so. */
  int32_t sound_later; /* Not 0: seal only after backstay_save_step_is_sound(), for communicators
                          that report a fault only after their abort. */
} backstay_begin_options;

/* Takes a free slot for a step: BACKSTAY_NO_SPACE when there is none, BACKSTAY_UNAVAILABLE when the
 * service is away or another rank could not save this step, BACKSTAY_STALE when the generation is
 * over or a later step was committed. A step that one rank passes over is given up by all: go on,
 * and save a later one. A failed save is no reason to stop training. */
BACKSTAY_API int backstay_begin(backstay_client* client, const backstay_begin_options* options,
                                backstay_save** save, backstay_error* error);
/* Adds a tensor. Its data is borrowed, and must not change, from backstay_save_start_copy() until a
 * wait for its copy has returned anything but BACKSTAY_DEADLINE and BACKSTAY_INVALID_ARGUMENT (no
 * such group), or the save was abandoned or destroyed: all of them return only when no copy thread
 * reads the data any more. */
BACKSTAY_API int backstay_save_add_tensor(backstay_save* save, const backstay_tensor* tensor,
                                          backstay_error* error);
/* Adds a small piece of state (random generator, data loader). Copied here. */
BACKSTAY_API int backstay_save_add_blob(backstay_save* save, const char* name, const void* data,
                                        size_t size_bytes, backstay_error* error);
/* Adds a fact that must be equal on all ranks (samples seen, configuration hash): where it differs
 * the snapshot is not committed. */
BACKSTAY_API int backstay_save_add_tag(backstay_save* save, const char* name, const char* value,
                                       backstay_error* error);
/* Starts to copy with `thread_count` (1 to 64) threads in the background, and returns. When all is
 * copied the library seals the shard by itself. */
BACKSTAY_API int backstay_save_start_copy(backstay_save* save, uint32_t thread_count,
                                          backstay_error* error);

typedef enum backstay_stage {
  BACKSTAY_COPIED = 1,    /* The tensors may change again. */
  BACKSTAY_SEALED = 2,    /* Immutable, in this node's memory. */
  BACKSTAY_PROTECTED = 3, /* Verified copies on the policy's number of other failure domains. */
  BACKSTAY_COMMITTED = 4  /* And so are all ranks' shards of this step. */
} backstay_stage;

#define BACKSTAY_ALL_GROUPS UINT32_MAX

/* Waits until a stage is reached. `group` counts for BACKSTAY_COPIED. A save that failed returns
 * why, at once; BACKSTAY_UNAVAILABLE when the service went away before the save was sealed. */
BACKSTAY_API int backstay_save_wait(backstay_save* save, uint32_t stage, uint32_t group,
                                    uint32_t timeout_ms, backstay_error* error);
/* The word that a save with `sound_later` waits for: this step's collectives all succeeded. */
BACKSTAY_API int backstay_save_step_is_sound(backstay_save* save, backstay_error* error);
/* Gives the slot back. Waits for the copy threads to let go of the tensors. BACKSTAY_STALE once
 * sealing has begun. */
BACKSTAY_API int backstay_save_abandon(backstay_save* save, backstay_error* error);

typedef struct backstay_save_stats {
  size_t struct_size;
  uint64_t generation;
  uint64_t step;
  uint64_t used_bytes; /* With alignment. */
  uint64_t copy_ns;    /* From backstay_save_start_copy() to the last chunk; 0 until then. */
  uint64_t begin_ns;   /* How long backstay_begin() took. */
  uint64_t waited_ns;  /* Sum of the waits for BACKSTAY_COPIED: the stall. */
  uint8_t digest[16];  /* Of the sealed shard; zeros until then. */
} backstay_save_stats;

BACKSTAY_API int backstay_save_get_stats(backstay_save* save, backstay_save_stats* stats,
                                         backstay_error* error);
/* Destroys the handle. A save that is not yet copied is abandoned, a later one goes on. NULL is
 * ignored. */
BACKSTAY_API void backstay_save_destroy(backstay_save* save);

/* ---- Reconfigure and restore ----------------------------------------------------------------- */

#define BACKSTAY_UUID_BYTES 64

/* A token that all ranks of one reconfiguration share. One rank asks for it and gives it to the
 * others. */
BACKSTAY_API int backstay_new_attempt(backstay_client* client, uint32_t timeout_ms,
                                      char uuid[BACKSTAY_UUID_BYTES], backstay_error* error);

typedef enum backstay_resume {
  /* The newest restorable snapshot; a job without any commit ever starts fresh. */
  BACKSTAY_RESUME_AUTO = 0,
  /* `exact_step`, or an error. */
  BACKSTAY_RESUME_EXACT = 1,
  /* From nothing; refused if the job has state, unless `drop_state`. */
  BACKSTAY_RESUME_FRESH = 2,
  /* `fork_job`'s newest committed snapshot (or its `exact_step`, if not 0), under this job's name.
   * The fork leaves the other job as it is; both jobs must have the same token. */
  BACKSTAY_RESUME_FORK = 3
} backstay_resume;

typedef struct backstay_decide_options {
  size_t struct_size;
  const char* uuid;
  uint32_t rank; /* In the new communicator. Another one than registered, or another shard_id: it is
                    registered anew first, and saves under it from then on. */
  uint32_t world_size;
  /* NULL: the registered one, or where that was a rank's number, the new rank's. */
  const char* shard_id;
  uint32_t mode; /* backstay_resume */
  int32_t drop_state;
  uint64_t exact_step;
  const char* fork_job;
  int32_t has_old_rank; /* `old_rank` is only a hint; this version finds the bytes without it. */
  uint32_t old_rank;
  uint32_t timeout_ms;
} backstay_decide_options;

typedef struct backstay_decision {
  size_t struct_size;
  uint64_t generation;
  uint64_t attempt;
  int32_t fresh;          /* Nothing to restore: start from step 0. */
  int32_t base_committed; /* 0: it is protected and committed first. */
  uint64_t base_generation;
  uint64_t base_step;
  uint8_t base_root[16];
  char uuid[BACKSTAY_UUID_BYTES];
  char shard_id[BACKSTAY_NAME_BYTES]; /* That this rank restores. */
  char base_job[BACKSTAY_NAME_BYTES]; /* Not empty: another job's snapshot, forked. */
  char why[4096];                     /* In plain words, with what was rejected. */
} backstay_decision;

/* This rank's part of a reconfiguration. Answered when all ranks are there and one decision for all
 * is recorded; at the timeout the error says who is missing. A later call of this rank supersedes
 * its earlier one. */
BACKSTAY_API int backstay_decide(backstay_client* client, const backstay_decide_options* options,
                                 backstay_decision* decision, backstay_error* error);

/* Opens the decided shard for reading, and starts to bring all of it to this node. Returns before
 * the bytes are there. BACKSTAY_INVALID_ARGUMENT for a fresh decision. */
BACKSTAY_API int backstay_fetch(backstay_client* client, const backstay_decision* decision,
                                uint32_t timeout_ms, backstay_shard** shard, backstay_error* error);

/* This rank has read and verified its state (`ok`), or could not (0, with `why`, which may be
 * NULL). Answered when all ranks' word is there: `*resumed` is 1 and training may go on; or 0, and
 * `next` is the decision of the next attempt, to fetch again. A fresh decision is finished the same
 * way. */
BACKSTAY_API int backstay_finish_restore(backstay_client* client, const backstay_decision* decision,
                                         int ok, const char* why, uint64_t restored_bytes,
                                         uint32_t timeout_ms, int* resumed, backstay_decision* next,
                                         backstay_error* error);

/* The communicator failed: nothing of this generation is sealed from here on. Never blocks,
 * allocates little, and may be called from any thread (a watchdog) before the communicator is
 * aborted; not from a signal handler. The word reaches the service also when it is away for the
 * moment. Safe to repeat. */
BACKSTAY_API int backstay_fence(backstay_client* client, const char* reason, backstay_error* error);

/* ---- Reading --------------------------------------------------------------------------------- */

typedef struct backstay_open_options {
  size_t struct_size;
  const char* job;      /* NULL: the registered one; another one must have the same token. */
  const char* shard_id; /* NULL: the registered one. */
  uint64_t generation;  /* Both 0: the newest committed snapshot. */
  uint64_t step;
  uint32_t timeout_ms;
} backstay_open_options;

/* Opens any shard of a snapshot. Its chunks come to this node only as reads need them. */
BACKSTAY_API int backstay_open_shard(backstay_client* client, const backstay_open_options* options,
                                     backstay_shard** shard, backstay_error* error);
/* Unmaps the shard and lets the service drop it. NULL is ignored. */
BACKSTAY_API void backstay_shard_destroy(backstay_shard* shard);

typedef struct backstay_shard_info {
  size_t struct_size;
  uint64_t generation;
  uint64_t step;
  uint64_t used_bytes;
  uint32_t chunk_bytes;
  uint32_t chunk_count;
  uint32_t ready_chunk_count;
  int32_t local; /* It was in this node's memory already. */
  uint32_t rank;
  uint32_t world_size;
  char shard_id[BACKSTAY_NAME_BYTES];
  uint8_t digest[16];
} backstay_shard_info;

typedef struct backstay_tensor_info {
  size_t struct_size;
  const char* shard_id;
  const backstay_tensor*
      tensor; /* data and strides are NULL. Valid until the shard or index is destroyed. */
  uint64_t offset_bytes; /* In the shard. */
  uint64_t size_bytes;
} backstay_tensor_info;

BACKSTAY_API int backstay_shard_get_info(backstay_shard* shard, backstay_shard_info* info,
                                         backstay_error* error);
BACKSTAY_API size_t backstay_shard_tensor_count(const backstay_shard* shard);
BACKSTAY_API int backstay_shard_get_tensor(const backstay_shard* shard, size_t index,
                                           backstay_tensor_info* info, backstay_error* error);

/* Waits until all bytes of a tensor are on this node (they are verified when read). */
BACKSTAY_API int backstay_shard_wait_tensor(backstay_shard* shard, const char* name,
                                            uint32_t timeout_ms, backstay_error* error);

typedef struct backstay_read_options {
  size_t struct_size;
  const char* name;
  uint32_t dtype;
  uint32_t dimension_count;
  void* data; /* Written, also by a failed read. */
  const uint64_t*
      shape; /* Of the memory: the stored one, or for a range any with `element_count` elements. */
  const int64_t* strides; /* In elements; NULL: contiguous. No two elements may share memory. */
  int32_t is_range;       /* 0: the whole tensor. */
  uint64_t first_element; /* Of the stored tensor, in row-major order. */
  uint64_t element_count;
  uint32_t thread_count; /* 0: 1. */
  uint32_t timeout_ms;
} backstay_read_options;

/* Reads a tensor, or a range of its elements, into the caller's memory, and verifies every chunk it
 * touches in the same pass. Waits for chunks that are not here yet. A bad chunk is fetched again
 * from another holder; BACKSTAY_CORRUPT when none has it whole. BACKSTAY_OK means: these are
 * exactly the sealed bytes. */
BACKSTAY_API int backstay_shard_read(backstay_shard* shard, const backstay_read_options* options,
                                     backstay_error* error);
/* The same for raw bytes of a tensor. */
BACKSTAY_API int backstay_shard_read_bytes(backstay_shard* shard, const char* name,
                                           uint64_t offset_bytes, void* data, uint64_t size_bytes,
                                           uint32_t timeout_ms, backstay_error* error);

/* A blob, verified. `*size_bytes` is its size, also when `capacity_bytes` is too small
 * (BACKSTAY_INVALID_ARGUMENT) or `data` is NULL (nothing is read). */
BACKSTAY_API int backstay_shard_read_blob(backstay_shard* shard, const char* name, void* data,
                                          size_t capacity_bytes, size_t* size_bytes,
                                          uint32_t timeout_ms, backstay_error* error);
BACKSTAY_API size_t backstay_shard_blob_count(const backstay_shard* shard);
BACKSTAY_API const char* backstay_shard_blob_name(const backstay_shard* shard, size_t index);
/* A tag's value, valid until the shard is destroyed. */
BACKSTAY_API int backstay_shard_get_tag(const backstay_shard* shard, const char* name,
                                        const char** value, backstay_error* error);

/* ---- Snapshots ------------------------------------------------------------------------------- */

/* All tensors of all shards of a snapshot, sorted by name, then rank. `job` NULL: the registered
 * one (another one must have the same token); generation and step 0: the newest committed. */
BACKSTAY_API int backstay_open_index(backstay_client* client, const char* job, uint64_t generation,
                                     uint64_t step, uint32_t timeout_ms, backstay_index** index,
                                     backstay_error* error);
BACKSTAY_API void backstay_index_destroy(backstay_index* index);
BACKSTAY_API void backstay_index_get_snapshot(const backstay_index* index, uint64_t* generation,
                                              uint64_t* step);
BACKSTAY_API size_t backstay_index_count(const backstay_index* index);
BACKSTAY_API int backstay_index_get(const backstay_index* index, size_t position,
                                    backstay_tensor_info* info, backstay_error* error);
/* The entries of one tensor are [*first, *first + *count). The error names the nearest names. */
BACKSTAY_API int backstay_index_find(const backstay_index* index, const char* name, size_t* first,
                                     size_t* count, backstay_error* error);

/* BACKSTAY_NOT_FOUND: nothing was ever committed. */
BACKSTAY_API int backstay_newest_committed(backstay_client* client, uint32_t timeout_ms,
                                           uint64_t* generation, uint64_t* step,
                                           backstay_error* error);

typedef enum backstay_snapshot_state {
  BACKSTAY_STATE_UNKNOWN = 0,
  BACKSTAY_STATE_COPYING = 1,
  BACKSTAY_STATE_SEALED = 2,
  BACKSTAY_STATE_PROTECTED = 3,
  BACKSTAY_STATE_COMMITTED = 4,
  BACKSTAY_STATE_FAILED = 5
} backstay_snapshot_state;

/* The state of this rank's save of a step. `reason` (may be NULL) gets why it failed or what it
 * waits for. */
BACKSTAY_API int backstay_query_snapshot(backstay_client* client, uint64_t generation,
                                         uint64_t step, uint32_t timeout_ms, uint32_t* state,
                                         char reason[BACKSTAY_MESSAGE_BYTES],
                                         backstay_error* error);

/* ---- Events ---------------------------------------------------------------------------------- */

typedef enum backstay_event_kind {
  BACKSTAY_EVENT_NONE = 0,
  BACKSTAY_EVENT_FENCED = 1, /* The generation is over, or another process claimed the shard. */
  BACKSTAY_EVENT_PROTECTED = 2,
  BACKSTAY_EVENT_COMMITTED = 3,
  BACKSTAY_EVENT_SAVE_FAILED = 4,
  BACKSTAY_EVENT_UNDER_PROTECTED = 5, /* Fewer replicas than the policy wants; being repaired. */
  BACKSTAY_EVENT_PROTECTED_AGAIN = 6,
  BACKSTAY_EVENT_SERVICE_LOST = 100, /* Saves that were not sealed have failed. Reconnecting. */
  /* Connected and registered again; `code` says if that was refused. */
  BACKSTAY_EVENT_SERVICE_BACK = 101,
  /* Nobody read: older events were dropped. Ask with backstay_query_snapshot(). */
  BACKSTAY_EVENT_MISSED = 102
} backstay_event_kind;

typedef struct backstay_event {
  size_t struct_size;
  int32_t kind; /* backstay_event_kind; skip the ones you do not know. */
  int32_t code; /* backstay_code of `message`. */
  uint64_t generation;
  uint64_t snapshot_generation;
  uint64_t snapshot_step;
  char message[BACKSTAY_MESSAGE_BYTES];
} backstay_event;

/* A descriptor that polls readable while there are events. The client's: do not read or close it.
 */
BACKSTAY_API int backstay_event_fd(const backstay_client* client);
/* Takes the oldest event; kind BACKSTAY_EVENT_NONE when there is none. Never waits. */
BACKSTAY_API int backstay_next_event(backstay_client* client, backstay_event* event,
                                     backstay_error* error);

#ifdef __cplusplus
}
#endif

#endif /* BACKSTAY_H_ */
