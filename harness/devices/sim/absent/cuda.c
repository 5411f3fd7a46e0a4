/* Stand-ins for NVIDIA's libraries under a CUDA build of torch that computes nothing on CUDA.
 *
 * The CUDA runtime answers what it answers on a machine without a GPU: no device. Registering kernels, which every CUDA
 * build does while it loads, is accepted. Any other function ends the process with its name: nothing may compute here.
 * Signatures follow the CUDA runtime's documentation; the list of functions comes from torch's own libraries.
 */
#include <stdio.h>
#include <stdlib.h>

#define ABSENT_API __attribute__((visibility("default")))

enum { CUDA_SUCCESS = 0, CUDA_NO_DEVICE = 100 };

void cuda_absent(const char *function);
void cuda_absent(const char *function) {
    fprintf(stderr, "[npu-sim] %s was called: this environment has no CUDA, its NVIDIA libraries are stand-ins\n", function);
    abort();
}

ABSENT_API int npu_sim_cuda_absent(void) { return 1; }

ABSENT_API int cudaGetDeviceCount(int *count) { *count = 0; return CUDA_NO_DEVICE; }
ABSENT_API int cudaGetDevice(int *device) { *device = -1; return CUDA_NO_DEVICE; }
ABSENT_API int cudaSetDevice(int device) { (void)device; return CUDA_NO_DEVICE; }
ABSENT_API int cudaDriverGetVersion(int *version) { *version = 0; return CUDA_SUCCESS; }
ABSENT_API int cudaRuntimeGetVersion(int *version) { *version = 0; return CUDA_SUCCESS; }
ABSENT_API int cudaGetLastError(void) { return CUDA_SUCCESS; }
ABSENT_API int cudaPeekAtLastError(void) { return CUDA_SUCCESS; }
ABSENT_API const char *cudaGetErrorName(int error) { return error == CUDA_NO_DEVICE ? "cudaErrorNoDevice" : "cudaError"; }
ABSENT_API const char *cudaGetErrorString(int error) {
    return error == CUDA_NO_DEVICE ? "no CUDA-capable device is detected" : "CUDA is not there";
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
