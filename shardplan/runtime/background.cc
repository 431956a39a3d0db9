#include "shardplan/runtime/background.h"

#include <utility>

namespace shardplan::runtime {

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t Background::start(std::function<void()> work) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    number = ++given_;
  }
  changed_.notify_all();
  return number;
}

void Background::wait(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number || failure_ != nullptr; });
  if (failure_ != nullptr) {
    std::rethrow_exception(failure_);
  }
}

void Background::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || !work_.empty(); });
    if (ending_) {
      return;
    }
    std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    work = nullptr;
    lock.lock();
    if (failure != nullptr) {
      failure_ = failure;
      ending_ = true;
    } else {
      ++done_;
    }
    changed_.notify_all();
  }
}

}  // namespace shardplan::runtime
