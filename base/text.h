#pragma once

#include <algorithm>
#include <string_view>

namespace backstay {

// Whether `text` can go into every field, log line and metric label as it is: visible ASCII and
// spaces. Protobuf's `string` fields refuse bytes that are not UTF-8 only when a message is sent.
inline bool IsPrintableAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace backstay
