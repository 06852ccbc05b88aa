#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace backstay {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// A named value of a log line.
struct LogField {
  std::string_view key;
  std::string value;
};

using LogSink = std::function<void(LogLevel level, std::string_view message,
                                   std::initializer_list<LogField> fields)>;

// Sends later log lines to `sink` (null: nowhere). Call before threads start.
void SetLogSink(LogSink sink);

// One event, in plain words, with its data as fields. Whoever first knows what an error is logs it,
// once.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

}  // namespace backstay
