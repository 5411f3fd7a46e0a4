/* Device and host memory, with thread-safe accounting per device. */
#include "sim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Of the size of device memory. */
#define ALIGNMENT 512u
/* torch_npu rounds the address of host memory up to a page, and then uses as many bytes as it allocated. */
#define PAGE 4096u

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

/* Device memory, and host memory that the device knows. device: -1 for host memory. */
typedef struct region {
    const char *start;
    size_t bytes;
    int device;
    struct region *next;
} region;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static region *regions;

void sim_remember(const void *start, size_t bytes, int device) {
    region *entry = malloc(sizeof *entry);
    if (!entry) abort();
    pthread_mutex_lock(&lock);
    *entry = (region){start, bytes, device, regions};
    regions = entry;
    pthread_mutex_unlock(&lock);
}

/* Forgets a region. Returns its size, and its device; 0 if there is none. */
size_t sim_forget(const void *start, int *device) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (region **link = &regions; *link; link = &(*link)->next) {
        if ((*link)->start != start) continue;
        region *entry = *link;
        bytes = entry->bytes;
        *device = entry->device;
        *link = entry->next;
        free(entry);
        break;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

size_t sim_region_bytes(const void *start) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (region *entry = regions; entry && !bytes; entry = entry->next) {
        if (entry->start == start) bytes = entry->bytes;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

static int forget_host(const void *start) {
    int device;
    return sim_forget(start, &device) != 0;
}

/* aclrtPtrAttributes: location.id, location.type (0 host, 1 device, 2 not registered), page size, 4 reserved */
SIM_API aclError aclrtPointerGetAttributes(const void *pointer, uint32_t *attributes) {
    TRACE;
    if (!pointer || !attributes) return SIM_PARAM_INVALID;
    memset(attributes, 0, 7 * sizeof *attributes);
    attributes[0] = (uint32_t)sim_current_device();
    attributes[1] = sim_is_device(pointer) ? 1 : 2;
    attributes[2] = PAGE;
    pthread_mutex_lock(&lock);
    for (region *entry = regions; entry; entry = entry->next) {
        if ((const char *)pointer < entry->start || (const char *)pointer >= entry->start + entry->bytes) continue;
        attributes[0] = entry->device < 0 ? 0 : (uint32_t)entry->device;
        attributes[1] = entry->device < 0 ? 0 : 1;
        break;
    }
    pthread_mutex_unlock(&lock);
    return SIM_OK;
}

/* The device reads registered host memory at its own address. */
SIM_API aclError aclrtHostRegister(void *pointer, uint64_t bytes, int type, void **device_pointer) {
    (void)type; TRACE;
    if (!pointer || !bytes || sim_is_device(pointer)) return SIM_PARAM_INVALID;
    sim_remember(pointer, bytes, -1);
    if (device_pointer) *device_pointer = pointer;
    return SIM_OK;
}
SIM_API aclError aclrtHostRegisterV2(void *pointer, uint64_t bytes, uint32_t flag) { return aclrtHostRegister(pointer, bytes, (int)flag, NULL); }
SIM_API aclError aclrtHostUnregister(void *pointer) { TRACE; return forget_host(pointer) ? SIM_OK : SIM_PARAM_INVALID; }

/* Prefetching and writing back caches changes no values. */
SIM_API aclError aclrtCmoAsync(void *source, size_t bytes, int type, void *stream) {
    (void)bytes; (void)type; (void)stream; TRACE;
    return source ? SIM_OK : SIM_PARAM_INVALID;
}

SIM_API aclError aclrtMalloc(void **pointer, size_t bytes, int policy) {
    (void)policy; TRACE;
    int device = sim_current_device();
    size_t size = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    if (size < bytes || size > SIZE_MAX - ALIGNMENT) return SIM_OUT_OF_MEMORY;
    aclError error = sim_charge(device, size);
    if (error) return error;
    /* Whole pages, so that other processes can share them. A device can have more memory than the host. */
    void *raw = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        sim_refund(device, size);
        return SIM_OUT_OF_MEMORY;
    }
    *pointer = sim_device(raw);
    sim_remember(*pointer, size, device);
    return SIM_OK;
}

SIM_API aclError aclrtMallocAlign32(void **pointer, size_t bytes, int policy) { return aclrtMalloc(pointer, bytes, policy); }
SIM_API aclError aclrtMallocWithCfg(void **pointer, size_t bytes, int policy, void *config) {
    (void)config;
    return aclrtMalloc(pointer, bytes, policy);
}

SIM_API aclError aclrtFree(void *pointer) {
    TRACE;
    int device = -1;
    size_t bytes = pointer && sim_is_device(pointer) ? sim_forget(pointer, &device) : 0;
    if (!bytes) return SIM_PARAM_INVALID;
    sim_refund(device, bytes);
    munmap(sim_host(pointer), bytes);
    return SIM_OK;
}

SIM_API aclError aclrtMallocHost(void **pointer, size_t bytes) {
    TRACE;
    if (posix_memalign(pointer, PAGE, bytes ? bytes : 64)) return SIM_OUT_OF_MEMORY;
    sim_remember(*pointer, bytes ? bytes : 64, -1);
    return SIM_OK;
}
SIM_API aclError aclrtMallocHostWithCfg(void **pointer, uint64_t bytes, void *config) {
    (void)config;
    return aclrtMallocHost(pointer, (size_t)bytes);
}
SIM_API aclError aclrtFreeHost(void *pointer) {
    TRACE;
    if (!forget_host(pointer)) return SIM_PARAM_INVALID;
    free(pointer);
    return SIM_OK;
}

static aclError copy(void *target, size_t room, const void *source, size_t bytes) {
    if (bytes > room) return SIM_PARAM_INVALID;
    if (sim_skips_copy(target, source)) return SIM_OK;
    if (bytes) memmove(sim_host(target), sim_host(source), bytes);
    return SIM_OK;
}

SIM_API aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t bytes, int kind) {
    (void)kind; TRACE;
    return copy(target, room, source, bytes);
}
SIM_API aclError aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t bytes, int kind, void *stream) {
    (void)kind; TRACE;
    if (npu_sim_pending && sim_stream_state_of(stream)->graph) return sim_graph_tell(UNRECORDED, sim_stream_state_of(stream)->graph, "copies by torch_npu itself");
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
    if (npu_sim_dry) return SIM_OK;
    memset(sim_host(target), value, bytes);
    return SIM_OK;
}
SIM_API aclError aclrtMemsetAsync(void *target, size_t room, int32_t value, size_t bytes, void *stream) {
    if (npu_sim_pending && sim_stream_state_of(stream)->graph) return sim_graph_tell(UNRECORDED, sim_stream_state_of(stream)->graph, "aclrtMemsetAsync");
    aclError error = sim_stream_drain(stream);
    return error ? error : aclrtMemset(target, room, value, bytes);
}

static aclError copy_batch(void **targets, const size_t *rooms, void **sources, const size_t *sizes, size_t count, size_t *failed) {
    for (size_t i = 0; i < count; i++) {
        aclError error = copy(targets[i], rooms[i], sources[i], sizes[i]);
        if (!error) continue;
        if (failed) *failed = i;
        return error;
    }
    return SIM_OK;
}
SIM_API aclError aclrtMemcpyBatch(void **targets, size_t *rooms, void **sources, size_t *sizes, size_t count, void *attributes,
                                  size_t *indices, size_t attribute_count, size_t *failed) {
    (void)attributes; (void)indices; (void)attribute_count; TRACE;
    return copy_batch(targets, rooms, sources, sizes, count, failed);
}
SIM_API aclError aclrtMemcpyBatchAsync(void **targets, size_t *rooms, void **sources, size_t *sizes, size_t count, void *attributes,
                                       size_t *indices, size_t attribute_count, size_t *failed, void *stream) {
    (void)attributes; (void)indices; (void)attribute_count; TRACE;
    aclError error = sim_stream_drain(stream);
    return error ? error : copy_batch(targets, rooms, sources, sizes, count, failed);
}
