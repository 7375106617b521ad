/* A libcuda.so.1 of one card, for tests of the copies and of page-locking.
 *
 * FAKE_CUDA=<number> makes the start return that error. FAKE_CUDA_PIN=<bytes> is the largest piece
 * that can be page-locked. A batch of copies takes 10 ms by the clock of its events.
 */
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };

static int ready;

int cuInit(unsigned flags) {
    const char *code = getenv("FAKE_CUDA");
    ready = 1;
    return code == NULL ? SUCCESS : atoi(code);
}

int cuGetErrorName(int code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
                                  : NULL;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}

int cuDeviceGet(int *device, int index) {
    *device = 70 + index;
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, size, "0000:%d:00.0", device - 5);
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)1;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }

int cuCtxSetCurrent(void *context) { return context == NULL; }

int cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    const char *limit = getenv("FAKE_CUDA_PIN");
    *pointer = (void *)size;
    return limit != NULL && size > strtoull(limit, NULL, 10) ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemFreeHost(void *pointer) { return SUCCESS; }

int cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    *pointer = 0x7f0000000000ULL + size;
    return SUCCESS;
}

int cuMemFree_v2(unsigned long long pointer) { return SUCCESS; }

/* The pointers carry the sizes they were made with, whole, so a copy can tell a wrong one. */
int cuMemcpyHtoDAsync_v2(unsigned long long to, const void *from, size_t size, void *stream) {
    return !ready || (size_t)from != size || to != 0x7f0000000000ULL + size;
}

int cuEventCreate(void **event, unsigned flags) {
    static size_t next;
    *event = (void *)++next;
    return SUCCESS;
}

int cuEventDestroy_v2(void *event) { return SUCCESS; }

int cuEventRecord(void *event, void *stream) { return event == NULL; }

int cuEventSynchronize(void *event) { return event == NULL; }

int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = 10;
    return start == end;
}
