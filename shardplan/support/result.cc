#include "shardplan/support/result.h"

#include <cstdio>

namespace shardplan::internal {

CheckFailure::CheckFailure(const char* condition, const char* file, int line) {
  stream_ << "internal error: check failed: " << condition << " at " << file << ":" << line << " ";
}

CheckFailure::~CheckFailure() {
  std::fprintf(stderr, "%s\n", stream_.str().c_str());
  std::abort();
}

}  // namespace shardplan::internal
