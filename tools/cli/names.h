#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace backstay::tools {

// Names hold any bytes but NUL. The command prints and reads them in one form, in tables, in JSON
// and as arguments: UTF-8 as it is; a backslash as "\\"; control characters and bytes that are not
// UTF-8 as "\xNN". It is always valid UTF-8, and two names never look alike.
std::string ShowName(std::string_view name);

// kInvalidArgument for anything that ShowName() does not return, except that bytes which need no
// escape may have one.
Result<std::string> ReadName(std::string_view shown);

// Text of messages: what a terminal must not see is shown as in names, line ends become spaces.
std::string ShowText(std::string_view text);

}  // namespace backstay::tools
