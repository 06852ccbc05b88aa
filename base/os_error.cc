#include "base/os_error.h"

#include <string.h>

#include <cerrno>

namespace backstay {
namespace {

StatusCode CodeFor(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ESRCH:
      return StatusCode::kNotFound;
    case EACCES:
    case EPERM:
      return StatusCode::kPermission;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
      return StatusCode::kNoSpace;
    case EINVAL:
    case EBADF:
    case ENAMETOOLONG:
    case ENOTDIR:
    case EISDIR:
    case EAFNOSUPPORT:
    case ENOTSOCK:
      return StatusCode::kInvalidArgument;
    case ETIMEDOUT:
      return StatusCode::kDeadline;
    default:
      return StatusCode::kUnavailable;
  }
}

}  // namespace

std::string OsErrorText(int error_number) {
  const char* description = strerrordesc_np(error_number);
  const char* name = strerrorname_np(error_number);
  if (description == nullptr || name == nullptr) {
    return "error number " + std::to_string(error_number);
  }
  return std::string(description) + " (" + name + ")";
}

Status OsError(int error_number, std::string_view what) {
  return {CodeFor(error_number), std::string(what) + ": " + OsErrorText(error_number)};
}

}  // namespace backstay
