#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace backstay::tools {

// The candidate with the fewest edits from `name`, or "" when none is near (more than half of its
// length away).
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace backstay::tools
