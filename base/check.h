#pragma once

#include <string_view>

namespace backstay {

// Prints file, line, condition and message to standard error and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

// A broken invariant of our own stops the process, also in release: going on could serve wrong
// bytes. Never for input from the wire, the disk or a client.
#define BACKSTAY_CHECK(condition, message)                                              \
  do {                                                                                  \
    if (!(condition)) ::backstay::CheckFailed(__FILE__, __LINE__, #condition, message); \
  } while (false)

}  // namespace backstay
