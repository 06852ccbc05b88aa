#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "base/status.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/command_line.h"
#include "tools/cli/view.h"

namespace backstay::tools {

inline constexpr Duration kTimeoutDefault = std::chrono::seconds(10);
// For what reads all bytes of something.
inline constexpr Duration kLongTimeoutDefault = std::chrono::hours(24);

// Where a command writes. Progress goes to `err`, and only to a terminal.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool err_is_terminal = false;
};

// Runs the command and returns its exit code. Errors go to `err`; with --json as an object.
int RunCommand(const CommandLine& line, const Console& console);
int FailCommand(const CommandLine& line, const Console& console, const Status& status);

Result<View> RunVerify(const CommandLine& line, const Console& console, AdminClient& client);
Result<View> RunFetch(const CommandLine& line, const Console& console, AdminClient& client);

// What came of a verification, from its answers in any order. Pure.
View ShowVerify(const CommandLine& line, const std::vector<wire::VerifyProgress>& answers);

}  // namespace backstay::tools
