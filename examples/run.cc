#include "examples/run.h"

#include <gloo/rendezvous/file_store.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include "examples/checkpoints.h"
#include "examples/communicator.h"
#include "examples/digest.h"
#include "examples/event_log.h"
#include "examples/options.h"
#include "examples/rounds.h"
#include "examples/text.h"
#include "examples/trainer.h"

namespace backstay::example {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        events_(options.events),
        store_(options.rendezvous),
        rounds_(options.rendezvous, options.member),
        text_(LoadText(options.text)),
        state_(options.state_mib, static_cast<size_t>(options.rank),
               static_cast<size_t>(options.world_size)),
        trainer_(text_, options.seed, state_) {}

  int Main();

 private:
  std::optional<Round> FirstRound();
  std::optional<Round> NextRound(uint64_t number_min);
  void TrainRound(const Round& round);
  void Train(Communicator& communicator);
  void Step(Communicator& communicator);
  void Stretch(Clock::time_point start);
  void Finish(Communicator& communicator);
  void Idle(milliseconds time);

  const Options& options_;
  EventLog events_;
  gloo::rendezvous::FileStore store_;
  const Rounds rounds_;
  const std::vector<uint8_t> text_;
  TrainerState state_;
  Trainer trainer_;
  std::unique_ptr<Checkpoints> checkpoints_;  // Null when training without Backstay.
  bool first_step_ = true;                    // Of this round.
};

int Run::Main() {
  events_.Write("started", {{"member", options_.member}, {"steps", options_.steps}});
  std::optional<Round> round = FirstRound();
  while (round) {
    try {
      TrainRound(*round);
      return kExitDone;
    } catch (const CommunicatorError& error) {
      events_.Write("round_failed", {{"round", round->number}, {"message", error.what()}});
      Say(round->rank, std::string("lost the group: ") + error.what());
    }
    // Nothing may read the state from here on: it is about to be restored.
    if (checkpoints_) checkpoints_->DropSaves();
    round = NextRound(round->number + 1);
  }
  return kExitFault;
}

std::optional<Round> Run::FirstRound() {
  if (options_.round > 0) return NextRound(options_.round);
  return Round{.number = 0, .rank = options_.rank, .world_size = options_.world_size};
}

std::optional<Round> Run::NextRound(uint64_t number_min) {
  const bool first = number_min == options_.round;
  if (!first && (options_.exit_on_fault || !checkpoints_)) return std::nullopt;
  std::optional<Round> round = rounds_.Wait(number_min, milliseconds(options_.round_timeout_ms),
                                            [this](milliseconds time) { Idle(time); });
  if (!round) {
    Say(options_.rank, "the launcher published no round " + std::to_string(number_min) + " in " +
                           options_.rendezvous);
  }
  return round;
}

void Run::TrainRound(const Round& round) {
  state_.Place(static_cast<size_t>(round.rank), static_cast<size_t>(round.world_size));
  first_step_ = true;
  if (options_.uses_backstay() && !checkpoints_) {
    const std::string text_digest = Digester().Add(std::as_bytes(std::span(text_))).Hex();
    checkpoints_ = std::make_unique<Checkpoints>(options_, round, state_, text_digest, events_);
  }
  Communicator communicator(store_, "round_" + std::to_string(round.number),
                            {.rank = round.rank,
                             .world_size = round.world_size,
                             .address = options_.address,
                             .timeout = milliseconds(options_.group_timeout_ms)});
  if (!checkpoints_) {
    state_.Reset(options_.seed);
    Train(communicator);
    return;
  }
  checkpoints_->Resume(communicator, rounds_, round, state_);
  // A fault is fenced before the communicator goes, so that nothing which this group gave up on is
  // still committed.
  checkpoints_->FenceOnError([&] { Train(communicator); });
}

void Run::Train(Communicator& communicator) {
  try {
    while (state_.step < options_.steps) Step(communicator);
    Finish(communicator);
  } catch (const CommunicatorError& error) {
    events_.Write("fault_seen", {{"step", state_.step}, {"message", error.what()}});
    throw;
  }
}

void Run::Step(Communicator& communicator) {
  const Clock::time_point start = Clock::now();
  const double loss = trainer_.ComputeGradients(communicator);
  Stretch(start);

  // The state may be changed only when the last save has copied it: the one moment at which saving
  // can cost time.
  if (checkpoints_) checkpoints_->WaitWeightsCopied();
  trainer_.UpdateWeights(communicator);
  if (checkpoints_) checkpoints_->WaitTableCopied();
  trainer_.UpdateTable(communicator);
  if (checkpoints_ && state_.step % options_.save_every == 0) checkpoints_->Save(state_);

  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (first_step_) events_.Write("first_step", {{"step", state_.step}});
  first_step_ = false;
  events_.Write("step", {{"step", state_.step}, {"loss", loss}, {"seconds", seconds}});
  if (communicator.rank() != 0) return;
  char line[96];
  const double tokens = static_cast<double>(kBatchSizePerRank * communicator.world_size());
  std::snprintf(line, sizeof(line), "step %llu  loss %.4f  %.0f tokens/s",
                static_cast<unsigned long long>(state_.step), loss, tokens / seconds);
  Say(0, line);
}

// Spends what is left of the step's least time, as a larger model's computation would.
void Run::Stretch(Clock::time_point start) {
  const auto left = start + milliseconds(options_.step_ms_min) - Clock::now();
  Idle(std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(left)));
}

void Run::Idle(milliseconds time) {
  if (checkpoints_) {
    checkpoints_->ReportEvents(time);
  } else {
    std::this_thread::sleep_for(time);
  }
}

void Run::Finish(Communicator& communicator) {
  if (checkpoints_) checkpoints_->WaitLastCommit();
  const std::string digest = state_.Digest();
  Digester all_ranks;
  std::array<char, 32> mine;
  std::copy_n(digest.begin(), mine.size(), mine.begin());
  for (const auto& one : communicator.AllGather(mine)) all_ranks.Add(std::as_bytes(std::span(one)));
  const std::string all = all_ranks.Hex();
  const int rank = static_cast<int>(communicator.rank());
  events_.Write("finished", {{"step", state_.step}, {"digest", digest}, {"digest_all", all}});
  Say(rank, "finished step " + std::to_string(state_.step) + "  state " + digest);
  if (rank == 0) Say(rank, "digest of all ranks  " + all);
  if (rank == 0 && checkpoints_) checkpoints_->Finish();
}

}  // namespace

int RunTrainer(const Options& options) { return Run(options).Main(); }

}  // namespace backstay::example
