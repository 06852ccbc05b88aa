#include "tools/cli/command_line.h"

#include <CLI/CLI.hpp>

#include "base/socket.h"
#include "base/version.h"
#include "tools/cli/names.h"
#include "tools/nearest.h"

namespace backstay::tools {
namespace {

constexpr char kFooter[] =
    "Exit codes: 0 fine, 1 something is wrong with the data or a node, 2 usage or no such thing, "
    "3 unreachable.";

void AddGlobalOptions(CLI::App& app, CommandLine& line) {
  app.add_option("--connect", line.connect,
                 "HOST:PORT of any service's --control-address (or BACKSTAY_CONNECT)")
      ->capture_default_str();
  app.add_flag("--json", line.json, "for programs: docs/command.md has the fields");
  app.add_option_function<double>(
         "--timeout",
         [&line](const double& seconds) {
           line.timeout =
               std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
         },
         "seconds after which the command gives up")
      ->check(CLI::Range(0.001, 1e6));
  app.add_option("--tls-ca", line.tls_ca, "PEM file: who may be a service");
  app.add_option("--tls-certificate", line.tls_certificate, "PEM file: the certificate to show");
  app.add_option("--tls-key", line.tls_key, "PEM file: its key");
}

CLI::App* AddCommand(CLI::App& app, CommandLine& line, std::string_view name) {
  for (const auto& [known, help] : kCommands) {
    if (known != name) continue;
    CLI::App* command = app.add_subcommand(std::string(name), std::string(help));
    command->fallthrough();
    command->callback([&line, command] { line.command = command->get_name(); });
    return command;
  }
  return nullptr;
}

void AddSnapshotArguments(CLI::App& command, CommandLine& line) {
  command.add_option("JOB", line.job)->required();
  command.add_option("STEP", line.step)->required();
  command.add_option("--generation", line.generation,
                     "of the snapshot (default: where the step is committed, else the newest)");
}

void AddCommands(CLI::App& app, CommandLine& line) {
  AddCommand(app, line, "status");
  CLI::App* why = AddCommand(app, line, "why");
  why->add_option("JOB", line.job)->required();
  why->add_flag("--timeline", line.timeline, "also what happened, as the leader remembers it");
  AddCommand(app, line, "jobs")
      ->add_flag("--names", line.names_only, "only names, one on each line");
  AddCommand(app, line, "ls")->add_option("JOB", line.job)->required();
  CLI::App* show = AddCommand(app, line, "show");
  AddSnapshotArguments(*show, line);
  show->add_option("RANK", line.rank, "only this rank's shard");
  AddSnapshotArguments(*AddCommand(app, line, "verify"), line);
  CLI::App* fetch = AddCommand(app, line, "fetch");
  AddSnapshotArguments(*fetch, line);
  fetch->add_option("SHARD", line.shard, "shard id; by default the rank")->required();
  fetch->add_option("FILE", line.file)->required();
  fetch->add_option("--tensor", line.tensor, "only this tensor's bytes");
  fetch->add_flag("--force", line.force, "replace files that exist");
  CLI::App* rm = AddCommand(app, line, "rm");
  rm->add_option("JOB", line.job)->required();
  rm->add_flag("--drop-state", line.drop_state, "also give up its snapshots");
  AddCommand(app, line, "completion")
      ->add_option("SHELL", line.shell)
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));
}

std::string Hint(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [name, help] : kCommands) known.emplace_back(name);
  std::vector<const CLI::App*> apps = {&app};
  for (const CLI::App* command : app.get_subcommands()) apps.push_back(command);
  for (const CLI::App* one : apps) {
    for (const CLI::Option* option : one->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
  }
  const std::string nearest = NearestName(word, known);
  return nearest.empty() ? "; --help lists what there is" : "; did you mean '" + nearest + "'?";
}

Status ReadNames(CommandLine& line) {
  for (std::string* name : {&line.job, &line.shard, &line.tensor}) {
    if (name->empty()) continue;
    BACKSTAY_ASSIGN_OR_RETURN(*name, ReadName(*name));
  }
  const bool any_tls =
      !line.tls_ca.empty() || !line.tls_certificate.empty() || !line.tls_key.empty();
  const bool all_tls =
      !line.tls_ca.empty() && !line.tls_certificate.empty() && !line.tls_key.empty();
  if (any_tls != all_tls) {
    return InvalidArgument("--tls-ca, --tls-certificate and --tls-key go together");
  }
  if (line.command == "completion") return Status::Ok();
  const Result<HostPort> endpoint = HostPort::Parse(line.connect);
  if (!endpoint.ok()) return InvalidArgument("--connect: " + endpoint.status().message());
  return Status::Ok();
}

}  // namespace

Result<CommandLineOrText> ParseCommandLine(const std::vector<std::string>& arguments,
                                           const std::string& connect_default) {
  CommandLine line;
  if (!connect_default.empty()) line.connect = connect_default;
  CLI::App app("Looks into a Backstay cluster.", "backstay");
  app.set_version_flag("--version", std::string("backstay ") + kVersion);
  app.footer(kFooter);
  app.require_subcommand(1);
  AddGlobalOptions(app, line);
  AddCommands(app, line);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    return CommandLineOrText(app.help());
  } catch (const CLI::CallForAllHelp&) {
    return CommandLineOrText(app.help("", CLI::AppFormatMode::All));
  } catch (const CLI::CallForVersion&) {
    return CommandLineOrText(std::string("backstay ") + kVersion + "\n");
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> extra = app.remaining(/*recurse=*/true);
    if (!extra.empty()) {
      return InvalidArgument("'" + ShowText(extra.front()) + "' is not understood" +
                             Hint(app, extra.front()));
    }
    return InvalidArgument(ShowText(error.what()));
  }
  BACKSTAY_RETURN_IF_ERROR(ReadNames(line));
  return CommandLineOrText(std::move(line));
}

}  // namespace backstay::tools
