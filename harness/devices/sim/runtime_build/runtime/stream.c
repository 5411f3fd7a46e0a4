/* Streams and events. Work is done when it is submitted, so nothing is ever pending. Synchronising can fail or hang on request. */
#include "sim.h"

#include <stdatomic.h>
#include <stdlib.h>
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

SIM_API aclError aclrtSynchronizeDevice(void) { TRACE; return synchronise(-1); }
SIM_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t timeout) { TRACE; return synchronise(timeout); }
SIM_API aclError aclrtSynchronizeStream(void *stream) { (void)stream; TRACE; return synchronise(-1); }
SIM_API aclError aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout) { (void)stream; TRACE; return synchronise(timeout); }

typedef struct {
    int32_t id;
} sim_stream;

SIM_API aclError aclrtCreateStream(void **stream) {
    TRACE;
    sim_stream *created = malloc(sizeof *created);
    if (!created) return SIM_OUT_OF_MEMORY;
    created->id = atomic_fetch_add(&next_stream, 1);
    *stream = created;
    return SIM_OK;
}
SIM_API aclError aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flags) {
    (void)priority; (void)flags;
    return aclrtCreateStream(stream);
}
SIM_API aclError aclrtDestroyStream(void *stream) { TRACE; free(stream); return SIM_OK; }
SIM_API aclError aclrtDestroyStreamForce(void *stream) { return aclrtDestroyStream(stream); }
SIM_API aclError aclrtStreamGetId(void *stream, int32_t *id) { *id = stream ? ((sim_stream *)stream)->id : 0; return SIM_OK; }
SIM_API aclError aclrtStreamQuery(void *stream, int *status) { (void)stream; TRACE; *status = 0; return SIM_OK; }
SIM_API aclError aclrtStreamWaitEvent(void *stream, void *event) { (void)stream; (void)event; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetStreamFailureMode(void *stream, uint64_t mode) { (void)stream; (void)mode; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetStreamOverflowSwitch(void *stream, uint32_t flag) { (void)stream; (void)flag; TRACE; return SIM_OK; }
SIM_API aclError aclrtGetStreamOverflowSwitch(void *stream, uint32_t *flag) { (void)stream; TRACE; *flag = 0; return SIM_OK; }
SIM_API aclError aclrtUseStreamResInCurrentThread(void *stream) { (void)stream; TRACE; return SIM_OK; }
SIM_API aclError aclrtUnuseStreamResInCurrentThread(void *stream) { (void)stream; TRACE; return SIM_OK; }

/* Host callbacks run immediately, in the calling thread. */
SIM_API aclError aclrtLaunchHostFunc(void *stream, void (*function)(void *), void *argument) {
    (void)stream; TRACE;
    function(argument);
    return SIM_OK;
}
SIM_API aclError aclrtLaunchCallback(void (*function)(void *), void *argument, int block, void *stream) {
    (void)block;
    return aclrtLaunchHostFunc(stream, function, argument);
}

typedef struct {
    struct timespec recorded;
} sim_event;

SIM_API aclError aclrtCreateEvent(void **event) {
    TRACE;
    *event = calloc(1, sizeof(sim_event));
    return *event ? SIM_OK : SIM_OUT_OF_MEMORY;
}
SIM_API aclError aclrtCreateEventWithFlag(void **event, uint32_t flags) { (void)flags; return aclrtCreateEvent(event); }
SIM_API aclError aclrtCreateEventExWithFlag(void **event, uint32_t flags) { (void)flags; return aclrtCreateEvent(event); }
SIM_API aclError aclrtDestroyEvent(void *event) { TRACE; free(event); return SIM_OK; }
SIM_API aclError aclrtRecordEvent(void *event, void *stream) {
    (void)stream; TRACE;
    clock_gettime(CLOCK_MONOTONIC, &((sim_event *)event)->recorded);
    return SIM_OK;
}
SIM_API aclError aclrtResetEvent(void *event, void *stream) { (void)event; (void)stream; TRACE; return SIM_OK; }
SIM_API aclError aclrtSynchronizeEvent(void *event) { (void)event; TRACE; return synchronise(-1); }
SIM_API aclError aclrtSynchronizeEventWithTimeout(void *event, int32_t timeout) { (void)event; TRACE; return synchronise(timeout); }
/* The number that means "complete" differs between the three queries: 0, 1 and 0. */
SIM_API aclError aclrtQueryEvent(void *event, int *status) { (void)event; TRACE; *status = 0; return SIM_OK; }
SIM_API aclError aclrtQueryEventStatus(void *event, int *status) { (void)event; TRACE; *status = 1; return SIM_OK; }
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
