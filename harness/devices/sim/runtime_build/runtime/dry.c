/* For a process that only verifies calls (refusals/check_server.py): operators succeed and do nothing, and copies between two
 * places on the device copy nothing. Numbers that it reads from the device are arbitrary, so reads are counted. */
#include "sim.h"

SIM_API int npu_sim_dry;
SIM_API atomic_int npu_sim_reads;

int sim_skips_copy(const void *target, const void *source) {
    if (!npu_sim_dry || !sim_is_device(source)) return 0;
    if (sim_is_device(target)) return 1;
    atomic_fetch_add(&npu_sim_reads, 1);
    return 0;
}
