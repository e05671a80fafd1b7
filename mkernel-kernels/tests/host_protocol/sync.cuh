// Stands in for src/device/sync.cuh on the host: the same functions over std::atomic, so that the protocol files can run
// under a thread sanitizer. Scopes have no meaning here; orders are those of the device.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#define __device__
#define __forceinline__ inline
#define __noinline__

#include "layout.h"

namespace mk {

using u32 = unsigned int;
using u64 = unsigned long long;

template <class T>
T* at(u64 address) {
    return reinterpret_cast<T*>(address);
}

template <class T>
std::atomic<T>& word(const T* address) {
    static_assert(sizeof(std::atomic<T>) == sizeof(T), "an atomic is the word itself");
    return *reinterpret_cast<std::atomic<T>*>(const_cast<T*>(address));
}

inline u64 load_acquire(const u64* from, EdgeScope) { return word(from).load(std::memory_order_acquire); }
inline void add_release(u64* to, u64 amount, EdgeScope) { word(to).fetch_add(amount, std::memory_order_release); }
inline void store_release_system(u64* to, u64 value) { word(to).store(value, std::memory_order_release); }
inline u32 load_relaxed_system(const u32* from) { return word(from).load(std::memory_order_relaxed); }
inline void store_relaxed_system(u32* to, u32 value) { word(to).store(value, std::memory_order_relaxed); }
inline u64 load_relaxed(const u64* from) { return word(from).load(std::memory_order_relaxed); }
inline void add_relaxed(u64* to, u64 amount) { word(to).fetch_add(amount, std::memory_order_relaxed); }
inline u32 take_number(u32* counter) { return word(counter).fetch_add(1, std::memory_order_relaxed); }
inline u64 take_number(u64* counter) { return word(counter).fetch_add(1, std::memory_order_relaxed); }

/// Asked after every poll that failed, so a waiting thread gives its core away here.
inline u64 now_ns() {
    std::this_thread::yield();
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

}  // namespace mk
