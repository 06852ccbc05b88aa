#include "base/log.h"

#include <gtest/gtest.h>

namespace backstay {
namespace {

TEST(Log, GoesToTheSinkAndNowhereWithoutOne) {
  Log(LogLevel::kError, "nobody listens");
  int lines = 0;
  SetLogSink(
      [&lines](LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
        ++lines;
        EXPECT_EQ(level, LogLevel::kWarning);
        EXPECT_EQ(message, "peer lost");
        ASSERT_EQ(fields.size(), 1u);
        EXPECT_EQ(fields.begin()->key, "node");
        EXPECT_EQ(fields.begin()->value, "b");
      });
  Log(LogLevel::kWarning, "peer lost", {{"node", "b"}});
  SetLogSink(nullptr);
  Log(LogLevel::kWarning, "peer lost");
  EXPECT_EQ(lines, 1);
}

}  // namespace
}  // namespace backstay
