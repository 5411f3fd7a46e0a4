/* Devices and contexts. A context handle is 0x1000 plus the logical device number. */
#include "sim.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT_BASE 0x1000u

static _Thread_local int current = 0;
static _Thread_local int has_context = 0;
static atomic_int latched_count = -1;

/* Like CANN, this reads the list up to the first number that is not a device of the host. */
static int visible_count(void) {
    int latched = atomic_load(&latched_count);
    if (latched >= 0) return latched;
    const char *list = getenv("ASCEND_RT_VISIBLE_DEVICES");
    int total = sim_get_config()->count;
    if (!list) return total;
    int count = 0;
    while (*list) {
        char *end;
        long device = strtol(list, &end, 10);
        if (end == list || device < 0 || device >= total) break;
        count++;
        list = *end == ',' ? end + 1 : end;
    }
    return count > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : count;
}

int sim_current_device(void) { return current; }

/* The number of devices of the host, visible or not. */
SIM_API int npu_sim_count(void) { return sim_get_config()->count; }

SIM_API aclError aclrtGetDeviceCount(uint32_t *count) {
    TRACE;
    *count = (uint32_t)visible_count();
    return *count ? SIM_OK : SIM_NO_DEVICE;
}

/* A device is in use, and its primary context active, once a thread has set it. */
static atomic_int is_active[SIM_MAX_DEVICES];

SIM_API aclError aclrtSetDevice(int32_t device) {
    TRACE;
    int count = visible_count();
    if (device < 0 || device >= count) return SIM_INVALID_DEVICE;
    /* The list may change until a device is in use, because Ray sets it in a running worker, but not afterwards. */
    atomic_store(&latched_count, count);
    current = device;
    has_context = 1;
    atomic_store(&is_active[device], 1);
    return SIM_OK;
}

SIM_API aclError aclrtGetDevice(int32_t *device) {
    if (!has_context) return SIM_CONTEXT_NULL;
    *device = current;
    return SIM_OK;
}

SIM_API aclError aclrtCreateContext(void **context, int32_t device) {
    aclError error = aclrtSetDevice(device);
    if (!error) *context = (void *)(uintptr_t)(CONTEXT_BASE + (unsigned)device);
    return error;
}

SIM_API aclError aclrtDestroyContext(void *context) { (void)context; return SIM_OK; }

SIM_API aclError aclrtGetCurrentContext(void **context) {
    *context = has_context ? (void *)(uintptr_t)(CONTEXT_BASE + (unsigned)current) : NULL;
    return has_context ? SIM_OK : SIM_CONTEXT_NULL;
}

SIM_API aclError aclrtSetCurrentContext(void *context) {
    uintptr_t handle = (uintptr_t)context;
    if (handle < CONTEXT_BASE || handle >= CONTEXT_BASE + SIM_MAX_DEVICES) return SIM_PARAM_INVALID;
    current = (int)(handle - CONTEXT_BASE);
    has_context = 1;
    return SIM_OK;
}

SIM_API aclError aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
    TRACE;
    if (device < 0 || device >= visible_count()) return SIM_INVALID_DEVICE;
    if (flags) *flags = 0;
    if (active) *active = atomic_load(&is_active[device]);
    return SIM_OK;
}
SIM_API aclError aclrtGetLogicDevIdByUserDevId(int32_t user, int32_t *logic) { *logic = user; return SIM_OK; }
SIM_API aclError aclrtDeviceGetUuid(int32_t device, void *uuid) {
    TRACE;
    if (device < 0 || device >= visible_count()) return SIM_INVALID_DEVICE;
    memset(uuid, 0, 16);
    memcpy(uuid, "npu-sim", 7);
    ((char *)uuid)[15] = (char)device;
    return SIM_OK;
}

/* Limits of cube cores (type 0) and vector cores (type 1). Nothing runs on cores, so they are only stored. */
static const uint32_t cores[2] = {24, 48};
static atomic_uint limits[SIM_MAX_DEVICES][2];
SIM_API aclError aclrtSetDeviceResLimit(int32_t device, int type, uint32_t value) {
    TRACE;
    if (device < 0 || device >= visible_count()) return SIM_INVALID_DEVICE;
    if (type < 0 || type > 1 || !value || value > cores[type]) return SIM_PARAM_INVALID;
    atomic_store(&limits[device][type], value);
    return SIM_OK;
}
SIM_API aclError aclrtGetDeviceResLimit(int32_t device, int type, uint32_t *value) {
    TRACE;
    if (device < 0 || device >= visible_count()) return SIM_INVALID_DEVICE;
    if (type < 0 || type > 1) return SIM_PARAM_INVALID;
    uint32_t limit = atomic_load(&limits[device][type]);
    *value = limit ? limit : cores[type];
    return SIM_OK;
}
SIM_API aclError aclrtResetDeviceResLimit(int32_t device) {
    TRACE;
    if (device < 0 || device >= visible_count()) return SIM_INVALID_DEVICE;
    for (int type = 0; type < 2; type++) atomic_store(&limits[device][type], 0);
    return SIM_OK;
}
SIM_API aclError aclrtGetResInCurrentThread(int type, uint32_t *value) { return aclrtGetDeviceResLimit(current, type, value); }

SIM_API aclError aclrtResetDevice(int32_t device) { (void)device; TRACE; return SIM_OK; }
SIM_API aclError aclrtResetDeviceForce(int32_t device) { (void)device; TRACE; return SIM_OK; }
SIM_API aclError aclrtDeviceTaskAbort(int32_t device, uint32_t timeout) { (void)device; (void)timeout; TRACE; return SIM_OK; }

/* The 24 cube cores of a 910B. torch_npu queries only attributes that are numbers of cores. */
SIM_API aclError aclGetDeviceCapability(uint32_t device, int info, int64_t *value) {
    (void)device; (void)info; TRACE;
    *value = 24;
    return SIM_OK;
}
SIM_API aclError aclrtGetDeviceInfo(uint32_t device, int attribute, int64_t *value) {
    return aclGetDeviceCapability(device, attribute, value);
}

SIM_API aclError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    (void)device; (void)peer; TRACE;
    *can = 1;
    return SIM_OK;
}
SIM_API aclError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) { (void)peer; (void)flags; TRACE; return SIM_OK; }
SIM_API aclError aclrtDeviceGetBareTgid(int32_t *pid) { TRACE; *pid = getpid(); return SIM_OK; }
/* aclrtUtilizationInfo has four int32 counters and a pointer that the caller leaves null. */
SIM_API aclError aclrtGetDeviceUtilizationRate(int32_t device, void *info) { (void)device; TRACE; memset(info, 0, 16); return SIM_OK; }

static atomic_llong options[64];
SIM_API aclError aclrtSetSysParamOpt(int option, int64_t value) { TRACE; atomic_store(&options[option & 63], value); return SIM_OK; }
SIM_API aclError aclrtGetSysParamOpt(int option, int64_t *value) { TRACE; *value = atomic_load(&options[option & 63]); return SIM_OK; }
SIM_API aclError aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
SIM_API aclError aclrtSetDeviceSatMode(int mode) { (void)mode; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetOpWaitTimeout(uint32_t seconds) { (void)seconds; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetOpExecuteTimeOut(uint32_t seconds) { (void)seconds; TRACE; return SIM_OK; }
SIM_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t seconds, uint64_t *actual) { TRACE; if (actual) *actual = seconds; return SIM_OK; }
