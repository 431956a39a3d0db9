#include "shardplan/runtime/unread.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace shardplan::runtime {

at::Tensor unread(const ir::Shape& shape, const at::TensorOptions& options) {
  std::size_t bytes = options.dtype().itemsize();
  for (const std::int64_t size : shape) {
    bytes *= static_cast<std::size_t>(size);
  }
  bytes = std::max<std::size_t>(bytes, 1);
  void* const pages =
      ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return at::from_blob(
      pages, shape, [bytes](void* at) { ::munmap(at, bytes); }, options);
}

}  // namespace shardplan::runtime
