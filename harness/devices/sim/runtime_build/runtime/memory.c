/* Device and host memory, with thread-safe accounting per device. */
#include "sim.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT 512u

/* Precedes every block of device memory, so that freeing it reduces the use of the device that allocated it. */
typedef struct {
    size_t bytes;
    int device;
} block_header;

_Static_assert(sizeof(block_header) <= ALIGNMENT, "the header must fit into one unit of alignment");

static atomic_size_t used[SIM_MAX_DEVICES];

aclError sim_charge(int device, size_t bytes) {
    size_t limit = sim_get_config()->memory_bytes;
    size_t before = atomic_load(&used[device]);
    do {
        if (bytes > limit || before > limit - bytes) return SIM_OUT_OF_MEMORY;
    } while (!atomic_compare_exchange_weak(&used[device], &before, before + bytes));
    return SIM_OK;
}

void sim_refund(int device, size_t bytes) { atomic_fetch_sub(&used[device], bytes); }

SIM_API aclError aclrtGetMemInfo(int attribute, size_t *free_bytes, size_t *total_bytes) {
    (void)attribute; TRACE;
    *total_bytes = sim_get_config()->memory_bytes;
    *free_bytes = *total_bytes - atomic_load(&used[sim_current_device()]);
    return SIM_OK;
}

SIM_API aclError aclrtMalloc(void **pointer, size_t bytes, int policy) {
    (void)policy; TRACE;
    int device = sim_current_device();
    size_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size < bytes || size > SIZE_MAX - ALIGNMENT) return SIM_OUT_OF_MEMORY;
    aclError error = sim_charge(device, size);
    if (error) return error;
    void *raw;
    if (posix_memalign(&raw, ALIGNMENT, size + ALIGNMENT)) {
        sim_refund(device, size);
        return SIM_OUT_OF_MEMORY;
    }
    *(block_header *)raw = (block_header){.bytes = size, .device = device};
    *pointer = (char *)raw + ALIGNMENT;
    return SIM_OK;
}

SIM_API aclError aclrtMallocAlign32(void **pointer, size_t bytes, int policy) { return aclrtMalloc(pointer, bytes, policy); }
SIM_API aclError aclrtMallocWithCfg(void **pointer, size_t bytes, int policy, void *config) {
    (void)config;
    return aclrtMalloc(pointer, bytes, policy);
}

SIM_API aclError aclrtFree(void *pointer) {
    TRACE;
    if (!pointer) return SIM_PARAM_INVALID;
    block_header *header = (block_header *)((char *)pointer - ALIGNMENT);
    sim_refund(header->device, header->bytes);
    free(header);
    return SIM_OK;
}

SIM_API aclError aclrtMallocHost(void **pointer, size_t bytes) {
    TRACE;
    return posix_memalign(pointer, 64, bytes ? bytes : 64) ? SIM_OUT_OF_MEMORY : SIM_OK;
}
SIM_API aclError aclrtMallocHostWithCfg(void **pointer, uint64_t bytes, void *config) {
    (void)config;
    return aclrtMallocHost(pointer, (size_t)bytes);
}
SIM_API aclError aclrtFreeHost(void *pointer) { TRACE; free(pointer); return SIM_OK; }

static aclError copy(void *target, size_t room, const void *source, size_t bytes) {
    if (bytes > room) return SIM_PARAM_INVALID;
    if (bytes) memmove(target, source, bytes);
    return SIM_OK;
}

SIM_API aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t bytes, int kind) {
    (void)kind; TRACE;
    return copy(target, room, source, bytes);
}
SIM_API aclError aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t bytes, int kind, void *stream) {
    (void)kind; TRACE;
    aclError error = sim_stream_drain(stream);
    return error ? error : copy(target, room, source, bytes);
}
SIM_API aclError aclrtMemcpyAsyncWithCondition(void *target, size_t room, const void *source, size_t bytes, int kind, void *stream) {
    (void)kind; TRACE;
    aclError error = sim_stream_drain(stream);
    return error ? error : copy(target, room, source, bytes);
}

SIM_API aclError aclrtMemset(void *target, size_t room, int32_t value, size_t bytes) {
    TRACE;
    if (bytes > room) return SIM_PARAM_INVALID;
    memset(target, value, bytes);
    return SIM_OK;
}
SIM_API aclError aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t bytes, void *stream) {
    aclError error = sim_stream_drain(stream);
    return error ? error : aclrtMemset(target, room, value, bytes);
}
