/* A libnvidia-ml.so.1 of one card, for tests of the path through the real Python binding.
 *
 * FAKE_NVML=<number> makes the start return that error; FAKE_NVML=hang makes it sleep for long.
 * What is not here the binding reports as FunctionNotFound, as with an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlInitWithFlags(unsigned flags) {
    const char *mode = getenv("FAKE_NVML");
    if (mode != NULL && strcmp(mode, "hang") == 0)
        sleep(30);
    return mode == NULL ? SUCCESS : atoi(mode);
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) { return "an error of the fake"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.95.05");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = 13000;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)1;
    return SUCCESS;
}

/* Asked for by address, the card is awake: the copies ask so. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    *device = (void *)2;
    return strcmp(address, "0000:65:00.0") == 0 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation) {
    *generation = device == (void *)2 ? 4 : 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *generation) {
    *generation = 4;
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width) {
    *width = 8;
    return SUCCESS;
}

int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *count) {
    static unsigned replays;
    *count = replays += 3;
    return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *text, unsigned size) {
    snprintf(text, size, "NVIDIA A10");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:65:00.0");
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    memory->total = 1000;
    memory->reserved = 50;
    memory->used = 100;
    memory->free = 850;
    return SUCCESS;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *width) {
    *width = 8;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    return NOT_SUPPORTED;
}
