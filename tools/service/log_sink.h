#pragma once

#include <string>

namespace backstay::tools {

// Sends the process's log to standard error through spdlog: one line per event, its data as
// key=value ("text") or as one JSON object ("json"). `level`: debug, info, warning, error. Call
// once, before threads start.
void InstallLogSink(const std::string& level, const std::string& format);

}  // namespace backstay::tools
