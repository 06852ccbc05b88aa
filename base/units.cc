#include "base/units.h"

#include <array>
#include <cstdio>

namespace backstay {

std::string FormatBytes(uint64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < kKiB) return std::to_string(bytes) + " B";
  double scaled = static_cast<double>(bytes);
  size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < kUnits.size()) {
    scaled /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", scaled, kUnits[unit]);
  return text.data();
}

}  // namespace backstay
