/* Virtual memory, for expandable segments of torch_npu's allocator and for memory pools that vLLM puts to sleep.
 * A reserved range cannot be accessed. Physical memory is an anonymous file: unmapping keeps its content, freeing deletes it. */
#define _GNU_SOURCE
#include "sim.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GRANULARITY (2u << 20)

typedef struct range {
    void *start;
    size_t bytes;
    struct range *next;
} range;

typedef struct {
    int file;
    size_t bytes;
    int device;
    int is_imported;
} physical;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static range *reserved, *mapped;

static int remember(range **list, void *start, size_t bytes) {
    range *entry = malloc(sizeof *entry);
    if (!entry) return 0;
    pthread_mutex_lock(&lock);
    *entry = (range){start, bytes, *list};
    *list = entry;
    pthread_mutex_unlock(&lock);
    return 1;
}

static size_t forget(range **list, void *start) {
    size_t bytes = 0;
    pthread_mutex_lock(&lock);
    for (range **link = list; *link; link = &(*link)->next) {
        if ((*link)->start != start) continue;
        range *entry = *link;
        bytes = entry->bytes;
        *link = entry->next;
        free(entry);
        break;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

static void *map_without_access(void *at, size_t bytes, int fixed) {
    return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
}

SIM_API aclError aclrtMemGetAllocationGranularity(void *properties, int option, size_t *granularity) {
    (void)properties; (void)option; TRACE;
    *granularity = GRANULARITY;
    return SIM_OK;
}

SIM_API aclError aclrtReserveMemAddress(void **start, size_t bytes, size_t alignment, void *expected, uint64_t flags) {
    (void)alignment; (void)flags; TRACE;
    void *range_start = map_without_access(sim_host(expected), bytes, 0);
    if (range_start == MAP_FAILED) return SIM_OUT_OF_MEMORY;
    if (!remember(&reserved, range_start, bytes)) {
        munmap(range_start, bytes);
        return SIM_OUT_OF_MEMORY;
    }
    *start = sim_device(range_start);
    return SIM_OK;
}

SIM_API aclError aclrtReleaseMemAddress(void *start) {
    TRACE;
    size_t bytes = forget(&reserved, sim_host(start));
    if (!bytes) return SIM_PARAM_INVALID;
    munmap(sim_host(start), bytes);
    return SIM_OK;
}

SIM_API aclError aclrtMallocPhysical(void **handle, size_t bytes, const void *properties, uint64_t flags) {
    (void)properties; (void)flags; TRACE;
    int device = sim_current_device();
    aclError error = sim_charge(device, bytes);
    if (error) return error;
    physical *memory = malloc(sizeof *memory);
    int file = memory ? (int)syscall(SYS_memfd_create, "npu-sim", 0) : -1;
    if (file < 0 || ftruncate(file, (off_t)bytes)) {
        if (file >= 0) close(file);
        free(memory);
        sim_refund(device, bytes);
        return SIM_OUT_OF_MEMORY;
    }
    *memory = (physical){file, bytes, device, 0};
    *handle = memory;
    return SIM_OK;
}

SIM_API aclError aclrtFreePhysical(void *handle) {
    TRACE;
    if (!handle) return SIM_PARAM_INVALID;
    physical *memory = handle;
    close(memory->file);
    if (!memory->is_imported) sim_refund(memory->device, memory->bytes);
    free(memory);
    return SIM_OK;
}

/* The handle for other processes: the number of this process and of the file in it. */
SIM_API aclError aclrtMemExportToShareableHandle(void *handle, int type, uint64_t flags, uint64_t *shareable) {
    (void)type; (void)flags; TRACE;
    if (!handle || !shareable) return SIM_PARAM_INVALID;
    *shareable = (uint64_t)getpid() << 32 | (uint32_t)((physical *)handle)->file;
    return SIM_OK;
}
SIM_API aclError aclrtMemSetPidToShareableHandle(uint64_t shareable, int32_t *pids, size_t count) {
    TRACE;
    return shareable && pids && count ? SIM_OK : SIM_PARAM_INVALID;
}
SIM_API aclError aclrtMemImportFromShareableHandle(uint64_t shareable, int32_t device, void **handle) {
    TRACE;
    size_t bytes = 0;
    physical *memory = handle ? malloc(sizeof *memory) : NULL;
    if (!memory) return SIM_PARAM_INVALID;
    int file = sim_open_shared((int)(shareable >> 32), (int)(uint32_t)shareable, &bytes);
    if (file < 0) {
        free(memory);
        return SIM_PARAM_INVALID;
    }
    *memory = (physical){file, bytes, device, 1};
    *handle = memory;
    return SIM_OK;
}

SIM_API aclError aclrtMapMem(void *start, size_t bytes, size_t offset, void *handle, uint64_t flags) {
    (void)flags; TRACE;
    physical *memory = handle;
    if (!memory || offset > memory->bytes || bytes > memory->bytes - offset) return SIM_PARAM_INVALID;
    void *at = sim_host(start);
    if (!remember(&mapped, at, bytes)) return SIM_OUT_OF_MEMORY;
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file, (off_t)offset) == MAP_FAILED) {
        forget(&mapped, at);
        return SIM_OUT_OF_MEMORY;
    }
    return SIM_OK;
}

SIM_API aclError aclrtUnmapMem(void *start) {
    TRACE;
    size_t bytes = forget(&mapped, sim_host(start));
    if (!bytes) return SIM_PARAM_INVALID;
    map_without_access(sim_host(start), bytes, MAP_FIXED);
    return SIM_OK;
}

SIM_API aclError aclrtMemSetAccess(void *start, size_t bytes, void *descriptors, size_t count) {
    (void)start; (void)bytes; (void)descriptors; (void)count; TRACE;
    return SIM_OK;
}
