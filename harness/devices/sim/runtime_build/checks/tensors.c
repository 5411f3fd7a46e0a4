/* Part of the library of operators that do nothing: tensors of CANN that only have a shape. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SIM_API __attribute__((visibility("default")))

typedef struct {
    uint64_t dimensions;
    int64_t sizes[];
} tensor;

SIM_API void *aclCreateTensor(const int64_t *sizes, uint64_t dimensions, int type, const int64_t *strides, int64_t offset, int format,
                              const int64_t *storage_sizes, uint64_t storage_dimensions, void *data) {
    (void)type; (void)strides; (void)offset; (void)format; (void)storage_sizes; (void)storage_dimensions; (void)data;
    tensor *created = malloc(sizeof *created + dimensions * sizeof *sizes);
    if (!created) return NULL;
    created->dimensions = dimensions;
    if (dimensions) memcpy(created->sizes, sizes, dimensions * sizeof *sizes);
    return created;
}
SIM_API int aclDestroyTensor(void *value) { free(value); return 0; }

/* Operators with results of unknown size ask for it. The answer is the size that the caller reserved. */
SIM_API int aclGetViewShape(const tensor *asked, int64_t **sizes, uint64_t *dimensions) {
    *dimensions = asked->dimensions;
    *sizes = malloc((asked->dimensions + 1) * sizeof **sizes);
    if (!*sizes) return 1;
    memcpy(*sizes, asked->sizes, asked->dimensions * sizeof **sizes);
    return 0;
}
