#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace backstay::tools {

// What the command was asked to do. Names are as ShowName() prints them on the command line, and as
// they are here.
struct CommandLine {
  std::string command;  // One of kCommands.
  std::string connect = "127.0.0.1:7420";
  bool json = false;
  std::optional<Duration> timeout;  // Of the whole command; its own default where not given.
  std::string tls_ca, tls_certificate, tls_key;

  std::string job;
  uint64_t step = 0;
  uint64_t generation = 0;  // 0: where the step is committed, else the newest that has it.
  std::optional<uint32_t> rank;
  std::string shard;
  std::string file;
  std::string tensor;
  bool force = false;
  bool drop_state = false;
  bool timeline = false;
  bool names_only = false;
  std::string shell;
};

// In the order of the help.
inline constexpr std::pair<std::string_view, std::string_view> kCommands[] = {
    {"status", "nodes, memory, transport, jobs and what is under way"},
    {"why", "one verdict on a job, and what it rests on"},
    {"jobs", "all jobs"},
    {"ls", "a job's snapshots"},
    {"show", "a snapshot's tensors"},
    {"verify", "re-verify every replica of a snapshot"},
    {"fetch", "copy a shard, or one of its tensors, into a file"},
    {"rm", "end a job"},
    {"completion", "a completion script for bash or zsh"},
};

// Whoever asked for help or the version gets a text to print.
using CommandLineOrText = std::variant<CommandLine, std::string>;

// kInvalidArgument names the word that was not understood, and the nearest known one.
// `connect_default`: what the environment says; empty for nothing.
Result<CommandLineOrText> ParseCommandLine(const std::vector<std::string>& arguments,
                                           const std::string& connect_default);

// The script for `shell`, "bash" or "zsh".
std::string CompletionScript(std::string_view shell);

}  // namespace backstay::tools
