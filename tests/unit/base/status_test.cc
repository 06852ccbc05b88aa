#include "base/status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <set>
#include <sstream>

#include "base/os_error.h"

namespace backstay {
namespace {

Result<int> Half(int number) {
  if (number % 2 != 0) return InvalidArgument("odd");
  return number / 2;
}

Result<int> Quarter(int number) {
  BACKSTAY_ASSIGN_OR_RETURN(const int half, Half(number));
  BACKSTAY_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckBoth(int a, int b) {
  BACKSTAY_RETURN_IF_ERROR(Half(a).status());
  BACKSTAY_RETURN_IF_ERROR(Half(b).status());
  return Status::Ok();
}

TEST(Status, TextNamesTheCode) {
  EXPECT_EQ(Status::Ok().ToString(), "ok");
  EXPECT_EQ(NoSpace("job x").ToString(), "no space: job x");
  std::ostringstream out;
  out << Stale("");
  EXPECT_EQ(out.str(), "stale");
}

TEST(Status, EveryCodeHasItsOwnNameAndSurvivesItsNumber) {
  std::set<std::string_view> names;
  for (int number = 0; number <= 9; ++number) {
    const StatusCode code = StatusCodeFromNumber(number);
    EXPECT_EQ(static_cast<int>(code), number);
    EXPECT_TRUE(names.insert(StatusCodeName(code)).second);
  }
}

TEST(Status, UnknownNumbersAreNeverSuccess) {
  for (const int number : {-1, 10, 1'000'000})
    EXPECT_EQ(StatusCodeFromNumber(number), StatusCode::kUnavailable);
}

TEST(Result, MacrosReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("odd"));
  EXPECT_TRUE(CheckBoth(2, 4).ok());
  EXPECT_FALSE(CheckBoth(2, 3).ok());
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(3));
  const std::unique_ptr<int> taken = *std::move(result);
  EXPECT_EQ(*taken, 3);
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorStops) {
  const Result<int> error(NotFound("no such thing"));
  EXPECT_DEATH((void)error.value(), "no such thing");
  EXPECT_DEATH((void)Result<int>(Status::Ok()), "needs an error");
}

TEST(OsError, CodeIsTheCallersReaction) {
  EXPECT_EQ(OsError(ENOENT, "open x").ToString(),
            "not found: open x: No such file or directory (ENOENT)");
  EXPECT_EQ(OsError(EMFILE, "").code(), StatusCode::kNoSpace);
  EXPECT_EQ(OsError(EACCES, "").code(), StatusCode::kPermission);
  EXPECT_EQ(OsError(EINVAL, "").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OsError(ETIMEDOUT, "").code(), StatusCode::kDeadline);
  EXPECT_EQ(OsError(ECONNREFUSED, "").code(), StatusCode::kUnavailable);
  EXPECT_EQ(OsErrorText(123456), "error number 123456");
}

}  // namespace
}  // namespace backstay
