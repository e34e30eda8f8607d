// One driver call that asks for nothing: what its mediation costs. Prints microseconds.
#include <fcntl.h>
#include <stdint.h>
#include <sys/ioctl.h>

#include "timing.h"

int main(void) {
    enum { N = 20000 };
    static double took[N];
    int control = open("/dev/nvidiactl", O_RDWR), gpu = open("/dev/nvidia0", O_RDWR);
    uint32_t alloc[12] = {0};
    if (control < 0 || gpu < 0 || ioctl(control, 0xc030462b, alloc) || alloc[10]) return 1;
    uint32_t ids[32], info[8];
    struct { uint32_t client, object, cmd, flags; uint64_t params; uint32_t size, status; } call =
        {alloc[2], alloc[2], 0x201, 0, (uint64_t)ids, sizeof ids, 0};
    if (ioctl(control, 0xc020462a, &call) || call.status) return 2;
    call.cmd = 0x205, call.params = (uint64_t)info, call.size = sizeof info;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            info[0] = ids[0];
            double began = now();
            ioctl(control, 0xc020462a, &call);
            took[i] = now() - began;
            if (call.status) return 3;
        }
    show("control", took, N);
    return 0;
}
