// The fault record: the first failure of a launch, in host memory. Rust twin: mkernel-core/src/fault.rs.
#pragma once

#include "sync.cuh"

namespace mk {

/// Where a thread is in the program.
struct Place {
    u32 rank;
    u32 lane;
    u32 instruction;
};

/// One thread reports a failure and tells everybody to unwind; the first report of a launch is the one kept.
__device__ __noinline__ void report(const LaunchEntry& launch, FaultCode code, Place place, u32 cell, u64 wanted, u64 seen) {
    if (take_number(at<u32>(launch.fault_claim)) == 0) {
        FaultRecord* record = at<FaultRecord>(launch.fault);
        record->wanted = wanted;
        record->seen = seen;
        record->code = static_cast<u32>(code);
        record->rank = place.rank;
        record->lane = place.lane;
        record->instruction = place.instruction;
        record->cell = cell;
        store_release_system(&record->written, 1);
    }
    store_relaxed_system(at<u32>(launch.abort), 1);
}

}  // namespace mk
