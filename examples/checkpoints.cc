#include "examples/checkpoints.h"

#include <poll.h>

#include <cstdio>
#include <stdexcept>
#include <utility>

namespace backstay::example {
namespace {

using Clock = std::chrono::steady_clock;

// Copied in this order, which is the order in which a step's second half needs them back.
constexpr uint32_t kWeightsGroup = 0;
constexpr uint32_t kTableGroup = 1;

// Below the group's timeout: while this rank waits for a slot, the others wait for this rank.
constexpr uint32_t kBeginTimeoutMs = 5'000;
// A copy that takes so long has failed: the state must be free for the next step.
constexpr uint32_t kCopyTimeoutMs = 60'000;
constexpr uint32_t kLastCommitTimeoutMs = 60'000;
constexpr uint32_t kResumeAttemptsMax = 3;
// Two committed snapshots, so that one that turns out bad everywhere has one before it.
constexpr uint32_t kVersions = 2;

// A rank that dies while the group reconfigures is known by its absence at the first of these.
constexpr RestoreTimeouts kRestoreTimeouts = {
    .decide_ms = 30'000, .fetch_ms = 30'000, .finish_ms = 120'000};

// The state that is not in tensors, stored as it lies in memory.
struct Progress {
  uint64_t step;
  uint64_t cursor;
  uint64_t random;
};

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

template <typename T>
T OrThrow(Result<T> result, const std::string& doing) {
  if (!result.ok()) throw std::runtime_error(doing + ": " + result.status().ToString());
  return std::move(result).value();
}

Tensor Whole(std::string name, const std::vector<float>& values, std::vector<uint64_t> shape) {
  Tensor tensor;
  tensor.name = std::move(name);
  tensor.dtype = Dtype::kFp32;
  tensor.data = values.data();
  tensor.shape = std::move(shape);
  return tensor;
}

bool WorthAnotherTry(const Status& status) {
  return status.code() == Code::kUnavailable || status.code() == Code::kDeadline ||
         status.code() == Code::kUnknownOutcome || status.code() == Code::kStale;
}

}  // namespace

std::vector<Tensor> DescribeTensors(const TrainerState& state) {
  std::vector<Tensor> tensors;
  // Every rank has the same weights.
  for (const Parameter& parameter : kParameters) {
    Tensor tensor =
        Whole(std::string(parameter.name), state.weights, {parameter.rows, parameter.columns});
    tensor.data = state.weights.data() + parameter.offset;
    tensor.slice = Slice::kReplicated;
    tensor.group = kWeightsGroup;
    tensors.push_back(std::move(tensor));
  }
  // Each rank has a range of their moments (ZeRO-1).
  const auto add_moment = [&](const char* name, const std::vector<float>& moment) {
    Tensor tensor = Whole(name, moment, {moment.size()});
    tensor.slice = Slice::kFlat;
    tensor.global_shape = {kWeightCount};
    tensor.flat_offset = state.weight_part.begin;
    tensor.flat_count = state.weight_part.size();
    tensor.group = kWeightsGroup;
    tensors.push_back(std::move(tensor));
  };
  add_moment("adam.moment1", state.moment1);
  add_moment("adam.moment2", state.moment2);
  // Each rank has some rows of the table, and their moments.
  const auto add_rows = [&](const char* name, const std::vector<float>& rows) {
    const NgramShard& table = state.table;
    Tensor tensor = Whole(name, rows, {table.row_count, kNgramWidth});
    tensor.slice = Slice::kBoxes;
    tensor.global_shape = {table.table_row_count, kNgramWidth};
    tensor.boxes = {{.offset = {table.first_row, 0}, .extent = {table.row_count, kNgramWidth}}};
    tensor.group = kTableGroup;
    tensors.push_back(std::move(tensor));
  };
  add_rows("ngrams.rows", state.table.rows);
  add_rows("ngrams.moment1", state.table.moment1);
  add_rows("ngrams.moment2", state.table.moment2);
  return tensors;
}

Checkpoints::Checkpoints(const Options& options, const Round& round, const TrainerState& state,
                         const std::string& text_digest, EventLog& events)
    : options_(options),
      events_(events),
      configuration_("seed " + std::to_string(options.seed) + " text " + text_digest + " rows " +
                     std::to_string(state.table.table_row_count)),
      rank_(round.rank),
      client_(OrThrow(Client::Connect(options.service), "connecting to " + options.service)),
      session_(client_, {.shard_id = options.shard_id, .timeouts = kRestoreTimeouts}) {
  const uint64_t blob_sizes[] = {sizeof(Progress)};
  RegisterOptions claim = Client::DefaultRegisterOptions();
  claim.job = options.job.c_str();
  claim.token = options.token.c_str();
  claim.shard_id = options.shard_id.empty() ? nullptr : options.shard_id.c_str();
  claim.rank = static_cast<uint32_t>(round.rank);
  claim.world_size = static_cast<uint32_t>(round.world_size);
  claim.replicas = options.replicas;
  claim.versions = kVersions;
  claim.wait_for_slot = !options.skip_when_no_slot;
  claim.size_bytes =
      OrThrow(Client::Plan(DescribeTensors(state), blob_sizes), "planning the shard");
  const auto registration =
      OrThrow(client_.Register(claim), "claiming shard of rank " + std::to_string(round.rank));
  events_.Write("registered",
                {{"rank", rank_},
                 {"node", std::string(OrThrow(client_.Info(), "asking for this node").node_id)},
                 {"bytes", claim.size_bytes},
                 {"reserved_local", registration.reserved_bytes_local},
                 {"reserved_peers", registration.reserved_bytes_peers}});
}

void Checkpoints::Resume(Communicator& communicator, const Rounds& rounds, const Round& round,
                         TrainerState& state) {
  rank_ = round.rank;
  const auto rank = static_cast<uint32_t>(round.rank);
  const auto world_size = static_cast<uint32_t>(round.world_size);
  for (uint32_t attempt = 0;; ++attempt) {
    events_.Write("reconfigure_begin", {{"round", round.number}, {"rank", round.rank}});
    const Result<Restored> restored = session_.OnReconfigured(
        rank, world_size, communicator.store(), attempt,
        [&](const Decision& decision, Shard& shard) { return ReadState(decision, shard, state); });
    if (restored.ok()) {
      const Decision& decision = restored.value().decision;
      if (decision.fresh) state.Reset(options_.seed);
      events_.Write("resumed", {{"generation", decision.generation}, {"step", state.step}});
      Say(rank_, decision.fresh
                     ? "starts from the beginning: " + std::string(decision.why)
                     : "resumes from step " + std::to_string(state.step) + ": " + decision.why);
      return;
    }
    const Status& status = restored.status();
    events_.Write("reconfigure_failed", {{"message", status.ToString()}});
    Say(rank_, "reconfiguration failed: " + status.ToString());
    if (rounds.Newest() > round.number) throw CommunicatorError("there is a newer round");
    if (!WorthAnotherTry(status) || attempt + 1 == kResumeAttemptsMax) {
      throw std::runtime_error("cannot resume: " + status.ToString());
    }
  }
}

Status Checkpoints::ReadState(const Decision& decision, Shard& shard, TrainerState& state) {
  events_.Write("decided", {{"generation", decision.generation},
                            {"step", decision.base_step},
                            {"attempt", decision.attempt},
                            {"why", std::string(decision.why)}});
  const Clock::time_point start = Clock::now();
  const Result<std::string> configuration = shard.Tag("configuration");
  if (!configuration.ok()) return configuration.status();
  if (configuration.value() != configuration_) {
    return Status(Code::kInvalidArgument, "the snapshot is of a run with " + configuration.value() +
                                              ", this one has " + configuration_);
  }
  uint64_t bytes = sizeof(Progress);
  for (const Tensor& tensor : DescribeTensors(state)) {
    // The description is of memory that `state` owns and that this call may change.
    const Memory memory = {
        .dtype = tensor.dtype, .data = const_cast<void*>(tensor.data), .shape = tensor.shape};
    const Status status = shard.Read(tensor.name, memory, {.thread_count = options_.copy_threads});
    if (!status.ok()) return status;
    uint64_t elements = 1;
    for (const uint64_t extent : tensor.shape) elements *= extent;
    bytes += elements * sizeof(float);
  }
  Progress progress = {};
  if (Status status = shard.ReadBlobInto("progress", progress); !status.ok()) return status;
  state.step = progress.step;
  state.cursor = progress.cursor;
  state.random = Random(progress.random);

  const Result<ShardInfo> info = shard.Info();
  if (!info.ok()) return info.status();
  const double seconds = MillisecondsSince(start) / 1000;
  const bool local = info.value().local != 0;
  events_.Write("restored", {{"step", state.step},
                             {"bytes", bytes},
                             {"seconds", seconds},
                             {"source", local ? "own node" : "peers"}});
  Say(rank_, Format("read %.1f MiB of state", static_cast<double>(bytes) / (1 << 20)) +
                 Format(" in %.3f s from ", seconds) + (local ? "its own node" : "other nodes"));
  return Status();
}

Status Checkpoints::FillSave(backstay::Save& save, const TrainerState& state) {
  for (const Tensor& tensor : DescribeTensors(state)) {
    if (Status status = save.AddTensor(tensor); !status.ok()) return status;
  }
  const Progress progress = {state.step, state.cursor, state.random.state()};
  if (Status status = save.AddBlobOf("progress", progress); !status.ok()) return status;
  // A snapshot whose ranks disagree about these is never committed.
  if (Status status = save.AddTag("configuration", configuration_); !status.ok()) return status;
  if (Status status = save.AddTag("cursor", std::to_string(state.cursor)); !status.ok()) {
    return status;
  }
  return save.StartCopy(options_.copy_threads);
}

void Checkpoints::Save(const TrainerState& state) {
  const Clock::time_point start = Clock::now();
  save_step_ = state.step;
  Result<backstay::Save> save = client_.Begin(state.step, kBeginTimeoutMs);
  if (!save.ok()) return SaveFailed(state.step, save.status());
  if (Status status = FillSave(*save, state); !status.ok()) return SaveFailed(state.step, status);
  save_.emplace(std::move(save).value());
  stall_ms_ = MillisecondsSince(start);
  events_.Write("save_begun", {{"step", state.step}});
}

void Checkpoints::WaitWeightsCopied() { WaitCopied(kWeightsGroup); }

void Checkpoints::WaitTableCopied() {
  if (!save_) return;
  WaitCopied(kTableGroup);
  if (!save_) return;
  const Result<SaveStats> stats = save_->Stats();
  const double copy_ms = stats.ok() ? static_cast<double>(stats.value().copy_ns) * 1e-6 : 0.0;
  events_.Write("saved", {{"step", save_step_}, {"stall_ms", stall_ms_}, {"copy_ms", copy_ms}});
  Say(rank_, "saved step " + std::to_string(save_step_) +
                 Format(": training stalled %.2f ms", stall_ms_) +
                 Format(" of the copy's %.2f ms", copy_ms));
  // The service goes on by itself; protected and committed come as events.
  last_ = std::move(save_);
  save_.reset();
}

void Checkpoints::DropSaves() {
  save_.reset();
  last_.reset();
}

void Checkpoints::WaitLastCommit() {
  WaitWeightsCopied();
  WaitTableCopied();
  if (!last_) return;
  if (Status status = last_->WaitCommitted(kLastCommitTimeoutMs); !status.ok()) {
    SaveFailed(save_step_, status);
  }
  ReportEvents(std::chrono::milliseconds(0));
}

void Checkpoints::Finish() {
  if (Status status = client_.Finish(); !status.ok()) {
    Say(rank_, "the service did not hear that the job is done: " + status.ToString());
  }
}

void Checkpoints::WaitCopied(uint32_t group) {
  if (!save_) return;
  const Clock::time_point start = Clock::now();
  const Status status = save_->WaitCopied(group, kCopyTimeoutMs);
  stall_ms_ += MillisecondsSince(start);
  if (status.ok()) return;
  // Waits until no copy thread reads the state any more.
  save_.reset();
  SaveFailed(save_step_, status);
}

void Checkpoints::SaveFailed(uint64_t step, const Status& status) {
  events_.Write("save_failed", {{"step", step}, {"message", status.ToString()}});
  Say(rank_, "step " + std::to_string(step) + " was not saved: " + status.ToString());
}

void Checkpoints::ReportEvents(std::chrono::milliseconds timeout) {
  const Clock::time_point deadline = Clock::now() + timeout;
  for (;;) {
    while (const std::optional<Event> event = client_.NextEvent()) ReportEvent(*event);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    pollfd descriptor = {.fd = client_.EventDescriptor(), .events = POLLIN, .revents = 0};
    // An interrupted or failed poll only looks again sooner.
    static_cast<void>(poll(&descriptor, 1, static_cast<int>(left)));
  }
}

void Checkpoints::ReportEvent(const Event& event) {
  const std::pair<int, const char*> names[] = {{BACKSTAY_EVENT_FENCED, "fenced"},
                                               {BACKSTAY_EVENT_PROTECTED, "protected"},
                                               {BACKSTAY_EVENT_COMMITTED, "committed"},
                                               {BACKSTAY_EVENT_SAVE_FAILED, "save_failed"},
                                               {BACKSTAY_EVENT_UNDER_PROTECTED, "under_protected"},
                                               {BACKSTAY_EVENT_PROTECTED_AGAIN, "protected_again"},
                                               {BACKSTAY_EVENT_SERVICE_LOST, "service_lost"},
                                               {BACKSTAY_EVENT_SERVICE_BACK, "service_back"},
                                               {BACKSTAY_EVENT_MISSED, "missed_events"}};
  for (const auto& [kind, name] : names) {
    if (event.kind != kind) continue;
    events_.Write(name, {{"step", event.snapshot_step},
                         {"generation", event.snapshot_generation},
                         {"message", std::string(event.message)}});
    const bool routine = kind == BACKSTAY_EVENT_PROTECTED || kind == BACKSTAY_EVENT_COMMITTED;
    if (!routine || (kind == BACKSTAY_EVENT_COMMITTED && rank_ == 0)) {
      Say(rank_, std::string(name) + ", step " + std::to_string(event.snapshot_step) +
                     (event.message[0] != '\0' ? ": " : "") + event.message);
    }
  }
}

}  // namespace backstay::example
