/* Configuration from environment variables, and the symbol that marks the runtime as simulated. */
#include "sim.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sim_config config;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char *text(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value && *value ? value : fallback;
}

static void read_config(void) {
    int count = atoi(text("NPU_SIM_COUNT", "1"));
    config.count = count < 0 ? 0 : count > SIM_MAX_DEVICES ? SIM_MAX_DEVICES : count;
    config.memory_bytes = (size_t)(atof(text("NPU_SIM_MEMORY_GB", "64")) * (double)(1ull << 30));
    config.trace = atoi(text("NPU_SIM_TRACE", "0"));
    snprintf(config.soc, sizeof config.soc, "%s", text("NPU_SIM_SOC", "Ascend910B3"));
    snprintf(config.cann, sizeof config.cann, "%s", text("NPU_SIM_CANN", "8.5.0"));

    const char *fail = text("NPU_SIM_SYNC_FAIL", "");
    const char *code = strchr(fail, ':');
    config.sync_fail_at = atol(fail);
    config.sync_fail_code = code ? atoi(code + 1) : SIM_AICORE_EXCEPTION;

    const char *hang = text("NPU_SIM_HANG", "");
    const char *seconds = strchr(hang, ':');
    config.hang_at = atol(hang);
    config.hang_seconds = seconds ? atof(seconds + 1) : -1.0;
}

const sim_config *sim_get_config(void) {
    pthread_once(&once, read_config);
    return &config;
}

void sim_trace(const char *function) {
    if (sim_get_config()->trace) fprintf(stderr, "[npu-sim] %s\n", function);
}

/* Marks this runtime as simulated. Code that reports a result as hardware must check that this symbol is missing. */
SIM_API int npu_sim_sentinel(void) { return 1; }

SIM_API aclError aclInit(const char *path) { (void)path; TRACE; return SIM_OK; }
SIM_API aclError aclFinalize(void) { TRACE; return SIM_OK; }
SIM_API const char *aclGetRecentErrMsg(void) { return "simulated CANN runtime"; }
SIM_API const char *aclrtGetSocName(void) { return sim_get_config()->soc; }
SIM_API aclError aclrtPeekAtLastError(int level) { (void)level; return SIM_OK; }
SIM_API aclError aclrtGetLastError(int level) { (void)level; return SIM_OK; }

/* aclCANNPackageVersion: version[128], then major, minor, release and patch of 64 each, reserved[128] */
SIM_API aclError aclsysGetCANNVersion(int package, char *version) {
    (void)package;
    TRACE;
    memset(version, 0, 128 + 4 * 64 + 128);
    memcpy(version, sim_get_config()->cann, 128);
    return SIM_OK;
}

SIM_API aclError aclsysGetVersionStr(char *package, char *version) {
    (void)package;
    TRACE;
    strcpy(version, sim_get_config()->cann);
    return SIM_OK;
}

/* Options of the operator compiler are accepted and ignored. torch_npu sets them while it initialises. */
SIM_API aclError aclSetCompileopt(int option, const char *value) { (void)option; (void)value; TRACE; return SIM_OK; }
SIM_API size_t aclGetCompileoptSize(int option) { (void)option; return 64; }
SIM_API aclError aclGetCompileopt(int option, char *value, size_t length) {
    (void)option;
    if (length) value[0] = 0;
    return SIM_OK;
}
SIM_API aclError aclopSetCompileFlag(int flag) { (void)flag; TRACE; return SIM_OK; }
