// cuMemGetInfo, cuMemAlloc and cuMemFree of 4 MiB as an application sees them. Prints microseconds.
#include <cuda.h>

#include "timing.h"

int main(void) {
    enum { N = 4000 };
    static double info[N], alloc[N], release[N];
    CUdevice device;
    CUcontext context;
    CUdeviceptr p;
    size_t free_bytes, total;
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
        return 1;
    for (int i = 0; i < N; i++) {
        double a = now();
        cuMemGetInfo(&free_bytes, &total);
        double b = now();
        if (cuMemAlloc(&p, 4 << 20)) return 2;
        double c = now();
        cuMemFree(p);
        release[i] = now() - c, alloc[i] = c - b, info[i] = b - a;
    }
    show("getinfo", info, N);
    show("alloc", alloc, N);
    show("free", release, N);
    return 0;
}
