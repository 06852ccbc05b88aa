// The command for people and programs who look into a cluster: docs/command.md.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <variant>
#include <vector>

#include "tools/cli/commands.h"

int main(int argc, char** argv) {
  using namespace backstay::tools;
  signal(SIGPIPE, SIG_IGN);  // A peer or a pager that went away is an error of its write.
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const char* connect = std::getenv("BACKSTAY_CONNECT");
  const Console console{std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  const backstay::Result<CommandLineOrText> parsed =
      ParseCommandLine(arguments, connect == nullptr ? "" : connect);
  if (!parsed.ok()) {
    std::cerr << "backstay: " << parsed.status().message() << "\n";
    return kExitUsage;
  }
  if (const auto* text = std::get_if<std::string>(&*parsed)) {
    std::cout << *text;
    return kExitFine;
  }
  return RunCommand(std::get<CommandLine>(*parsed), console);
}
