/* Which instruction sets this processor has, and which is in use. */
#include "kernels.h"

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define HAS_DOT_PRODUCT (getauxval(AT_HWCAP) & 1ul << 20) /* HWCAP_ASIMDDP */
#elif defined(__ARM_FEATURE_DOTPROD)
#define HAS_DOT_PRODUCT 1
#else
#define HAS_DOT_PRODUCT 0
#endif

static const isa *const sets[MIRA_ISAS] = {
    [MIRA_SCALAR] = &isa_scalar,
#if defined(__x86_64__)
    [MIRA_AVX2] = &isa_avx2,
    [MIRA_VNNI] = &isa_vnni,
#elif defined(__aarch64__)
    [MIRA_NEON] = &isa_neon,
#endif
};

static int used = MIRA_SCALAR;

const isa *isa_in_use(void)
{
    return sets[used];
}

int mira_isa_used(void)
{
    return used;
}

void mira_isa_use(int isa)
{
    used = isa;
}

int mira_isa_supported(int isa)
{
    if (isa < 0 || isa >= MIRA_ISAS || !sets[isa])
        return 0;
#if defined(__x86_64__)
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
               && __builtin_cpu_supports("f16c");
    if (isa == MIRA_AVX2)
        return avx2;
    if (isa == MIRA_VNNI)
        return avx2 && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
               && __builtin_cpu_supports("avx512vnni");
#endif
    if (isa == MIRA_NEON)
        return HAS_DOT_PRODUCT != 0;
    return 1;
}
