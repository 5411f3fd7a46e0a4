/* Stubs for NVIDIA's libraries, for a CUDA build of torch that does not use CUDA.
 *
 * The CUDA runtime reports that there is no device, as on a machine without a GPU. Registering kernels, which every CUDA
 * build does while it loads, succeeds. Any other function prints its name and ends the process, because nothing may compute
 * here. Signatures follow the documentation of the CUDA runtime; the list of functions comes from torch's libraries.
 */
#include <stdio.h>
#include <stdlib.h>

#define ABSENT_API __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_NO_DEVICE = 100 };

void cuda_absent(const char *function);
void cuda_absent(const char *function) {
    fprintf(stderr, "[npu-sim] %s was called: this environment has no CUDA, its NVIDIA libraries are stubs\n", function);
    abort();
}

ABSENT_API int npu_sim_cuda_absent(void) { return 1; }

ABSENT_API int cudaGetDeviceCount(int *count) { *count = 0; return CUDA_NO_DEVICE; }
ABSENT_API int cudaGetDevice(int *device) { *device = -1; return CUDA_NO_DEVICE; }
ABSENT_API int cudaSetDevice(int device) { (void)device; return CUDA_NO_DEVICE; }
ABSENT_API int cudaDriverGetVersion(int *version) { *version = 0; return CUDA_SUCCESS; }
ABSENT_API int cudaRuntimeGetVersion(int *version) { *version = 0; return CUDA_SUCCESS; }
/* With these, torch looks up functions of the driver. Torch 2.14 does so when a program asks whether a stream is being
 * captured, as transformers does in every forward pass. An error means "no" there. */
ABSENT_API int cudaGetDriverEntryPoint(const char *symbol, void **found, unsigned long long flags, void *status) {
    (void)symbol; (void)flags; (void)status; *found = NULL; return CUDA_NO_DEVICE;
}
ABSENT_API int cudaGetDriverEntryPointByVersion(const char *symbol, void **found, unsigned version, unsigned long long flags,
                                                void *status) {
    (void)symbol; (void)version; (void)flags; (void)status; *found = NULL; return CUDA_NO_DEVICE;
}
ABSENT_API int cudaGetLastError(void) { return CUDA_SUCCESS; }
ABSENT_API int cudaPeekAtLastError(void) { return CUDA_SUCCESS; }
ABSENT_API const char *cudaGetErrorName(int error) { return error == CUDA_NO_DEVICE ? "cudaErrorNoDevice" : "cudaError"; }
ABSENT_API const char *cudaGetErrorString(int error) {
    return error == CUDA_NO_DEVICE ? "no CUDA-capable device is detected" : "CUDA is not available";
}

ABSENT_API void **__cudaRegisterFatBinary(void *binary) { (void)binary; static void *handle; return &handle; }
ABSENT_API char __cudaInitModule(void **handle) { (void)handle; return 1; }
ABSENT_API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
ABSENT_API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
ABSENT_API void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *thread,
                                       void *block, void *size, void *grid, int *warp) {
    (void)handle; (void)host; (void)device; (void)name; (void)limit; (void)thread; (void)block; (void)size; (void)grid; (void)warp;
}
ABSENT_API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int external, size_t size, int constant,
                                  int global) {
    (void)handle; (void)host; (void)device; (void)name; (void)external; (void)size; (void)constant; (void)global;
}

/* The options of CUDA's allocator, which libc10_cuda registers: an empty list, because nothing is allocated here.
 *
 * Since torch 2.11 every backend registers its options while it loads. The process ends if two backends register the same
 * option, and CUDA and torch_npu both have pinned_reserve_segment_size_mb. This list and its guard variable, which says that
 * the list is filled, replace those of libc10_cuda, because the loader finds them first. Layout: an empty
 * unordered_set<string> of libstdc++: buckets, their count, first node, size, maximal load, next resize, one bucket.
 */
#define OPTIONS "N3c104cuda20CUDACachingAllocator19CUDAAllocatorConfig7getKeysB5cxx11EvE4keys"
struct empty_set {
    void *buckets;
    size_t count;
    void *first;
    size_t size;
    float largest_load;
    size_t next_resize;
    void *bucket;
};
ABSENT_API extern struct empty_set options __asm__("_ZZ" OPTIONS);
ABSENT_API extern long long options_filled __asm__("_ZGVZ" OPTIONS);
struct empty_set options = {&options.bucket, 1, 0, 0, 1.0f, 0, 0};
long long options_filled = 1;
