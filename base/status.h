#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace backstay {

// One code per distinct reaction of a caller; the numbers are part of the wire formats and of the C
// ABI.
enum class StatusCode {
  kOk = 0,
  kNotFound = 1,         // It is certain that there is none: name another, or start fresh.
  kCorrupt = 2,          // Bytes failed verification: read them from somewhere else.
  kNoSpace = 3,          // A budget, quota or limit is exhausted: free something or raise it.
  kStale = 4,            // The caller speaks for a fenced past: stop, then reconfigure.
  kUnavailable = 5,      // Could not be found out now: try again later or elsewhere.
  kDeadline = 6,         // The caller's deadline passed; nothing is known about the effect.
  kUnknownOutcome = 7,   // Sent, not answered: it may or may not have happened. Ask, or repeat.
  kInvalidArgument = 8,  // The request can never succeed as it is.
  kPermission = 9,       // The caller did not prove that it may.
};

// The code's name in plain lower-case words, for people: "no space".
std::string_view StatusCodeName(StatusCode code);

// The code for a number from the wire; an unknown number reads as kUnavailable, so that a newer
// peer's code leads to a retry and never to success.
StatusCode StatusCodeFromNumber(int number);

// The outcome of an operation: a code, and for errors a message that says what was being done, to
// what, and what to try.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // "no space: job x needs ..."; "ok".
  std::string ToString() const;

  friend bool operator==(const Status& a, const Status& b) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

Status NotFound(std::string message);
Status Corrupt(std::string message);
Status NoSpace(std::string message);
Status Stale(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status UnknownOutcome(std::string message);
Status InvalidArgument(std::string message);
Status PermissionDenied(std::string message);

// A value or the error that stands in its place. Reading the value of an error stops the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    BACKSTAY_CHECK(!status_.ok(), "a Result without a value needs an error");
  }
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  T& value() & {
    BACKSTAY_CHECK(ok(), status_.message());
    return *value_;
  }
  const T& value() const& {
    BACKSTAY_CHECK(ok(), status_.message());
    return *value_;
  }
  T&& value() && {
    BACKSTAY_CHECK(ok(), status_.message());
    return *std::move(value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

// Returns the error of `expression` (a Status) from the enclosing function.
#define BACKSTAY_RETURN_IF_ERROR(expression)                                        \
  do {                                                                              \
    if (::backstay::Status backstay_status_ = (expression); !backstay_status_.ok()) \
      return backstay_status_;                                                      \
  } while (false)

#define BACKSTAY_CONCAT_INNER(a, b) a##b
#define BACKSTAY_CONCAT(a, b) BACKSTAY_CONCAT_INNER(a, b)

// Declares `declaration` from the value of `expression` (a Result), or returns its error.
#define BACKSTAY_ASSIGN_OR_RETURN(declaration, expression) \
  BACKSTAY_ASSIGN_OR_RETURN_INNER(BACKSTAY_CONCAT(result_, __LINE__), declaration, expression)
#define BACKSTAY_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                            \
  if (!result.ok()) return result.status();                              \
  declaration = std::move(result).value()

}  // namespace backstay
