#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/check.h"
#include "transport/tcp/frames.h"

// Any bytes are decoded without harm; what is accepted encodes back to the same bytes, and no part
// of it is accepted.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using backstay::transport::DecodeFrame;
  auto bytes = std::span<const std::byte>(reinterpret_cast<const std::byte*>(data), size);
  while (true) {
    const auto decoded = DecodeFrame(bytes);
    if (!decoded.ok() || !decoded->has_value()) return 0;
    const auto& [frame, frame_bytes] = **decoded;
    BACKSTAY_CHECK(frame_bytes <= bytes.size(), "a frame ends within its input");
    BACKSTAY_CHECK(frame_bytes <= backstay::transport::kFrameBytesMax, "a frame has a limit");
    std::string again;
    backstay::transport::EncodeFrame(frame, &again);
    const std::string taken(reinterpret_cast<const char*>(bytes.data()), frame_bytes);
    BACKSTAY_CHECK(again == taken, "an accepted frame encodes back to itself");
    const auto part = DecodeFrame(bytes.first(frame_bytes - 1));
    BACKSTAY_CHECK(part.ok() && !part->has_value(), "a frame without its last byte needs more");
    bytes = bytes.subspan(frame_bytes);
  }
}
