#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "shardplan/support/result.h"

namespace shardplan::runtime {

/// Elements that a chunked loop handles at a time: its buffers stay in the first-level cache.
inline constexpr std::int64_t kChunk = 1024;
template <class C>
using Chunk = std::array<C, static_cast<std::size_t>(kChunk)>;

template <class T, class C>
void convert_run(const void* source, std::int64_t offset, std::int64_t count, C* target) {
  const T* const from = static_cast<const T*>(source) + offset;
  for (std::int64_t i = 0; i < count; ++i) {
    target[i] = static_cast<C>(from[i]);
  }
}
template <class T, class C>
void store_run(void* target, std::int64_t offset, std::int64_t count, const C* source) {
  T* const to = static_cast<T*>(target) + offset;
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (sizeof(T) < sizeof(float)) {
      to[i] = static_cast<T>(static_cast<float>(source[i]));
    } else {
      to[i] = static_cast<T>(source[i]);
    }
  }
}

/// Elements [offset, offset + count) of a contiguous floating tensor, converted to C. With these
/// two functions one loop serves every mix of dtypes, without temporaries of the tensors' size.
template <class C>
void load(const at::Tensor& tensor, std::int64_t offset, std::int64_t count, Chunk<C>& chunk) {
  const void* const data = tensor.const_data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return convert_run<double>(data, offset, count, chunk.data());
    case at::kFloat:
      return convert_run<float>(data, offset, count, chunk.data());
    case at::kBFloat16:
      return convert_run<c10::BFloat16>(data, offset, count, chunk.data());
    case at::kHalf:
      return convert_run<c10::Half>(data, offset, count, chunk.data());
    default:
      SHARDPLAN_CHECK(false) << "not a floating tensor";
  }
}

template <class C>
void store(const at::Tensor& tensor,
           std::int64_t offset,
           std::int64_t count,
           const Chunk<C>& chunk) {
  void* const data = tensor.data_ptr();
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return store_run<double>(data, offset, count, chunk.data());
    case at::kFloat:
      return store_run<float>(data, offset, count, chunk.data());
    case at::kBFloat16:
      return store_run<c10::BFloat16>(data, offset, count, chunk.data());
    case at::kHalf:
      return store_run<c10::Half>(data, offset, count, chunk.data());
    default:
      SHARDPLAN_CHECK(false) << "not a floating tensor";
  }
}

/// Calls body(offset, count) for consecutive chunks of [0, numel), on ATen's threads.
template <class Body>
void for_each_chunk(std::int64_t numel, const Body& body) {
  const std::int64_t chunks = (numel + kChunk - 1) / kChunk;
  at::parallel_for(0, chunks, /*grain_size=*/16, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t chunk = first; chunk < last; ++chunk) {
      const std::int64_t offset = chunk * kChunk;
      body(offset, std::min(kChunk, numel - offset));
    }
  });
}

}  // namespace shardplan::runtime
