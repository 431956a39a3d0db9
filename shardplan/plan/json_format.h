#pragma once

#include <cstdint>
#include <string_view>

// What writing and reading of plan files share.
namespace shardplan::plan {

inline constexpr std::string_view kFormat = "shardplan.plan";
inline constexpr std::int64_t kVersion = 1;
inline constexpr std::string_view kSelectiveMode = "selective";
inline constexpr std::string_view kWholeMode = "whole";

}  // namespace shardplan::plan
