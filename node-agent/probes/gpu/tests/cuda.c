/* An invented libcuda.so.1 for tests: a GPU with memory of the host, exported as memfd instead of dma-buf. script.h controls it:
 *
 *   cuInit=802, cuCtxCreate=2, cuMemAlloc=2, export=801   CUDA's number of a call, or hang
 *   dma_buf=1 gpu_direct=1      what it can do
 *   blind=1                     what is written to the exported memory never comes to the GPU
 * Prints a wrong order of releases to stderr.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>

#include "script.h"

static int contexts, allocations, current, file = -1;
static char *memory;
static size_t size;

static unsigned refused(const char *call) { return (unsigned)failure(call); }

unsigned cuInit(unsigned flags) { return flags ? 1 : refused("cuInit"); }
unsigned cuGetErrorString(unsigned error, const char **words) {
    *words = error == 802 ? "system not yet initialized" : error == 2 ? "out of memory" : NULL;
    return *words ? 0 : 1;
}
unsigned cuDeviceGetByPCIBusId(int *device, const char *pci) {
    *device = 0;
    return strcmp(pci, "0008:01:00.0") ? 101 : 0;
}
unsigned cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    if (attribute != 116 && attribute != 124)
        return 1;
    *value = (int)refused(attribute == 116 ? "gpu_direct" : "dma_buf");
    return 0;
}
unsigned cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags, (void)device;
    unsigned error = refused("cuCtxCreate");
    if (error)
        return error;
    contexts++;
    *context = &contexts;
    return 0;
}
unsigned cuCtxDestroy_v2(void *context) {
    (void)context;
    contexts--;
    if (allocations)
        fprintf(stderr, "the context is released while %d allocations use it\n", allocations);
    return 0;
}
unsigned cuCtxSetCurrent(void *context) {
    current = context != NULL;
    return contexts ? 0 : 201;
}
unsigned cuCtxSynchronize(void) { return current ? 0 : 201; }
unsigned cuMemAlloc_v2(uint64_t *at, size_t length) {
    unsigned error = refused("cuMemAlloc");
    if (error)
        return error;
    size = length;
    file = memfd_create("vram", 0);
    if (ftruncate(file, (off_t)(2 * length)))
        return 2;
    memory = mmap(NULL, 2 * length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    allocations++;
    /* Not page-aligned, as with CUDA. */
    *at = (uint64_t)(uintptr_t)memory + 512;
    return 0;
}
unsigned cuMemFree_v2(uint64_t at) {
    (void)at;
    allocations--;
    return 0;
}
static int within(uint64_t at, size_t length) {
    uint64_t base = (uint64_t)(uintptr_t)memory + 512;
    return current && at >= base && at + length <= base + size;
}
unsigned cuMemsetD8_v2(uint64_t at, unsigned char value, size_t length) {
    if (!within(at, length))
        return 1;
    memset((void *)(uintptr_t)at, value, length);
    return 0;
}
unsigned cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t length) {
    if (!within(to, length))
        return 1;
    memcpy((void *)(uintptr_t)to, from, length);
    return 0;
}
unsigned cuMemcpyDtoH_v2(void *to, uint64_t from, size_t length) {
    if (!within(from, length))
        return 1;
    memcpy(to, (void *)(uintptr_t)from, length);
    if (scripted("blind"))
        memset(to, 0xa5, length);
    return 0;
}
unsigned cuPointerSetAttribute(const void *value, int attribute, uint64_t at) {
    return attribute == 6 && *(const unsigned *)value == 1 && within(at, 1) ? 0 : 1;
}
unsigned cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t length, int type, unsigned long long flags) {
    unsigned error = refused("export");
    if (error)
        return error;
    if (!within(at, length) || at % 65536 || length % 65536 || type != 1 || flags)
        return 1;
    *(int *)handle = dup(file);
    return 0;
}
