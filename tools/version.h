#pragma once

namespace backstay::tools {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace backstay::tools
