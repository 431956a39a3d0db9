#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "shardplan/support/result.h"

namespace shardplan::problem {

/// Whether the content begins like a gzip file.
[[nodiscard]] bool is_gzip(std::string_view content);

/// The content of a gzip file (RFC 1952), of any number of members. Errors name `where`: truncated,
/// damaged, or more than `most` bytes, of which no more are held.
[[nodiscard]] Result<std::string> inflate_gzip(std::string_view content,
                                               const std::string& where,
                                               std::size_t most = std::size_t{1} << 30U);

}  // namespace shardplan::problem
