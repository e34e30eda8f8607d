// A loop over shared file mappings, as programs that have nothing to do with a GPU make them. Prints microseconds.
// With a word: under a seccomp filter that allows everything, which is the least that any filter costs.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "timing.h"

int main(int words, char **word) {
    enum { N = 40000 };
    (void)word;
    if (words > 1) {
        struct sock_filter allow[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 16), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
        struct sock_fprog filter = {2, allow};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 3;
    }
    int fd = memfd_create("mappings", 0);
    if (fd < 0 || ftruncate(fd, 1 << 20)) return 1;
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        double began = now();
        for (int i = 0; i < N; i++) {
            char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (p == MAP_FAILED) return 2;
            p[0]++;
            munmap(p, 1 << 20);
        }
        double took = (now() - began) / N;
        if (took < best) best = took;
    }
    printf("mapping %.3f\n", best);
    return 0;
}
