#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace backstay {

// "No such file or directory (ENOENT)". Thread: any, unlike strerror().
std::string OsErrorText(int error_number);

// The Status of a failed system call: `what` says what was being done and to what ("bind
// 127.0.0.1:7070"). The code is the caller's reaction: kNotFound (ENOENT, ESRCH), kPermission
// (EACCES, EPERM), kNoSpace (memory, disk, descriptors), kInvalidArgument (EINVAL, EBADF,
// ENAMETOOLONG ...), kDeadline (ETIMEDOUT), else kUnavailable.
Status OsError(int error_number, std::string_view what);

}  // namespace backstay
