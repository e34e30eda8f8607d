// A program that has little to do and wants it done soon: a short kernel, then a pause, over and over. Words NAME=VALUE:
//   seconds   how long it runs            after     seconds at the beginning that don't count
//   ms        length of the kernel        each      ms of pause
//   jitter    ms by which pauses differ at most, so that a kernel comes at any moment of what others run
// Prints "working" when the first kernel is done, and at the end how long it took from the launch to the end of the wait.
#include <cuda_runtime.h>
#include <string.h>
#include <unistd.h>

#include "timing.h"

// Eight blocks of 256 threads on each of an H200's 132 multiprocessors keep it busy: steps of two operations that take 1 ms,
// as share.cu's do. What it takes alone is measured first.
static const int BLOCKS = 132 * 8;
static const double STEPS_A_MS = 20000 / 0.37;

__global__ void chain(float *out, int steps) {
    float x = threadIdx.x;
    for (int i = 0; i < steps; i++) x = fmaf(fmaf(x, 1.0001f, 0.5f), 0.9999f, 0.00001f);
    if (x == 12345.f) *out = x;
}

static void check(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(3);
}

static double word(int n, char **v, const char *name, double otherwise) {
    size_t length = strlen(name);
    for (int i = 1; i < n; i++)
        if (!strncmp(v[i], name, length) && v[i][length] == '=') return atof(v[i] + length + 1);
    return otherwise;
}

int main(int n, char **v) {
    double counts = word(n, v, "after", 0.5) * 1e6, ends = counts + word(n, v, "seconds", 3) * 1e6;
    double each = word(n, v, "each", 5) * 1e3, jitter = word(n, v, "jitter", 0) * 1e3;
    int steps = (int)(word(n, v, "ms", 0.13) * STEPS_A_MS), kernels = 0;
    float *out;
    check(cudaSetDeviceFlags(cudaDeviceScheduleSpin), "device");
    check(cudaMalloc(&out, sizeof *out), "memory");
    double *took = (double *)malloc(sizeof *took * (size_t)((ends - counts) / each + 2));
    double began = now();
    for (int first = 1; now() - began < ends; first = 0) {
        double came = now();
        chain<<<BLOCKS, 256>>>(out, steps);
        check(cudaGetLastError(), "launch");
        check(cudaDeviceSynchronize(), "kernel");
        if (came - began >= counts) took[kernels++] = now() - came;
        if (first) {
            puts("working");
            fflush(stdout);
        }
        usleep((useconds_t)(each + jitter * rand() / RAND_MAX));
    }
    if (!kernels) return 4;
    show("kernel", took, kernels);
    printf("kernels %d longest %.2f\n", kernels, took[kernels - 1]);
    return 0;
}
