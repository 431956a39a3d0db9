#include "shardplan/runtime/allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <new>

namespace shardplan::runtime {
namespace {

// In front of every block. oneDNN's paths release raw pointers, so the context of a DataPtr has to
// be the data pointer itself and everything else must be found from it.
constexpr std::size_t kHeaderBytes = 64;
constexpr std::size_t kAlignment = 64;
struct Header {
  MemoryCounter* counter = nullptr;
  Bytes bytes = 0;
};
static_assert(sizeof(Header) <= kHeaderBytes);

MemoryCounter*& counter_of_thread() {
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
  std::free(header);  // NOLINT(cppcoreguidelines-no-malloc)
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* block = nullptr;
    if (posix_memalign(&block, kAlignment, bytes + kHeaderBytes) != 0) {
      throw std::bad_alloc();
    }
    MemoryCounter* counter = counter_of_thread();
    new (block) Header{counter, static_cast<Bytes>(bytes)};
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
