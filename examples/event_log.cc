#include "examples/event_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <stdexcept>

namespace backstay::example {
namespace {

int64_t UnixMilliseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

EventLog::EventLog(const std::string& path) {
  if (path.empty()) return;
  file_ = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) {
    throw std::runtime_error("cannot open the event file " + path + ": " + std::strerror(errno));
  }
}

EventLog::~EventLog() {
  if (file_ >= 0) close(file_);
}

void EventLog::Write(const std::string& event, nlohmann::ordered_json fields) {
  if (file_ < 0) return;
  nlohmann::ordered_json line = {{"unix_ms", UnixMilliseconds()}, {"event", event}};
  line.update(fields);
  // Messages of other programs may hold any byte; the log must stay readable.
  std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  // A full disk must not stop training: the line is lost, and the next one shows that by its time.
  static_cast<void>(!write(file_, text.data(), text.size()));
}

void Say(int rank, const std::string& line) {
  const int64_t now_ms = UnixMilliseconds();
  const std::time_t seconds = now_ms / 1000;
  std::tm local = {};
  localtime_r(&seconds, &local);
  std::printf("%02d:%02d:%02d.%03d rank %d  %s\n", local.tm_hour, local.tm_min, local.tm_sec,
              static_cast<int>(now_ms % 1000), rank, line.c_str());
  std::fflush(stdout);
}

}  // namespace backstay::example
