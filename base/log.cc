#include "base/log.h"

namespace backstay {
namespace {

LogSink& Sink() {
  static LogSink sink;
  return sink;
}

}  // namespace

void SetLogSink(LogSink sink) { Sink() = std::move(sink); }

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (Sink()) Sink()(level, message, fields);
}

}  // namespace backstay
