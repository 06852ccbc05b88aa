#include <exception>
#include <string>

#include "examples/event_log.h"
#include "examples/options.h"
#include "examples/run.h"

int main(int argc, char** argv) {
  backstay::example::Options options;
  bool go_on = false;
  const int parsed = backstay::example::ParseOptions(argc, argv, options, go_on);
  if (!go_on) return parsed;
  try {
    return backstay::example::RunTrainer(options);
  } catch (const std::exception& error) {
    backstay::example::Say(options.rank, std::string("error: ") + error.what());
    return backstay::example::kExitError;
  }
}
