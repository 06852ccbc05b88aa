#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>

namespace backstay {

using Duration = std::chrono::nanoseconds;

// A point on a monotonic clock; comparable only with points of the same clock.
struct Instant {
  int64_t ns = 0;

  friend constexpr auto operator<=>(const Instant&, const Instant&) = default;
  friend constexpr Instant operator+(Instant at, Duration d) { return {at.ns + d.count()}; }
  friend constexpr Instant operator-(Instant at, Duration d) { return {at.ns - d.count()}; }
  friend constexpr Duration operator-(Instant a, Instant b) { return Duration(a.ns - b.ns); }
};

// When a wait gives up.
using Deadline = Instant;
inline constexpr Deadline kNoDeadline{std::numeric_limits<int64_t>::max()};

// Time as the code above the seams sees it. Thread: any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
  // Wall-clock milliseconds since 1970, for people and records; never for deadlines.
  virtual int64_t UnixMillis() const = 0;
};

// CLOCK_MONOTONIC and CLOCK_REALTIME.
class SystemClock : public Clock {
 public:
  Instant Now() const override;
  int64_t UnixMillis() const override;
};

constexpr int64_t ToMillis(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

}  // namespace backstay
