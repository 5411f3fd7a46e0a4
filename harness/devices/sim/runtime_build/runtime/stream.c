/* Streams and events. Only collectives and what follows them in their stream can be pending. Synchronising can fail or hang on request. */
#include "sim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_long synchronisations;
static atomic_int next_stream = 1;

static void wait_for(double seconds) {
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

/* With timeout_ms < 0 this waits as long as the hang lasts. */
static aclError synchronise(int32_t timeout_ms) {
    const sim_config *config = sim_get_config();
    if (!config->hang_at && !config->sync_fail_at) return SIM_OK;
    long number = atomic_fetch_add(&synchronisations, 1) + 1;
    if (config->hang_at > 0 && number == config->hang_at) {
        double limit = timeout_ms < 0 ? -1.0 : timeout_ms / 1e3;
        if (limit >= 0 && (config->hang_seconds < 0 || limit < config->hang_seconds)) {
            wait_for(limit);
            return SIM_SYNC_TIMEOUT;
        }
        if (config->hang_seconds < 0)
            for (;;) pause();
        wait_for(config->hang_seconds);
    }
    /* As on hardware, a device that failed keeps failing until the process ends. */
    if (config->sync_fail_at > 0 && number >= config->sync_fail_at) return config->sync_fail_code;
    return SIM_OK;
}

typedef struct sim_work {
    aclError (*run)(void *);
    void *argument;
    struct sim_work *next;
} sim_work;

/* A stream without submitted work has no thread. One with a thread is never freed, because events point to it. */
typedef struct sim_stream {
    int32_t id;
    int has_thread;
    uint64_t submitted, done;
    aclError error;
    sim_work *first, *last;
    uint32_t limits[2];
    sim_stream_state state;
    struct sim_stream *next;
} sim_stream;

SIM_API atomic_int npu_sim_pending;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static sim_stream default_stream;
static sim_stream *with_thread;

static sim_stream *stream_of(void *stream) { return stream ? stream : &default_stream; }
sim_stream_state *sim_stream_state_of(void *stream) { return &stream_of(stream)->state; }

static void *run_stream(void *argument) {
    sim_stream *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first) pthread_cond_wait(&changed, &lock);
        sim_work *work = stream->first;
        pthread_mutex_unlock(&lock);
        aclError error = work->run(work->argument);
        pthread_mutex_lock(&lock);
        stream->first = work->next;
        if (!stream->first) stream->last = NULL;
        if (error && !stream->error) stream->error = error;
        stream->done++;
        atomic_fetch_sub(&npu_sim_pending, 1);
        pthread_cond_broadcast(&changed);
        free(work);
    }
    return NULL;
}

aclError sim_stream_submit(void *handle, aclError (*run)(void *), void *argument) {
    sim_stream *stream = stream_of(handle);
    sim_work *work = malloc(sizeof *work);
    if (!work) return SIM_OUT_OF_MEMORY;
    *work = (sim_work){run, argument, NULL};
    pthread_mutex_lock(&lock);
    if (!stream->has_thread) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_stream, stream)) {
            pthread_mutex_unlock(&lock);
            free(work);
            return SIM_OUT_OF_MEMORY;
        }
        pthread_detach(thread);
        stream->has_thread = 1;
        stream->next = with_thread;
        with_thread = stream;
    }
    if (stream->last) stream->last->next = work;
    else stream->first = work;
    stream->last = work;
    stream->submitted++;
    atomic_fetch_add(&npu_sim_pending, 1);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SIM_OK;
}

/* Waits for the number-th item of the stream, with the lock held. timeout_ms < 0: forever. */
static aclError wait_for_work(sim_stream *stream, uint64_t number, int32_t timeout_ms) {
    struct timespec limit;
    clock_gettime(CLOCK_REALTIME, &limit);
    if (timeout_ms >= 0) {
        limit.tv_sec += timeout_ms / 1000;
        limit.tv_nsec += (timeout_ms % 1000) * 1000000L;
        if (limit.tv_nsec >= 1000000000L) limit.tv_sec++, limit.tv_nsec -= 1000000000L;
    }
    while (stream->done < number) {
        if (timeout_ms < 0) pthread_cond_wait(&changed, &lock);
        else if (pthread_cond_timedwait(&changed, &lock, &limit) && stream->done < number) return SIM_SYNC_TIMEOUT;
    }
    return stream->error;
}

