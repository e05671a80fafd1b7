// Signals: a counter rises once the bytes it covers are visible. Rust twin: mkernel-core/src/signal.rs (Signal).
#pragma once

#include "sync.cuh"

namespace mk {

/// One thread raises a signal. The CTA has met at a barrier since its last write, so the release covers all threads.
__device__ __forceinline__ void raise(const SignalEntry& signal) {
    add_release(at<u64>(signal.address), signal.amount, static_cast<EdgeScope>(signal.scope));
}

}  // namespace mk
