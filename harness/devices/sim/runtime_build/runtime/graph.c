/* Capture and replay of graphs. Kernels run in Python, so that Python also records and replays them (operators/graph_capture.py).
 * Here is which streams are captured, and what the runtime itself refuses or reports while they are. */
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>

enum { ACTIVE = 1, MOST_STREAMS = 64 };

/* streams: those that are captured, the first is where the capture began. in_group: whether a task group is open. */
struct sim_graph {
    int in_group, count;
    void *streams[MOST_STREAMS];
};

static sim_graph_listener listener;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(sim_graph *) active;

SIM_API void npu_sim_listen(sim_graph_listener function) { listener = function; }
SIM_API void *npu_sim_captured(void *stream) { return sim_stream_state_of(stream)->graph; }
SIM_API void *npu_sim_updated(void *stream) { return sim_stream_state_of(stream)->update; }

aclError sim_graph_tell(int what, void *graph, void *object) { return listener ? listener(what, graph, object) : SIM_NOT_SUPPORTED; }

/* Waiting for a captured stream, or for the device while one is captured, is refused; the capture goes on. stream: NULL for the
 * device. */
aclError sim_graph_refuse(void *stream) {
    if (!stream) return active ? SIM_CAPTURE_MODE : SIM_OK;
    return sim_stream_state_of(stream)->graph ? SIM_STREAM_CAPTURED : SIM_OK;
}

/* A stream that waits for an event of a captured stream is captured too. */
aclError sim_graph_join(sim_graph *graph, void *stream) {
    sim_stream_state *state = sim_stream_state_of(stream);
    if (graph != active || state->graph == graph) return SIM_OK;
    if (graph->count == MOST_STREAMS) return SIM_STREAM_CONFLICT;
    graph->streams[graph->count++] = stream;
    state->graph = graph;
    return SIM_OK;
}

SIM_API aclError aclmdlRICaptureBegin(void *stream, int mode) {
    (void)mode; TRACE;
    if (!stream) return SIM_PARAM_INVALID;
    if (!listener) return SIM_NOT_SUPPORTED;
    if (sim_stream_state_of(stream)->graph) return SIM_STREAM_CAPTURED;
    if (active) return SIM_STREAM_CONFLICT;
    sim_graph *graph = calloc(1, sizeof *graph);
    if (!graph) return SIM_OUT_OF_MEMORY;
    active = graph;
    sim_graph_join(graph, stream);
    atomic_fetch_add(&npu_sim_pending, 1);
    return listener(GRAPH_BEGIN, graph, stream);
}

SIM_API aclError aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
    sim_graph *graph = sim_stream_state_of(stream)->graph;
    *status = graph ? ACTIVE : 0;
    if (model) *model = graph;
    return SIM_OK;
}

SIM_API aclError aclmdlRICaptureEnd(void *stream, void **model) {
    TRACE;
    sim_graph *graph = sim_stream_state_of(stream)->graph;
    if (!graph) return SIM_STREAM_NOT_CAPTURED;
    if (graph->streams[0] != stream) return SIM_STREAM_UNMATCHED;
    for (int i = 0; i < graph->count; i++) sim_stream_state_of(graph->streams[i])->graph = NULL;
    active = NULL;
    atomic_fetch_sub(&npu_sim_pending, 1);
    *model = graph;
    aclError error = listener(GRAPH_END, graph, stream);
    return graph->in_group ? SIM_GROUP_STATUS : error;
}

SIM_API aclError aclmdlRIExecuteAsync(void *model, void *stream) {
    TRACE;
    if (sim_stream_state_of(stream)->graph) return SIM_STREAM_CAPTURED;
    aclError error = sim_stream_drain(stream);
    return error ? error : listener(GRAPH_REPLAY, model, stream);
}

SIM_API aclError aclmdlRIDestroy(void *model) {
    TRACE;
    aclError error = listener ? listener(GRAPH_DESTROY, model, NULL) : SIM_OK;
    free(model);
    return error;
}

static _Thread_local int exchanged;
SIM_API aclError aclmdlRICaptureThreadExchangeMode(int *mode) {
    int before = exchanged;
    exchanged = *mode;
    *mode = before;
    return SIM_OK;
}

/* A group is numbered by Python; its handle is never an address. */
SIM_API aclError aclmdlRICaptureTaskGrpBegin(void *stream) {
    TRACE;
    sim_graph *graph = sim_stream_state_of(stream)->graph;
    if (!graph) return SIM_STREAM_NOT_CAPTURED;
    if (graph->in_group) return SIM_GROUP_STATUS;
    graph->in_group = 1;
    return listener(GROUP_BEGIN, graph, NULL);
}
SIM_API aclError aclmdlRICaptureTaskGrpEnd(void *stream, void **handle) {
    TRACE;
    sim_graph *graph = sim_stream_state_of(stream)->graph;
    if (!graph) return SIM_STREAM_NOT_CAPTURED;
    if (!graph->in_group) return SIM_GROUP_STATUS;
    graph->in_group = 0;
    return listener(GROUP_END, graph, handle);
}
SIM_API aclError aclmdlRICaptureTaskUpdateBegin(void *stream, void *handle) {
    TRACE;
    sim_stream_state *state = sim_stream_state_of(stream);
    if (state->graph) return SIM_STREAM_CAPTURED;
    if (state->update || !handle) return SIM_GROUP_STATUS;
    aclError error = listener(UPDATE_BEGIN, NULL, handle);
    if (error) return error;
    state->update = handle;
    atomic_fetch_add(&npu_sim_pending, 1);
    return SIM_OK;
}
SIM_API aclError aclmdlRICaptureTaskUpdateEnd(void *stream) {
    TRACE;
    sim_stream_state *state = sim_stream_state_of(stream);
    if (!state->update) return SIM_GROUP_STATUS;
    void *handle = state->update;
    state->update = NULL;
    atomic_fetch_sub(&npu_sim_pending, 1);
    return listener(UPDATE_END, NULL, handle);
}

SIM_API aclError aclmdlRIDebugJsonPrint(void *model, const char *path, uint32_t flags) {
    (void)flags; TRACE;
    return listener(GRAPH_PRINT, model, (void *)path);
}

/* A replay stands still at an event that nobody has recorded yet. */
SIM_API void npu_sim_stall(void *stream, int stalled) {
    pthread_mutex_lock(&lock);
    sim_stream_state_of(stream)->stalled = stalled;
    atomic_fetch_add(&npu_sim_pending, stalled ? 1 : -1);
    pthread_mutex_unlock(&lock);
}
SIM_API int npu_sim_stalled(void *stream) { return sim_stream_state_of(stream)->stalled; }
