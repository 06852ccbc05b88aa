#include "base/status.h"

namespace backstay {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kCorrupt:
      return "corrupt";
    case StatusCode::kNoSpace:
      return "no space";
    case StatusCode::kStale:
      return "stale";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kDeadline:
      return "deadline passed";
    case StatusCode::kUnknownOutcome:
      return "outcome unknown";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kPermission:
      return "permission denied";
  }
  return "unavailable";
}

StatusCode StatusCodeFromNumber(int number) {
  if (number < static_cast<int>(StatusCode::kOk) ||
      number > static_cast<int>(StatusCode::kPermission)) {
    return StatusCode::kUnavailable;
  }
  return static_cast<StatusCode>(number);
}

std::string Status::ToString() const {
  std::string text(StatusCodeName(code_));
  if (!message_.empty()) text += ": " + message_;
  return text;
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.ToString();
}

Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status Corrupt(std::string message) { return {StatusCode::kCorrupt, std::move(message)}; }
Status NoSpace(std::string message) { return {StatusCode::kNoSpace, std::move(message)}; }
Status Stale(std::string message) { return {StatusCode::kStale, std::move(message)}; }
Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status DeadlineExceeded(std::string message) { return {StatusCode::kDeadline, std::move(message)}; }
Status UnknownOutcome(std::string message) {
  return {StatusCode::kUnknownOutcome, std::move(message)};
}
Status InvalidArgument(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}
Status PermissionDenied(std::string message) {
  return {StatusCode::kPermission, std::move(message)};
}

}  // namespace backstay
