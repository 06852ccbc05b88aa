#include <gtest/gtest.h>

#include "tools/cli/names.h"

namespace backstay::tools {
namespace {

TEST(CliNames, PlainUtf8IsAsItIs) {
  EXPECT_EQ(ShowName("layers.0/weight é 漢 😀"), "layers.0/weight é 漢 😀");
}

TEST(CliNames, WhatATerminalMustNotSeeIsEscaped) {
  EXPECT_EQ(ShowName("a\nb\x1b[31m\x7f"), "a\\x0ab\\x1b[31m\\x7f");
  EXPECT_EQ(ShowName("\xc2\x9b"), "\\xc2\\x9b");           // C1: a terminal's CSI.
  EXPECT_EQ(ShowName("\xff\xc0\xaf"), "\\xff\\xc0\\xaf");  // Not UTF-8; overlong.
  EXPECT_EQ(ShowName("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // A surrogate.
  EXPECT_EQ(ShowName("\xe6\xbc"), "\\xe6\\xbc");           // Cut short.
  EXPECT_EQ(ShowName("back\\slash"), "back\\\\slash");
}

// Goal:   no two names look alike, and what is printed can be typed.
// Method: every byte alone, doubled and between others goes there and back.
TEST(CliNames, ReadsBackWhatItShows) {
  for (int byte = 1; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    for (const std::string& name : {one, one + one, "\\x" + one, "é" + one + "\\"}) {
      const Result<std::string> read = ReadName(ShowName(name));
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(*read, name);
    }
  }
}

TEST(CliNames, MalformedEscapesAreRefused) {
  for (const char* text : {"\\", "a\\q", "\\x", "\\x4", "\\xzz", "\\x0g", "\\x00", ""}) {
    EXPECT_EQ(ReadName(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_EQ(ReadName("\\x41").value(), "A");
}

}  // namespace
}  // namespace backstay::tools
