/* Print the self-test's number for every instruction set of this processor. */
#include <inttypes.h>
#include <stdio.h>

#include "miractl_native.h"

int main(void)
{
    static const char *const names[MIRA_ISAS] = {"scalar", "avx2", "vnni", "neon"};
    for (int isa = 0; isa < MIRA_ISAS; isa++) {
        if (mira_isa_supported(isa)) {
            mira_isa_use(isa);
            printf("%s 0x%016" PRIX64 "\n", names[isa], mira_self_test());
        }
    }
    return 0;
}
