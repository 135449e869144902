/* Tells which instruction sets this processor has. Compiled for every processor, unlike the kernels. */
#include <string.h>
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

/* Whether the kernels of the instruction set `name` run here. */
int runs_here(const char *name) {
    if (!strcmp(name, "scalar")) return 1;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!strcmp(name, "avx2")) return avx2;
    if (!strcmp(name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__linux__)
    if (!strcmp(name, "neon")) return (getauxval(AT_HWCAP) >> 20) & 1; /* HWCAP_ASIMDDP: the dot product */
#elif defined(__aarch64__) && defined(__APPLE__)
    if (!strcmp(name, "neon")) return 1; /* every Apple processor of this family has the dot product */
#endif
    return 0;
}
