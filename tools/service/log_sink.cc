#include "tools/service/log_sink.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace backstay::tools {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

std::string JsonString(std::string_view text) {
  // Names may hold any bytes; what is not UTF-8 is replaced, so that every line can be read back.
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TextLine(std::string_view message, std::initializer_list<LogField> fields) {
  std::string line(message);
  for (const LogField& field : fields) {
    const bool plain =
        !field.value.empty() && field.value.find_first_of(" \"\n\r\t=") == std::string::npos;
    line += " " + std::string(field.key) + "=" + (plain ? field.value : JsonString(field.value));
  }
  return line;
}

// The members after time and level, which the pattern adds.
std::string JsonMembers(std::string_view message, std::initializer_list<LogField> fields) {
  std::string line = "\"message\":" + JsonString(message);
  for (const LogField& field : fields)
    line += "," + JsonString(field.key) + ":" + JsonString(field.value);
  return line;
}

}  // namespace

void InstallLogSink(const std::string& level, const std::string& format) {
  auto logger = std::make_shared<spdlog::logger>("backstayd",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(level == "warning" ? spdlog::level::warn : spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  const bool json = format == "json";
  logger->set_pattern(
      json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %l %v",
      spdlog::pattern_time_type::utc);
  SetLogSink([logger, json](LogLevel event_level, std::string_view message,
                            std::initializer_list<LogField> fields) {
    const spdlog::level::level_enum to = ToSpdlog(event_level);
    if (!logger->should_log(to)) return;
    logger->log(
        to, spdlog::string_view_t(json ? JsonMembers(message, fields) : TextLine(message, fields)));
  });
}

}  // namespace backstay::tools
