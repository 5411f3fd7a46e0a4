/* Device memory that several processes of a host use. Memory that is exported becomes an anonymous file at the same address; other
 * processes map it by the number of the process and of the file in it. Whoever ends takes nothing away from the others, and leaves
 * nothing behind. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEY_BYTES 65

/* An exported block has its file. An imported one has the address at which it is mapped. */
typedef struct share {
    char key[KEY_BYTES];
    int file;
    void *start;
    size_t bytes;
    struct share *next;
} share;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static share *shares;

int sim_open_shared(int pid, int file, size_t *bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, file);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    struct stat found;
    if (opened >= 0 && (fstat(opened, &found) || !S_ISREG(found.st_mode))) {
        close(opened);
        return -1;
    }
    if (opened >= 0) *bytes = (size_t)found.st_size;
    return opened;
}

static aclError keep(share entry) {
    share *kept = malloc(sizeof *kept);
    if (!kept) return SIM_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    entry.next = shares;
    *kept = entry;
    shares = kept;
    pthread_mutex_unlock(&lock);
    return SIM_OK;
}

/* Moves a block into an anonymous file, at its address. */
static int move_to_file(void *start, size_t bytes) {
    int file = (int)syscall(SYS_memfd_create, "npu-sim-ipc", 1 /* MFD_CLOEXEC */);
    if (file < 0) return -1;
    void *copy = ftruncate(file, (off_t)bytes) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (copy != MAP_FAILED) {
        memcpy(copy, start, bytes);
        munmap(copy, bytes);
        if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED) return file;
    }
    close(file);
    return -1;
}

SIM_API aclError aclrtIpcMemGetExportKey(void *pointer, size_t bytes, char *key, size_t length, uint64_t flags) {
    (void)flags; TRACE;
    size_t whole = sim_region_bytes(pointer);
    if (!pointer || !sim_is_device(pointer) || !whole || !bytes || bytes > whole || !key || length < KEY_BYTES) return SIM_PARAM_INVALID;
    int file = move_to_file(sim_host(pointer), whole);
    if (file < 0) return SIM_OUT_OF_MEMORY;
    share entry = {.file = file, .bytes = whole};
    memset(key, 0, length);
    snprintf(entry.key, KEY_BYTES, "npu-sim:%d:%d", (int)getpid(), file);
    memcpy(key, entry.key, KEY_BYTES);
    return keep(entry);
}

/* Any process of the user may import. */
SIM_API aclError aclrtIpcMemSetImportPid(const char *key, int32_t *pids, size_t count) {
    TRACE;
    return key && pids && count ? SIM_OK : SIM_PARAM_INVALID;
}

SIM_API aclError aclrtIpcMemImportByKey(void **pointer, const char *key, uint64_t flags) {
    (void)flags; TRACE;
    int pid, number;
    size_t bytes = 0;
    if (!pointer || !key || sscanf(key, "npu-sim:%d:%d", &pid, &number) != 2) return SIM_PARAM_INVALID;
    int file = sim_open_shared(pid, number, &bytes);
    if (file < 0) return SIM_PARAM_INVALID;
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (start == MAP_FAILED) return SIM_OUT_OF_MEMORY;
    share entry = {.file = -1, .start = start, .bytes = bytes};
    snprintf(entry.key, KEY_BYTES, "%s", key);
    *pointer = sim_device(start);
    sim_remember(*pointer, bytes, sim_current_device());
    return keep(entry);
}

/* Ends what this process imported by the key; if it imported nothing, its own export. */
SIM_API aclError aclrtIpcMemClose(const char *key) {
    TRACE;
    if (!key) return SIM_PARAM_INVALID;
    share *entry = NULL;
    pthread_mutex_lock(&lock);
    for (share **link = &shares; *link; link = &(*link)->next) {
        if (strncmp((*link)->key, key, KEY_BYTES)) continue;
        entry = *link;
        *link = entry->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (!entry) return SIM_PARAM_INVALID;
    if (entry->start) {
        int device;
        sim_forget(sim_device(entry->start), &device);
        munmap(entry->start, entry->bytes);
    } else {
        close(entry->file);
    }
    free(entry);
    return SIM_OK;
}
