#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tools/cli/command_line.h"

namespace backstay::tools {
namespace {

using ::testing::HasSubstr;

CommandLine Parse(const std::vector<std::string>& arguments, const std::string& connect = "") {
  Result<CommandLineOrText> parsed = ParseCommandLine(arguments, connect);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  if (!parsed.ok() || !std::holds_alternative<CommandLine>(*parsed)) return {};
  return std::get<CommandLine>(*parsed);
}

std::string Refusal(const std::vector<std::string>& arguments) {
  const Result<CommandLineOrText> parsed = ParseCommandLine(arguments, "");
  EXPECT_EQ(parsed.status().code(), StatusCode::kInvalidArgument);
  return parsed.status().message();
}

TEST(CliCommandLine, GlobalOptionsComeBeforeOrAfterTheCommand) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--connect", "h:1", "--json", "why", "job"},
                                             {"why", "job", "--connect", "h:1", "--json"}}) {
    const CommandLine line = Parse(arguments);
    EXPECT_EQ(line.command, "why");
    EXPECT_EQ(line.job, "job");
    EXPECT_EQ(line.connect, "h:1");
    EXPECT_TRUE(line.json);
    EXPECT_FALSE(line.timeline);
  }
}

TEST(CliCommandLine, TheEnvironmentGivesWayToTheFlag) {
  EXPECT_EQ(Parse({"status"}).connect, "127.0.0.1:7420");
  EXPECT_EQ(Parse({"status"}, "node:9").connect, "node:9");
  EXPECT_EQ(Parse({"status", "--connect", "flag:1"}, "node:9").connect, "flag:1");
}

TEST(CliCommandLine, ReadsSnapshotsAndNames) {
  const CommandLine show = Parse({"show", "a\\xff", "120", "3", "--generation", "2"});
  EXPECT_EQ(show.job, "a\xff");
  EXPECT_EQ(show.step, 120u);
  EXPECT_EQ(show.generation, 2u);
  EXPECT_EQ(show.rank, 3u);
  const CommandLine fetch = Parse({"fetch", "j", "1", "s", "out", "--tensor", "w", "--force"});
  EXPECT_EQ(fetch.shard, "s");
  EXPECT_EQ(fetch.file, "out");
  EXPECT_EQ(fetch.tensor, "w");
  EXPECT_TRUE(fetch.force);
  EXPECT_EQ(Parse({"status", "--timeout", "0.5"}).timeout, std::chrono::milliseconds(500));
}

TEST(CliCommandLine, RefusalsNameTheWordAndTheNearest) {
  EXPECT_THAT(Refusal({"statsu"}), HasSubstr("did you mean 'status'?"));
  EXPECT_THAT(Refusal({"why", "job", "--timelin"}), HasSubstr("did you mean '--timeline'?"));
  EXPECT_THAT(Refusal({"why"}), HasSubstr("JOB"));
  EXPECT_THAT(Refusal({"show", "j", "minus"}), HasSubstr("STEP"));
  EXPECT_THAT(Refusal({"completion", "fish"}), HasSubstr("fish"));
  EXPECT_THAT(Refusal({"status", "--connect", "nowhere"}), HasSubstr("--connect"));
  EXPECT_THAT(Refusal({"status", "--tls-ca", "x"}), HasSubstr("go together"));
  Refusal({});
}

TEST(CliCommandLine, HelpAndVersionAreTexts) {
  for (const auto& arguments :
       std::vector<std::vector<std::string>>{{"--help"}, {"why", "--help"}, {"--version"}}) {
    const Result<CommandLineOrText> parsed = ParseCommandLine(arguments, "");
    ASSERT_TRUE(parsed.ok());
    EXPECT_TRUE(std::holds_alternative<std::string>(*parsed));
  }
}

// Whether `interpreter` accepts `script` from its standard input.
bool Accepts(const char* interpreter, const std::string& script) {
  FILE* pipe = popen(interpreter, "w");
  if (pipe == nullptr) return false;
  const bool written = fwrite(script.data(), 1, script.size(), pipe) == script.size();
  return pclose(pipe) == 0 && written;
}

TEST(CliCompletion, BashAcceptsItAndCompletes) {
  const std::string script = CompletionScript("bash");
  EXPECT_TRUE(Accepts("bash -n", script));
  EXPECT_TRUE(Accepts("bash", script + "COMP_WORDS=(backstay ver) COMP_CWORD=1\n_backstay\n"
                                       "[[ ${COMPREPLY[*]} == verify ]]\n"));
  // A job's name is never expanded by the shell.
  EXPECT_TRUE(
      Accepts("bash", script + "backstay() { printf '%s\\n' '$(exit 7)' 'job one'; }\n"
                               "COMP_WORDS=(backstay why '') COMP_CWORD=2\n_backstay\n"
                               "[[ ${#COMPREPLY[@]} == 2 && ${COMPREPLY[1]} == 'job\\ one' ]]\n"));
  EXPECT_FALSE(Accepts("bash -n", "if then"));
}

TEST(CliCompletion, BothKnowEveryCommand) {
  for (const auto& [name, help] : kCommands) {
    EXPECT_THAT(CompletionScript("bash"), HasSubstr(std::string(name)));
    EXPECT_THAT(CompletionScript("zsh"), HasSubstr("'" + std::string(name) + ":"));
  }
}

}  // namespace
}  // namespace backstay::tools
