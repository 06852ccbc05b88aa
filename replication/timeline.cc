#include "replication/timeline.h"

#include <algorithm>
#include <utility>

namespace backstay::replication {

void Timeline::Add(std::string_view what, std::string detail, Generation generation) {
  AddAt(clock_->UnixMillis(), what, std::move(detail), generation);
}

void Timeline::AddAt(int64_t unix_ms, std::string_view what, std::string detail,
                     Generation generation) {
  if (detail.size() > kDetailBytesMax) detail.resize(kDetailBytesMax);
  wire::TimelineEvent event;
  event.set_unix_ms(unix_ms);
  event.set_what(std::string(what));
  event.set_detail(std::move(detail));
  event.set_generation(generation.value);
  const auto later = [](int64_t at, const wire::TimelineEvent& other) {
    return at < other.unix_ms();
  };
  events_.insert(std::upper_bound(events_.begin(), events_.end(), unix_ms, later),
                 std::move(event));
  if (events_.size() > kEventsMax) events_.pop_front();
}

bool Timeline::Has(std::string_view what, std::string_view detail, Generation generation) const {
  return std::ranges::any_of(events_, [&](const wire::TimelineEvent& event) {
    return event.what() == what && event.detail() == detail.substr(0, kDetailBytesMax) &&
           event.generation() == generation.value;
  });
}

}  // namespace backstay::replication
