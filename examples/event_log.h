#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

namespace backstay::example {

// What happened on this rank and when, for programs: one JSON object a line with `unix_ms` and
// `event`. A line is written whole by one call, so that a reader, or a kill, never sees half of one
// beside another process's.
//
// Thread: one at a time.
class EventLog {
 public:
  // Appends to `path`; keeps no log where it is empty. Throws std::runtime_error when the file
  // cannot be opened.
  explicit EventLog(const std::string& path);
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  // `fields` is an object; it may be empty.
  void Write(const std::string& event,
             nlohmann::ordered_json fields = nlohmann::ordered_json::object());

 private:
  int file_ = -1;
};

// Prints one line for people, at once, with the time of day in milliseconds and this process's
// rank.
void Say(int rank, const std::string& line);

}  // namespace backstay::example