static aclError drain(void *handle, int32_t timeout_ms) {
    sim_stream *stream = stream_of(handle);
    if (!stream->has_thread) return SIM_OK;
    pthread_mutex_lock(&lock);
    aclError error = wait_for_work(stream, stream->submitted, timeout_ms);
    pthread_mutex_unlock(&lock);
    return error;
}

aclError sim_stream_drain(void *stream) { return drain(stream, -1); }
SIM_API aclError npu_sim_drain(void *stream) { return drain(stream, -1); }

static aclError drain_all(int32_t timeout_ms) {
    aclError error = SIM_OK;
    pthread_mutex_lock(&lock);
    for (sim_stream *stream = with_thread; stream && !error; stream = stream->next)
        error = wait_for_work(stream, stream->submitted, timeout_ms);
    pthread_mutex_unlock(&lock);
    return error;
}

static aclError then_synchronise(aclError error, int32_t timeout_ms) { return error ? error : synchronise(timeout_ms); }

static aclError synchronise_device(int32_t timeout_ms) {
    aclError error = sim_graph_refuse(NULL);
    return error ? error : then_synchronise(drain_all(timeout_ms), timeout_ms);
}
/* A stream whose replay stands still would never be done: nothing else runs that could record the event. */
static aclError synchronise_stream(void *stream, int32_t timeout_ms) {
    aclError error = stream ? sim_graph_refuse(stream) : SIM_OK;
    if (!error && stream_of(stream)->state.stalled) error = SIM_SYNC_TIMEOUT;
    return error ? error : then_synchronise(drain(stream, timeout_ms), timeout_ms);
}
SIM_API aclError aclrtSynchronizeDevice(void) { TRACE; return synchronise_device(-1); }
SIM_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) { TRACE; return synchronise_device(timeout); }
SIM_API aclError aclrtSynchronizeStream(void *stream) { TRACE; return synchronise_stream(stream, -1); }
SIM_API aclError aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout) { TRACE; return synchronise_stream(stream, timeout); }

SIM_API aclError aclrtCreateStream(void **stream) {
    TRACE;
    sim_stream *created = calloc(1, sizeof *created);
    if (!created) return SIM_OUT_OF_MEMORY;
    created->id = atomic_fetch_add(&next_stream, 1);
    *stream = created;
    return SIM_OK;
}
SIM_API aclError aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    (void)priority; (void)flags;
    return aclrtCreateStream(stream);
}
SIM_API aclError aclrtDestroyStream(void *stream) {
    TRACE;
    if (stream && !((sim_stream *)stream)->has_thread) free(stream);
    return SIM_OK;
}
SIM_API aclError aclrtDestroyStreamForce(void *stream) { return aclrtDestroyStream(stream); }
SIM_API aclError aclrtStreamGetId(void *stream, int32_t *id) { *id = stream_of(stream)->id; return SIM_OK; }
/* As for devices, limits of cores are only stored. */
SIM_API aclError aclrtSetStreamResLimit(void *stream, int type, uint32_t value) {
    TRACE;
    if (type < 0 || type > 1 || !value) return SIM_PARAM_INVALID;
    stream_of(stream)->limits[type] = value;
    return SIM_OK;
}
SIM_API aclError aclrtResetStreamResLimit(void *stream) { TRACE; memset(stream_of(stream)->limits, 0, sizeof default_stream.limits); return SIM_OK; }
SIM_API aclError aclrtGetStreamResLimit(void *stream, int type, uint32_t *value) {
    TRACE;
    if (type < 0 || type > 1) return SIM_PARAM_INVALID;
    *value = stream_of(stream)->limits[type];
    return *value ? SIM_OK : aclrtGetDeviceResLimit(sim_current_device(), type, value);
}

