#include "shardplan/runtime/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

namespace shardplan::runtime {
namespace {

// In front of every block. oneDNN's paths release raw pointers, so the context of a DataPtr has to
// be the data pointer itself and everything else must be found from it.
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kAlignment = 64;
struct Header {
  MemoryCounter* counter = nullptr;
  Bytes bytes = 0;           ///< asked for
  std::size_t capacity = 0;  ///< of the block, header included
};
static_assert(sizeof(Header) <= kHeaderBytes);

/// Large blocks that were freed, for the next tensor of about that size: a training step asks for
/// the same sizes again and again, and a fresh block costs a page fault for every 4 KiB. Holds so
/// little that blocks in use and kept together never exceed the most that was ever in use.
class BlockCache {
 public:
  static constexpr std::size_t kSmallest = std::size_t{128} << 10;

  void* take(std::size_t bytes, std::size_t& capacity) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first <= bytes + bytes / 8) {
      capacity = found->first;
      void* const block = found->second;
      kept_ -= capacity;
      used_ += capacity;
      free_.erase(found);
      return block;
    }
    capacity = bytes;
    used_ += bytes;
    most_ = std::max(most_, used_);
    while (used_ + kept_ > most_) {
      const auto largest = std::prev(free_.end());
      kept_ -= largest->first;
      std::free(largest->second);  // NOLINT(cppcoreguidelines-no-malloc)
      free_.erase(largest);
    }
    return fresh(bytes);
  }

  void give_back(void* block, std::size_t capacity) {
    const std::lock_guard lock(mutex_);
    used_ -= capacity;
    kept_ += capacity;
    free_.emplace(capacity, block);
  }

  static void* fresh(std::size_t bytes) {
    void* block = nullptr;
    if (posix_memalign(&block, kAlignment, bytes) != 0) {
      throw std::bad_alloc();
    }
    return block;
  }

 private:
  std::mutex mutex_;
  std::multimap<std::size_t, void*> free_;
  std::size_t used_ = 0;
  std::size_t kept_ = 0;
  std::size_t most_ = 0;
};

BlockCache& block_cache() {
  // Never destroyed: tensors with static lifetime are freed after static destructors have run.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const cache = new BlockCache();
  return *cache;
}

MemoryCounter*& counter_of_thread() {
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  thread_local MemoryCounter* counter = nullptr;
  return counter;
}

Header* header_of(void* data) {
  return reinterpret_cast<Header*>(static_cast<std::byte*>(data) - kHeaderBytes);
}

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  Header* header = header_of(data);
  if (header->counter != nullptr) {
    header->counter->add(-header->bytes);
  }
  if (header->capacity >= BlockCache::kSmallest) {
    block_cache().give_back(header, header->capacity);
  } else {
    std::free(header);  // NOLINT(cppcoreguidelines-no-malloc)
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    std::size_t capacity = bytes + kHeaderBytes;
    void* const block = capacity >= BlockCache::kSmallest ? block_cache().take(capacity, capacity)
                                                          : BlockCache::fresh(capacity);
    MemoryCounter* counter = counter_of_thread();
    new (block) Header{counter, static_cast<Bytes>(bytes), capacity};
    if (counter != nullptr) {
      counter->add(static_cast<Bytes>(bytes));
    }
    void* data = static_cast<std::byte*>(block) + kHeaderBytes;
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

}  // namespace

void MemoryCounter::add(Bytes bytes) {
  const Bytes now = current_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  Bytes peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
}

void install_counting_allocator() {
  // Never destroyed: tensors with static lifetime are freed after static destructors have run.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
  static auto* const allocator = new CountingAllocator();
  if (c10::GetAllocator(c10::DeviceType::CPU) != allocator) {
    c10::SetAllocator(c10::DeviceType::CPU, allocator, 255);
  }
}

void stop_counting(void* data) {
  auto* allocator = c10::GetAllocator(c10::DeviceType::CPU);
  if (data == nullptr || dynamic_cast<CountingAllocator*>(allocator) == nullptr) {
    return;
  }
  Header* header = header_of(data);
  if (header->counter != nullptr) {
    header->counter->add(-header->bytes);
    header->counter = nullptr;
  }
}

MemoryScope::MemoryScope(MemoryCounter& counter) : previous_(counter_of_thread()) {
  counter_of_thread() = &counter;
}
MemoryScope::~MemoryScope() {
  counter_of_thread() = previous_;
}

}  // namespace shardplan::runtime
