#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

namespace backstay::tools {

// Starts `count` pieces of work, at most `width` at a time, and says when all have ended.
//
// Thread: one executor. A piece may end inside of its start.
// Memory: lives as long as a piece is under way; pieces whose end is dropped end it unheard.
class FanOut : public std::enable_shared_from_this<FanOut> {
 public:
  using Done = std::function<void()>;
  using Start = std::function<void(size_t index, Done done)>;

  static void Run(size_t count, size_t width, Start start, Done finished) {
    std::shared_ptr<FanOut> fan_out(
        new FanOut(count, width, std::move(start), std::move(finished)));
    fan_out->Step();
  }

 private:
  FanOut(size_t count, size_t width, Start start, Done finished)
      : count_(count), width_(width), start_(std::move(start)), finished_(std::move(finished)) {}

  void Step() {
    if (stepping_) return;  // A piece ended inside of its start; the loop below goes on.
    stepping_ = true;
    while (started_ < count_ && started_ - ended_ < width_) {
      start_(started_++, [self = shared_from_this()] {
        ++self->ended_;
        self->Step();
      });
    }
    stepping_ = false;
    if (ended_ == count_ && finished_) std::exchange(finished_, nullptr)();
  }

  const size_t count_;
  const size_t width_;
  const Start start_;
  Done finished_;
  size_t started_ = 0;
  size_t ended_ = 0;
  bool stepping_ = false;
};

}  // namespace backstay::tools
