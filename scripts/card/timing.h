// What the measuring programs share: a clock in microseconds, and percentiles.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static inline int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline void show(const char *name, double *took, int n) {
    qsort(took, n, sizeof *took, by_size);
    printf("%s p50 %.2f p99 %.2f\n", name, took[n / 2], took[n * 99 / 100]);
}