/* 0 is ACL_STREAM_STATUS_COMPLETE, 1 is NOT_READY. */
SIM_API aclError aclrtStreamQuery(void *handle, int *status) {
    TRACE;
    sim_stream *stream = stream_of(handle);
    pthread_mutex_lock(&lock);
    *status = stream->done < stream->submitted;
    pthread_mutex_unlock(&lock);
    return SIM_OK;
}
SIM_API aclError aclrtSetStreamFailureMode(void *stream, uint64_t mode) { (void)stream; (void)mode; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetStreamOverflowSwitch(void *stream, uint32_t flag) { (void)stream; (void)flag; TRACE; return SIM_OK; }
SIM_API aclError aclrtGetStreamOverflowSwitch(void *stream, uint32_t *flag) { (void)stream; TRACE; *flag = 0; return SIM_OK; }
SIM_API aclError aclrtSetStreamAttribute(void *stream, int attribute, void *value) { (void)stream; (void)attribute; (void)value; TRACE; return SIM_OK; }
SIM_API aclError aclrtSubscribeReport(uint64_t thread, void *stream) { (void)thread; (void)stream; TRACE; return SIM_OK; }
SIM_API aclError aclrtUnSubscribeReport(uint64_t thread, void *stream) { (void)thread; (void)stream; TRACE; return SIM_OK; }
SIM_API aclError aclrtUseStreamResInCurrentThread(void *stream) { (void)stream; TRACE; return SIM_OK; }
SIM_API aclError aclrtUnuseStreamResInCurrentThread(void *stream) { (void)stream; TRACE; return SIM_OK; }

typedef struct {
    void (*function)(void *);
    void *argument;
} host_call;

static aclError run_host_call(void *argument) {
    host_call call = *(host_call *)argument;
    free(argument);
    call.function(call.argument);
    return SIM_OK;
}

/* A host callback runs immediately, in the calling thread, unless its stream has work that is pending. */
SIM_API aclError aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
    TRACE;
    int status;
    sim_graph *graph = stream_of(stream)->state.graph;
    aclrtStreamQuery(stream, &status);
    if (status == 0 && !graph) {
        function(argument);
        return SIM_OK;
    }
    host_call *call = malloc(sizeof *call);
    if (!call) return SIM_OUT_OF_MEMORY;
    *call = (host_call){function, argument};
    return graph ? sim_graph_tell(HOST_FUNCTION, graph, call) : sim_stream_submit(stream, run_host_call, call);
}
SIM_API void npu_sim_call_host(const host_call *captured) { captured->function(captured->argument); }
SIM_API void npu_sim_forget_host_call(host_call *captured) { free(captured); }
SIM_API aclError aclrtLaunchCallback(void (*function)(void *), void *argument, int block, void *stream) {
    (void)block;
    return aclrtLaunchHostFunc(stream, function, argument);
}

/* stream: where work was pending when the event was recorded, NULL if there was none; then its number-th item must be done.
 * graph: what was captured there then. external: for waiting inside of a graph for what happens outside of it; then signal says
 * whether it was recorded. */
typedef struct {
    struct timespec recorded;
    sim_stream *stream;
    uint64_t number;
    sim_graph *graph;
    int external;
    uint64_t signal;
} sim_event;

enum { EVENT_EXTERNAL = 0x20 };

static int is_complete(const sim_event *event) { return !event->stream || event->stream->done >= event->number; }

SIM_API aclError aclrtCreateEvent(void **event) {
    TRACE;
    *event = calloc(1, sizeof(sim_event));
    return *event ? SIM_OK : SIM_OUT_OF_MEMORY;
}
SIM_API aclError aclrtCreateEventWithFlag(void **event, uint32_t flags) {
    aclError error = aclrtCreateEvent(event);
    if (error || flags != EVENT_EXTERNAL) return error;
    ((sim_event *)*event)->external = 1;
    return SIM_OK;
}
SIM_API aclError aclrtCreateEventExWithFlag(void **event, uint32_t flags) { return aclrtCreateEventWithFlag(event, flags); }
SIM_API aclError aclrtDestroyEvent(void *event) { TRACE; free(event); return SIM_OK; }
SIM_API aclError aclrtRecordEvent(void *handle, void *on) {
    TRACE;
    sim_event *event = handle;
    sim_stream *stream = stream_of(on);
    clock_gettime(CLOCK_MONOTONIC, &event->recorded);
    event->stream = NULL;
    event->graph = stream->state.graph;
    if (event->external) return sim_graph_tell(EVENT_RECORD, event->graph, event);
    if (!stream->has_thread) return SIM_OK;
    pthread_mutex_lock(&lock);
    event->number = stream->submitted;
    event->stream = stream->done < stream->submitted ? stream : NULL;
    pthread_mutex_unlock(&lock);
    return SIM_OK;
}
SIM_API aclError aclrtResetEvent(void *event, void *stream) {
    TRACE;
    return ((sim_event *)event)->external ? sim_graph_tell(EVENT_RESET, stream_of(stream)->state.graph, event) : SIM_OK;
}

