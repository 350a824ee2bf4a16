/* An invented libnvidia-ml.so.1 for tests; script.h controls it:
 *
 *   init=18, find=15, uuid=3   NVML's number of a call, or hang     fabric=3:0:7  state, status, clique; none if absent
 *   compute=1 graphics=1 mps=1 processes                            later=1       processes from the third call on
 *   mig=1                      cut into instances
 */
#include "script.h"

struct fabric { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; };

static int word(char *to, unsigned most, const char *words) {
    snprintf(to, most, "%s", words);
    return 0;
}

int nvmlInit_v2(void) { return failure("init"); }
const char *nvmlErrorString(int error) {
    return error == 15 ? "GPU is lost" : error == 18 ? "Driver/library version mismatch" : "Not Supported";
}
int nvmlSystemGetDriverVersion(char *to, unsigned most) { return word(to, most, "570.172.08"); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **gpu) {
    static int one;
    int error = failure("find");
    if (!error && strcmp(pci, "0008:01:00.0"))
        return 6;
    *gpu = &one;
    return error;
}
int nvmlDeviceGetUUID(void *gpu, char *to, unsigned most) {
    (void)gpu;
    int error = failure("uuid");
    return error ? error : word(to, most, "GPU-00000000-0000-4000-8000-000000000001");
}
int nvmlDeviceGetName(void *gpu, char *to, unsigned most) { (void)gpu; return word(to, most, "NVIDIA GB200"); }
int nvmlDeviceGetGpuFabricInfoV(void *gpu, struct fabric *info) {
    (void)gpu;
    const char *value = scripted("fabric");
    if (!value)
        return 3;
    if (info->version != 0x02000024)
        return 25;
    int state = 0, status = 0, clique = 0;
    sscanf(value, "%d:%d:%d", &state, &status, &clique);
    memset(info->cluster, 0x5a, 16);
    info->state = (unsigned char)state;
    info->status = status;
    info->clique = (unsigned)clique;
    return 0;
}
int nvmlDeviceGetMigMode(void *gpu, unsigned *now, unsigned *later) {
    (void)gpu;
    *now = *later = (unsigned)number("mig");
    return 0;
}
static int count(unsigned *room, int processes) {
    int sized = *room != 0;
    *room = (unsigned)processes;
    return sized ? 2 : processes ? 7 : 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *room, void *into) {
    static int calls;
    (void)gpu, (void)into;
    return count(room, number("compute") + (calls++ > 1 ? number("later") : 0));
}
/* The name in older drivers. */
int nvmlDeviceGetGraphicsRunningProcesses(void *gpu, unsigned *room, void *into) {
    (void)gpu, (void)into;
    return count(room, number("graphics"));
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *gpu, unsigned *room, void *into) {
    (void)gpu, (void)into;
    return count(room, number("mps"));
}
