/* A CUDA driver without a GPU: the entry points that Fulmen uses, over the memory of the process. It counts what lives
 * (fake_live, fake_contexts, fake_depth) and fails a call when it is told to (fake_fail). One thread at a time. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST = 64, GPUS = 2 };
struct range { char *at; size_t len; char kind; /* 'h'ost, 'r'egistered, 'd'evice */ };
static struct range live[MOST];
static int contexts[GPUS], depth, gpus = GPUS;
static int stack[MOST];
static const char *failing;
static int failure;

int fake_live(void) { int n = 0; for (int i = 0; i < MOST; i++) n += live[i].at != NULL; return n; }
int fake_contexts(void) { return contexts[0] + contexts[1]; }
int fake_depth(void) { return depth; }
void fake_gpus(int n) { gpus = n; }
void fake_fail(const char *call, int status) { failing = call; failure = status; }

#define MAY_FAIL do { if (failing && !strcmp(failing, __func__)) return failure; } while (0)
#define IN_CONTEXT do { MAY_FAIL; if (!depth) return 201; } while (0)

static struct range *covering(const void *p, size_t len) {
    for (int i = 0; i < MOST; i++)
        if (live[i].at && (char *)p >= live[i].at && (char *)p + len <= live[i].at + live[i].len) return &live[i];
    return NULL;
}
static int add(void *at, size_t len, char kind) {
    for (int i = 0; i < MOST; i++)
        if (!live[i].at) { live[i] = (struct range){at, len, kind}; return 0; }
    return 2;
}
static int take(void *at, char kind, int otherwise, size_t *len) {
    for (int i = 0; i < MOST; i++)
        if (at && live[i].at == at && live[i].kind == kind) { live[i].at = NULL; *len = live[i].len; return 0; }
    return otherwise;
}

int cuInit(unsigned flags) { MAY_FAIL; return flags ? 1 : 0; }
int cuGetErrorName(int status, const char **name) {
    *name = status == 712 ? "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED" : status == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : NULL;
    return *name ? 0 : 1;
}
int cuGetErrorString(int status, const char **text) { *text = status == 2 ? "out of memory" : NULL; return *text ? 0 : 1; }
int cuDriverGetVersion(int *version) { *version = 12080; return 0; }
int cuDeviceGetCount(int *count) { MAY_FAIL; *count = gpus; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 7 + ordinal; return 0; }
int cuDeviceGetName(char *name, int len, int device) { memset(name, 'A' + device - 7, len); return 0; }
int cuDeviceGetPCIBusId(char *id, int len, int device) { strncpy(id, device == 7 ? "0000:01:00.0" : "0000:02:00.0", len); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device - 6) << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 41: *value = 1; return 0;
    case 124: *value = device == 7; return 0;
    default: return 1;
    }
}
int cuDevicePrimaryCtxRetain(void **context, int device) { MAY_FAIL; contexts[device - 7]++; *context = &contexts[device - 7]; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { contexts[device - 7]--; return 0; }
int cuCtxPushCurrent_v2(void *context) { MAY_FAIL; stack[depth++] = (int)((int *)context - contexts); return 0; }
int cuCtxPopCurrent_v2(void **context) { if (!depth) return 201; *context = &contexts[stack[--depth]]; return 0; }
int cuCtxSynchronize(void) { IN_CONTEXT; return 0; }

int cuMemHostAlloc(void **p, size_t len, unsigned flags) {
    IN_CONTEXT;
    if (flags != 3) return 1;
    if (len > (size_t)1 << 40) return 2;
    *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*p == MAP_FAILED) return 2;
    memset(*p, 0xaa, len);
    return add(*p, len, 'h');
}
int cuMemFreeHost(void *p) { IN_CONTEXT; size_t len; int status = take(p, 'h', 1, &len); if (!status) munmap(p, len); return status; }
int cuMemHostRegister_v2(void *p, size_t len, unsigned flags) {
    IN_CONTEXT;
    if ((flags & 3) != 3 || len % 4096 || (uintptr_t)p % 4096) return 1;
    return covering(p, 1) ? 712 : add(p, len, 'r');
}
int cuMemHostUnregister(void *p) { IN_CONTEXT; size_t len; return take(p, 'r', 713, &len); }
int cuMemHostGetDevicePointer_v2(uint64_t *at, void *p, unsigned flags) {
    IN_CONTEXT;
    if (flags || !covering(p, 1)) return 1;
    *at = (uintptr_t)p;
    return 0;
}
/* Aligned to less than a page, as a driver may. */
int cuMemAlloc_v2(uint64_t *at, size_t len) {
    IN_CONTEXT;
    char *p = NULL;
    if (len > (size_t)1 << 40 || posix_memalign((void **)&p, 4096, len + 512)) return 2;
    *at = (uintptr_t)p + 512;
    return add(p + 512, len, 'd');
}
int cuMemFree_v2(uint64_t at) { IN_CONTEXT; size_t len; int status = take((void *)at, 'd', 1, &len); if (!status) free((char *)at - 512); return status; }
int cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t len) { IN_CONTEXT; if (!covering((void *)at, len)) return 1; memset((void *)at, byte, len); return 0; }
int cuMemcpyHtoD_v2(uint64_t at, const void *from, size_t len) { IN_CONTEXT; if (!covering((void *)at, len)) return 1; memcpy((void *)at, from, len); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t at, size_t len) { IN_CONTEXT; if (!covering((void *)at, len)) return 1; memcpy(to, (void *)at, len); return 0; }
#ifndef OLD
int cuMemGetHandleForAddressRange(void *handle, uint64_t at, size_t len, int type, unsigned long long flags) {
    IN_CONTEXT;
    struct range *range = covering((void *)at, len);
    if (type != 1 || flags || at % 4096 || len % 4096 || !range || range->kind != 'd') return 1;
    *(int *)handle = memfd_create("dmabuf", MFD_CLOEXEC);
    return 0;
}
#endif
