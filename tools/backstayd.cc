// The service's process: configuration, signals, readiness. What it does is
// tools/service/service.h.

#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>

#include <cstdio>
#include <string>
#include <variant>
#include <vector>

#include "base/event_loop.h"
#include "base/log.h"
#include "tools/service/log_sink.h"
#include "tools/service/service.h"

namespace backstay::tools {
namespace {

constexpr int kExitOk = 0;
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

// SIGTERM and SIGINT as a descriptor, blocked before any thread starts so that none of them is
// interrupted. SIGPIPE is ignored: a peer that went away is an error of its write.
UniqueFd TakeSignals() {
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return UniqueFd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
}

int Run(const ServiceConfig& config) {
  const UniqueFd signals = TakeSignals();
  InstallLogSink(config.log_level, config.log_format);
  EventLoop loop;
  int exit_code = kExitOk;

  Result<std::unique_ptr<Service>> service = Service::Open(
      loop, config, /*on_ready=*/[] { sd_notify(0, "READY=1"); },
      /*on_end=*/
      [&](const Status& why) {
        Log(LogLevel::kError, "the service cannot go on", {{"error", why.ToString()}});
        exit_code = kExitFailed;
        loop.Stop();
      });
  if (!service.ok()) {
    Log(LogLevel::kError, "cannot start", {{"error", service.status().ToString()}});
    return kExitFailed;
  }
  const Status watched = loop.WatchFd(signals.get(), EPOLLIN, [&](uint32_t) {
    loop.UnwatchFd(signals.get());
    Log(LogLevel::kInfo, "asked to stop");
    sd_notify(0, "STOPPING=1");
    (*service)->Shutdown([&] { loop.Stop(); });
  });
  if (!watched.ok()) {
    Log(LogLevel::kError, "cannot wait for signals", {{"error", watched.ToString()}});
    return kExitFailed;
  }
  loop.Run();
  return exit_code;
}

int Main(const std::vector<std::string>& arguments) {
  const Result<ConfigOrText> parsed = ParseServiceConfig(arguments);
  if (!parsed.ok()) {
    std::fprintf(stderr, "backstayd: %s\n", parsed.status().message().c_str());
    return kExitUsage;
  }
  if (const auto* text = std::get_if<std::string>(&*parsed)) {
    std::fputs(text->c_str(), stdout);
    return kExitOk;
  }
  return Run(std::get<ServiceConfig>(*parsed));
}

}  // namespace
}  // namespace backstay::tools

int main(int argc, char** argv) {
  return backstay::tools::Main(std::vector<std::string>(argv + 1, argv + argc));
}