static aclError wait_for_event(const sim_event *event, int32_t timeout_ms) {
    aclError error = SIM_OK;
    pthread_mutex_lock(&lock);
    if (event->stream) error = wait_for_work(event->stream, event->number, timeout_ms);
    pthread_mutex_unlock(&lock);
    return error;
}
static aclError run_wait(void *argument) {
    sim_event event = *(sim_event *)argument;
    free(argument);
    return wait_for_event(&event, -1);
}
/* The stream waits with its own thread, so that the caller can submit what other processes wait for. */
SIM_API aclError aclrtStreamWaitEvent(void *stream, void *handle) {
    TRACE;
    const sim_event *event = handle;
    if (event->external) return sim_graph_tell(EVENT_WAIT, stream_of(stream)->state.graph, handle);
    if (event->graph) return sim_graph_join(event->graph, stream);
    pthread_mutex_lock(&lock);
    int complete = is_complete(event);
    pthread_mutex_unlock(&lock);
    if (complete || event->stream == stream_of(stream)) return SIM_OK;
    sim_event *copy = malloc(sizeof *copy);
    if (!copy) return SIM_OUT_OF_MEMORY;
    *copy = *event;
    return sim_stream_submit(stream, run_wait, copy);
}

/* Instead of an external event, newer releases of torch_npu use a number in device memory. */
static uint64_t *signal_of(void *event) { return sim_is_device(event) ? sim_host(event) : &((sim_event *)event)->signal; }
SIM_API uint64_t npu_sim_signal(void *event) { return *signal_of(event); }
SIM_API void npu_sim_set_signal(void *event, uint64_t value) { *signal_of(event) = value; }
SIM_API aclError aclrtValueWait(void *address, uint64_t value, uint32_t flags, void *stream) {
    (void)flags; TRACE;
    return value == 1 ? sim_graph_tell(EVENT_WAIT, stream_of(stream)->state.graph, address) : SIM_NOT_SUPPORTED;
}
SIM_API aclError aclrtValueWrite(void *address, uint64_t value, uint32_t flags, void *stream) {
    (void)flags; TRACE;
    if (value > 1) return SIM_NOT_SUPPORTED;
    return sim_graph_tell(value ? EVENT_RECORD : EVENT_RESET, stream_of(stream)->state.graph, address);
}

SIM_API aclError aclrtSynchronizeEvent(void *event) { TRACE; return then_synchronise(wait_for_event(event, -1), -1); }
SIM_API aclError aclrtSynchronizeEventWithTimeout(void *event, int32_t timeout) {
    TRACE;
    return then_synchronise(wait_for_event(event, timeout), timeout);
}
static int completeness(const sim_event *event) {
    pthread_mutex_lock(&lock);
    int complete = is_complete(event);
    pthread_mutex_unlock(&lock);
    return complete;
}
/* The number that means "complete" differs between the three queries: 0, 1 and 0. */
SIM_API aclError aclrtQueryEvent(void *event, int *status) { TRACE; *status = !completeness(event); return SIM_OK; }
SIM_API aclError aclrtQueryEventStatus(void *event, int *status) { TRACE; *status = completeness(event); return SIM_OK; }
SIM_API aclError aclrtQueryEventWaitStatus(void *event, int *status) { (void)event; TRACE; *status = 0; return SIM_OK; }
SIM_API aclError aclrtEventElapsedTime(float *milliseconds, void *start, void *end) {
    TRACE;
    const struct timespec *from = &((sim_event *)start)->recorded, *to = &((sim_event *)end)->recorded;
    *milliseconds = (float)(to->tv_sec - from->tv_sec) * 1e3f + (float)(to->tv_nsec - from->tv_nsec) / 1e6f;
    return SIM_OK;
}
SIM_API aclError aclrtEventGetTimestamp(void *event, uint64_t *microseconds) {
    const struct timespec *at = &((sim_event *)event)->recorded;
    *microseconds = (uint64_t)at->tv_sec * 1000000u + (uint64_t)at->tv_nsec / 1000u;
    return SIM_OK;
}
