/* The one aclnn operator that torch_npu's C++ code calls without the dispatcher: ProcessGroupHCCL pads with aclnnConstantPadNd.
 * All other operators are CPU kernels in Python; they are missing here, and a call of one says so with its name. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DIMENSIONS 8

typedef struct {
    uint64_t dimensions;
    int64_t sizes[MAX_DIMENSIONS], strides[MAX_DIMENSIONS];
    uint64_t item;
    char *data;
} tensor;
typedef struct {
    uint64_t length;
    int64_t values[];
} int_array;
typedef struct {
    char value[16];
} scalar;

/* Bytes of each aclDataType, from 0 (float) to 27 (bfloat16); 0: not supported. */
static const uint8_t item_bytes[] = {4, 2, 1, 4, 1, 0, 2, 2, 4, 8, 8, 8, 1, 0, 0, 0, 8, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};

SIM_API void *aclCreateTensor(const int64_t *sizes, uint64_t dimensions, int type, const int64_t *strides, int64_t offset, int format,
                              const int64_t *storage_sizes, uint64_t storage_dimensions, void *data) {
    (void)format; (void)storage_sizes; (void)storage_dimensions;
    tensor *created = calloc(1, sizeof *created);
    if (!created || dimensions > MAX_DIMENSIONS || type < 0 || (size_t)type >= sizeof item_bytes) {
        free(created);
        return NULL;
    }
    created->dimensions = dimensions;
    created->item = item_bytes[type];
    created->data = (char *)sim_host(data) + offset * (int64_t)created->item;
    memcpy(created->sizes, sizes, dimensions * sizeof *sizes);
    memcpy(created->strides, strides, dimensions * sizeof *strides);
    return created;
}
SIM_API void *aclCreateIntArray(const int64_t *values, uint64_t length) {
    int_array *created = malloc(sizeof *created + length * sizeof *values);
    if (!created) return NULL;
    created->length = length;
    memcpy(created->values, values, length * sizeof *values);
    return created;
}
SIM_API void *aclCreateScalar(const void *value, int type) {
    scalar *created = calloc(1, sizeof *created);
    size_t bytes = type >= 0 && (size_t)type < sizeof item_bytes ? item_bytes[type] : 0;
    if (created) memcpy(created->value, value, bytes);
    return created;
}
SIM_API int aclDestroyTensor(void *value) { free(value); return SIM_OK; }
SIM_API int aclDestroyIntArray(void *value) { free(value); return SIM_OK; }
SIM_API int aclDestroyScalar(void *value) { free(value); return SIM_OK; }

typedef struct {
    tensor input, output;
    int64_t before[MAX_DIMENSIONS];
} padding;

/* Only padding with zeros, which have the same bits in every type. */
SIM_API int aclnnConstantPadNdGetWorkspaceSize(const tensor *input, const int_array *pad, const scalar *value, const tensor *output,
                                               uint64_t *workspace, void **executor) {
    static const scalar zero;
    TRACE;
    if (!input || !pad || !value || !output || pad->length % 2 || pad->length / 2 > input->dimensions || !input->item ||
        memcmp(value, &zero, sizeof zero))
        return SIM_PARAM_INVALID;
    padding *job = calloc(1, sizeof *job);
    if (!job) return SIM_OUT_OF_MEMORY;
    job->input = *input;
    job->output = *output;
    for (uint64_t i = 0; i < pad->length / 2; i++) {
        if (pad->values[2 * i] < 0 || pad->values[2 * i + 1] < 0) {
            free(job);
            return SIM_PARAM_INVALID;
        }
        job->before[input->dimensions - 1 - i] = pad->values[2 * i];
    }
    *workspace = 0;
    *executor = job;
    return SIM_OK;
}

static void pad_dimension(const padding *job, uint64_t dimension, char *output, const char *input) {
    const tensor *from = &job->input, *to = &job->output;
    if (dimension == to->dimensions) {
        if (input) memcpy(output, input, to->item);
        else memset(output, 0, to->item);
        return;
    }
    for (int64_t i = 0; i < to->sizes[dimension]; i++) {
        int64_t source = i - job->before[dimension];
        int inside = input && source >= 0 && source < from->sizes[dimension];
        pad_dimension(job, dimension + 1, output + i * to->strides[dimension] * (int64_t)to->item,
                      inside ? input + source * from->strides[dimension] * (int64_t)from->item : NULL);
    }
}

SIM_API int aclnnConstantPadNd(void *workspace, uint64_t bytes, void *executor, void *stream) {
    (void)workspace; (void)bytes; TRACE;
    padding *job = executor;
    aclError error = sim_stream_drain(stream);
    if (!error) pad_dimension(job, 0, job->output.data, job->input.data);
    free(job);
    return error;
}
