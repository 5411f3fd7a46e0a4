/* Declarations for all parts of the simulated CANN runtime.
 *
 * Device memory is host memory. A stream runs its work when it is submitted, except collectives (hccl.c): these wait for other
 * processes, so the stream's own thread runs them and everything that is submitted after them. The real torch_npu can
 * initialise, allocate, copy, communicate, record events and report memory with it. It has no kernels; these are CPU kernels in
 * Python (start/overlay.py).
 * No header of CANN is used; signatures follow the ACL documentation.
 *
 * Configuration, read once per process:
 *   NPU_SIM_COUNT      number of devices of the host (default 1, at most 64)
 *   NPU_SIM_SOC        SoC name (default Ascend910B3)
 *   NPU_SIM_CANN       CANN version (default 8.5.0)
 *   NPU_SIM_MEMORY_GB  memory of a device in GiB, fractions allowed (default 64)
 *   NPU_SIM_SYNC_FAIL  N[:CODE]: from the N-th synchronisation on, synchronising fails with CODE (default 507015)
 *   NPU_SIM_HANG       N[:SECONDS]: the N-th synchronisation blocks (default: until the process is killed)
 *   NPU_SIM_TRACE      1 prints the name of every called function to standard error
 *   ASCEND_RT_VISIBLE_DEVICES  as in CANN: if unset all devices, if empty none, otherwise a list of device numbers
 */
#ifndef NPU_SIM_H
#define NPU_SIM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_API __attribute__((visibility("default")))
#define SIM_MAX_DEVICES 64

typedef int aclError;

enum {
    SIM_OK = 0,
    SIM_PARAM_INVALID = 107000,
    SIM_INVALID_DEVICE = 107001,
    SIM_CONTEXT_NULL = 107002,
    SIM_OUT_OF_MEMORY = 207001,
    SIM_NO_DEVICE = 207004,
    SIM_NOT_SUPPORTED = 207000,
    SIM_STREAM_CAPTURED = 107027,
    SIM_STREAM_NOT_CAPTURED = 107029,
    SIM_CAPTURE_MODE = 107030,
    SIM_STREAM_CONFLICT = 107032,
    SIM_GROUP_STATUS = 107033,
    SIM_STREAM_UNMATCHED = 107036,
    SIM_AICORE_EXCEPTION = 507015,
    SIM_SYNC_TIMEOUT = 507046,
    SIM_COLLECTIVE_FAILED = 507048,
};

typedef struct {
    int count;
    size_t memory_bytes;
    long sync_fail_at;
    int sync_fail_code;
    long hang_at;
    double hang_seconds;
    int trace;
    char soc[64];
    char cann[128];
} sim_config;

const sim_config *sim_get_config(void);
void sim_trace(const char *function);
#define TRACE sim_trace(__func__)

/* A pointer to device memory is its host address with this bit set. No processor of this project can access such an address,
 * so that host code which reads or writes device memory without a copy crashes, as with an NPU. */
#define SIM_DEVICE_BIT ((uintptr_t)1 << 52)
static inline void *sim_host(const void *pointer) { return (void *)((uintptr_t)pointer & ~SIM_DEVICE_BIT); }
static inline void *sim_device(const void *pointer) { return (void *)((uintptr_t)pointer | SIM_DEVICE_BIT); }
static inline int sim_is_device(const void *pointer) { return ((uintptr_t)pointer & SIM_DEVICE_BIT) != 0; }

int sim_current_device(void);

extern SIM_API int npu_sim_dry;
extern SIM_API atomic_int npu_sim_reads;
/* Whether a process that only verifies calls need not copy this. Counts reads from the device. */
int sim_skips_copy(const void *target, const void *source);

/* Runs `run(argument)` in the stream's thread, after everything that was submitted to the stream before. The result is the
 * stream's error from then on, unless it is SIM_OK. */
aclError sim_stream_submit(void *stream, aclError (*run)(void *), void *argument);
/* Waits until the stream has done what was submitted to it. Returns the stream's error. */
aclError sim_stream_drain(void *stream);
/* Number of work items that are not done, of captures, updates and replays that are not over. Kernels in Python read it to know
 * whether they must look. */
extern SIM_API atomic_int npu_sim_pending;

/* Graphs (graph.c). graph: what is captured in a stream. update: the group of calls that is updated in it. stalled: a replay in it
 * waits for an event. */
typedef struct sim_graph sim_graph;
typedef struct {
    sim_graph *graph;
    void *update;
    int stalled;
} sim_stream_state;
sim_stream_state *sim_stream_state_of(void *stream);

/* What Python is told. object: a stream, an event, a group, or a collective. */
enum {
    GRAPH_BEGIN, GRAPH_END, GRAPH_REPLAY, GRAPH_DESTROY, GROUP_BEGIN, GROUP_END, UPDATE_BEGIN, UPDATE_END,
    EVENT_WAIT, EVENT_RESET, EVENT_RECORD, COLLECTIVE, HOST_FUNCTION, GRAPH_PRINT, UNRECORDED
};
typedef aclError (*sim_graph_listener)(int what, void *graph, void *object);
aclError sim_graph_tell(int what, void *graph, void *object);
aclError sim_graph_refuse(void *stream);
aclError sim_graph_join(sim_graph *graph, void *stream);

SIM_API aclError aclrtGetDeviceResLimit(int32_t device, int type, uint32_t *value);
aclError sim_charge(int device, size_t bytes);
void sim_refund(int device, size_t bytes);

/* Regions of device memory, and of host memory that devices know (device -1), by their first address (memory.c). */
void sim_remember(const void *start, size_t bytes, int device);
size_t sim_forget(const void *start, int *device);
size_t sim_region_bytes(const void *start);
/* Opens an anonymous file of another process of this host. Returns -1 if there is none. */
int sim_open_shared(int pid, int file, size_t *bytes);

#endif
