// A program that wants a card's time, in many ways. Words NAME=VALUE:
//   seconds   how long it runs            ms        length of a kernel (of an H200 alone)
//   graph     kernels in a CUDA graph     processes, contexts   how many (contexts of each process)
//   on, off   ms of work and of pause     rotate    ms after which the next context takes over
//   restart   seconds after which a process ends and another one starts
// Prints "PID CLOCK_MONOTONIC-ms KERNELS-DONE" every 50 ms.
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Of 1 ms on an H200 (132 multiprocessors, eight blocks of 256 threads on each): 20,000 rounds take 0.37 ms.
static const double ROUNDS_A_MS = 20000 / 0.37;
static const int AHEAD = 4;

__global__ void work(float *out, int rounds) {
    float x = threadIdx.x, y = 1.0001f;
    for (int i = 0; i < rounds; i++) {
        x = fmaf(x, y, 0.5f);
        y = fmaf(y, 0.9999f, 0.00001f);
    }
    if (x == 12345.f) out[0] = x + y;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int count_words;
static char **words;

static double word(const char *name, double otherwise) {
    size_t n = strlen(name);
    for (int i = 1; i < count_words; i++)
        if (!strncmp(words[i], name, n) && words[i][n] == '=') return atof(words[i] + n + 1);
    return otherwise;
}

static long done;
static int contexts;
static double ends;

static void check(cudaError_t e, const char *what) {
    if (e != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
        exit(3);
    }
}

// One context's work, in its turns.
static void *spin(void *numbered) {
    long number = (long)numbered;
    if (contexts > 1) {
        CUcontext context;
        CUctxCreateParams none = {};
        if (cuInit(0) || cuCtxCreate(&context, &none, 0, 0)) exit(4);
    }
    float *out;
    cudaStream_t stream;
    check(cudaMalloc(&out, 4096), "memory");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    int per = (int)word("graph", 0), rounds = (int)(word("ms", 0.37) * ROUNDS_A_MS);
    double on = word("on", 1e9), off = word("off", 0), rotate = word("rotate", 0);
    dim3 grid(132 * 8), block(256);
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    if (per) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        for (int i = 0; i < per; i++) work<<<grid, block, 0, stream>>>(out, rounds);
        check(cudaStreamEndCapture(stream, &graph), "capture");
        check(cudaGraphInstantiate(&replay, graph, 0), "graph");
    }
    cudaEvent_t event[AHEAD];
    bool waits[AHEAD] = {};
    for (int i = 0; i < AHEAD; i++) cudaEventCreateWithFlags(&event[i], cudaEventDisableTiming | cudaEventBlockingSync);
    double began = now();
    for (int at = 0; now() < ends; at = (at + 1) % AHEAD) {
        if (waits[at]) {
            check(cudaEventSynchronize(event[at]), "kernel");
            __atomic_fetch_add(&done, per ? per : 1, __ATOMIC_RELAXED);
            waits[at] = false;
        }
        double t = now() - began;
        bool mine = (!rotate || (long)(now() / rotate) % contexts == number) && (!off || t - (long)(t / (on + off)) * (on + off) < on);
        if (!mine) {
            usleep(100);
            continue;
        }
        if (per) cudaGraphLaunch(replay, stream);
        else work<<<grid, block, 0, stream>>>(out, rounds);
        cudaEventRecord(event[at], stream);
        waits[at] = true;
    }
    check(cudaStreamSynchronize(stream), "kernels");
    return 0;
}

static int run() {
    pthread_t thread[64];
    for (long i = 0; i < contexts; i++) pthread_create(&thread[i], 0, spin, (void *)i);
    while (now() < ends) {
        printf("%d %.1f %ld\n", getpid(), now(), __atomic_load_n(&done, __ATOMIC_RELAXED));
        fflush(stdout);
        usleep(50000);
    }
    for (int i = 0; i < contexts; i++) pthread_join(thread[i], 0);
    return 0;
}

int main(int n, char **v) {
    count_words = n;
    words = v;
    contexts = (int)word("contexts", 1);
    double restart = word("restart", 0), last = now() + word("seconds", 5) * 1e3;
    int processes = (int)word("processes", 1), failed = 0, status;
    ends = last;
    if (processes == 1 && !restart) return run();
    while (now() < last) {
        ends = restart && now() + restart * 1e3 < last ? now() + restart * 1e3 : last;
        for (int i = 0; i < processes; i++)
            if (!fork()) exit(run());
        while (wait(&status) > 0) failed |= status;
    }
    return failed ? 1 : 0;
}
