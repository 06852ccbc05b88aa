// A trainer that does what it is told, one call of the public API per line: the process tests kill
// it, and its service, between and inside of calls.
//
//   backstay_api_driver COMMANDS
//
// COMMANDS is a FIFO. Each line is answered by one line of JSON on stdout: {"ok": true, ...}, or
// {"ok": false, "code", "message"}. The end of the FIFO ends the program, and what it has forked.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <backstay.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using backstay::Client;
using backstay::Decision;
using backstay::Event;
using backstay::Restored;
using backstay::Result;
using backstay::Save;
using backstay::Shard;
using backstay::Status;
using Json = nlohmann::ordered_json;

constexpr const char* kTensor = "weights";
constexpr uint32_t kWaitMs = 30'000;

Json ToJson(const Status& status) {
  if (status.ok()) return {{"ok", true}};
  return {{"ok", false},
          {"code", backstay_code_name(static_cast<int>(status.code()))},
          {"message", status.message()}};
}

const char* EventName(int32_t kind) {
  switch (kind) {
    case BACKSTAY_EVENT_FENCED:
      return "fenced";
    case BACKSTAY_EVENT_PROTECTED:
      return "protected";
    case BACKSTAY_EVENT_COMMITTED:
      return "committed";
    case BACKSTAY_EVENT_SAVE_FAILED:
      return "save_failed";
    case BACKSTAY_EVENT_UNDER_PROTECTED:
      return "under_protected";
    case BACKSTAY_EVENT_PROTECTED_AGAIN:
      return "protected_again";
    case BACKSTAY_EVENT_SERVICE_LOST:
      return "service_lost";
    case BACKSTAY_EVENT_SERVICE_BACK:
      return "service_back";
    default:
      return "other";
  }
}

// What a rank saves at a step: every byte follows from the two, so that a reader knows what to
// find.
void FillState(uint64_t step, uint32_t rank, std::vector<uint8_t>& state) {
  uint64_t word = (step + uint64_t{rank} * 0xD1B54A32D192ED03u) * 0x9E3779B97F4A7C15u + 1;
  for (uint8_t& byte : state) {
    word = word * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<uint8_t>(word >> 56);
  }
}

// One line's words, taken from the front.
class Words {
 public:
  explicit Words(const std::string& line) : in_(line) {}
  std::string Text() {
    std::string word;
    in_ >> word;
    return word;
  }
  uint64_t Number() {
    uint64_t number = 0;
    in_ >> number;
    return number;
  }
  std::string Rest() {
    std::string rest;
    std::getline(in_ >> std::ws, rest);
    return rest;
  }

 private:
  std::istringstream in_;
};

class Driver {
 public:
  explicit Driver(int commands_fd) : commands_fd_(commands_fd) {}

  Json Do(const std::string& line) {
    Words words(line);
    const std::string command = words.Text();
    const auto handler = handlers_.find(command);
    if (handler == handlers_.end()) return {{"ok", false}, {"message", "what is " + command}};
    if (command != "connect" && !client_) return {{"ok", false}, {"message", "not connected"}};
    return (this->*handler->second)(words);
  }

 private:
  using Handler = Json (Driver::*)(Words&);

  // connect SOCKET
  Json Connect(Words& words) {
    Result<Client> client = Client::Connect(words.Text());
    if (client.ok()) client_.emplace(std::move(client).value());
    return ToJson(client.status());
  }

  // register JOB TOKEN RANK WORLD_SIZE REPLICAS STATE_BYTES
  Json Register(Words& words) {
    job_ = words.Text();
    const std::string token = words.Text();
    backstay::RegisterOptions claim = Client::DefaultRegisterOptions();
    claim.job = job_.c_str();
    claim.token = token.c_str();
    claim.rank = rank_ = static_cast<uint32_t>(words.Number());
    claim.world_size = world_size_ = static_cast<uint32_t>(words.Number());
    claim.replicas = static_cast<uint32_t>(words.Number());
    claim.size_bytes = words.Number();
    if (claim.size_bytes < (uint64_t{1} << 32)) state_.resize(claim.size_bytes);
    const auto registration = client_->Register(claim);
    Json answer = ToJson(registration.status());
    if (registration.ok()) answer["reserved_local"] = registration.value().reserved_bytes_local;
    return answer;
  }

  // resize STATE_BYTES
  Json Resize(Words& words) { return ToJson(client_->Resize(words.Number())); }

  // grow STATE_BYTES: of what is saved, not of what is registered.
  Json Grow(Words& words) {
    state_.resize(words.Number());
    return ToJson(Status());
  }

  // renumber RANK: what the trainer calls itself from the next restore on.
  Json Renumber(Words& words) {
    rank_ = static_cast<uint32_t>(words.Number());
    return ToJson(Status());
  }

  // attempt
  Json NewAttempt(Words&) {
    const Result<std::string> uuid = client_->NewAttempt();
    Json answer = ToJson(uuid.status());
    if (uuid.ok()) answer["uuid"] = uuid.value();
    return answer;
  }

  // restore UUID TIMEOUT_MS [FORK_JOB]: decides, fetches, compares every byte, finishes.
  Json Restore(Words& words) {
    const std::string uuid = words.Text();
    backstay::DecideOptions options = Client::DefaultDecideOptions();
    options.uuid = uuid.c_str();
    options.rank = rank_;
    options.world_size = world_size_;
    backstay::RestoreTimeouts timeouts;
    timeouts.decide_ms = timeouts.finish_ms = static_cast<uint32_t>(words.Number());
    const std::string fork_job = words.Text();
    if (!fork_job.empty()) {
      options.mode = BACKSTAY_RESUME_FORK;
      options.fork_job = fork_job.c_str();
    }
    const auto read = [this](const Decision& decision, Shard& shard) -> Status {
      const Result<backstay::ShardInfo> info = shard.Info();
      if (!info.ok()) return info.status();
      if (info.value().rank != rank_) {
        return {backstay::Code::kCorrupt,
                "this is rank " + std::to_string(info.value().rank) + "'s state"};
      }
      return Compare(shard, decision.base_step);
    };
    const Result<Restored> restored = client_->Restore(options, read, timeouts);
    Json answer = ToJson(restored.status());
    if (!restored.ok()) return answer;
    const Decision& decision = restored.value().decision;
    answer["fresh"] = decision.fresh != 0;
    answer["step"] = decision.base_step;
    answer["generation"] = decision.generation;
    answer["local"] = restored.value().local;
    return answer;
  }

  // begin STEP TIMEOUT_MS
  Json Begin(Words& words) {
    step_ = words.Number();
    save_.reset();
    Result<Save> save = client_->Begin(step_, static_cast<uint32_t>(words.Number()));
    if (save.ok()) save_.emplace(std::move(save).value());
    return ToJson(save.status());
  }

  // copy: all of the state, in the background.
  Json Copy(Words&) {
    if (!save_) return {{"ok", false}, {"message", "nothing is begun"}};
    FillState(step_, rank_, state_);
    backstay::Tensor tensor{.name = kTensor,
                            .dtype = backstay::Dtype::kUint8,
                            .data = state_.data(),
                            .shape = {state_.size()}};
    Status status = save_->AddTensor(tensor);
    if (status.ok()) status = save_->StartCopy(1);
    return ToJson(status);
  }

  // wait copied|sealed|protected|committed
  Json Wait(Words& words) {
    if (!save_) return {{"ok", false}, {"message", "nothing is begun"}};
    const std::string stage = words.Text();
    if (stage == "copied") return ToJson(save_->WaitCopied(kWaitMs));
    if (stage == "sealed") return ToJson(save_->WaitSealed(kWaitMs));
    if (stage == "protected") return ToJson(save_->WaitProtected(kWaitMs));
    return ToJson(save_->WaitCommitted(kWaitMs));
  }

  // save STEP: from its beginning to its commit.
  Json SaveAll(Words& words) {
    Words begin(words.Text() + " " + std::to_string(kWaitMs));
    Words nothing("");
    Words copied("copied");
    Words committed("committed");
    Json answer = Begin(begin);
    if (answer["ok"]) answer = Copy(nothing);
    if (answer["ok"]) answer = Wait(copied);
    if (answer["ok"]) answer = Wait(committed);
    return answer;
  }

  Json Abandon(Words&) {
    return save_ ? ToJson(save_->Abandon()) : Json{{"ok", false}, {"message", "nothing is begun"}};
  }

  // event KIND: waits for the next one of that kind; says which came before it.
  Json WaitEvent(Words& words) {
    const std::string kind = words.Text();
    Json skipped = Json::array();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kWaitMs);
    while (std::chrono::steady_clock::now() < end) {
      const std::optional<Event> event = client_->NextEvent();
      if (event && EventName(event->kind) == kind) {
        return {{"ok", true},
                {"step", event->snapshot_step},
                {"message", event->message},
                {"skipped", skipped}};
      }
      if (event) {
        skipped.push_back(EventName(event->kind));
        continue;
      }
      pollfd waits{.fd = client_->EventDescriptor(), .events = POLLIN, .revents = 0};
      ::poll(&waits, 1, 100);
    }
    return {{"ok", false}, {"message", "no event " + kind}, {"skipped", skipped}};
  }

  // open STEP [SHARD [JOB]]: of any rank, and compares every byte. Step 0: the newest.
  Json Open(Words& words) {
    const uint64_t step = words.Number();
    const std::string shard_id = words.Text();
    const std::string job = words.Text();
    backstay::SnapshotId snapshot;
    if (step != 0) {
      const Result<backstay::SnapshotId> newest = client_->NewestCommitted(kWaitMs);
      if (!newest.ok()) return ToJson(newest.status());
      snapshot = {newest.value().generation, step};
    }
    Result<Shard> shard = client_->OpenShard(snapshot, shard_id, job);
    if (!shard.ok()) return ToJson(shard.status());
    const Result<backstay::ShardInfo> info = shard->Info();
    if (!info.ok()) return ToJson(info.status());
    return ToJson(Compare(*shard, info.value().step));
  }

  // read TENSOR DTYPE ELEMENTS: of the newest snapshot's shard; DTYPE is a number of
  // backstay_dtype.
  Json Read(Words& words) {
    const std::string tensor = words.Text();
    const auto dtype = static_cast<backstay::Dtype>(words.Number());
    const uint64_t elements = words.Number();
    std::vector<uint8_t> memory(elements * 8);
    Result<Shard> shard = client_->OpenShard({});
    if (!shard.ok()) return ToJson(shard.status());
    return ToJson(shard->Read(
        tensor, {.dtype = dtype, .data = memory.data(), .shape = {elements}, .strides = {}}));
  }

  Json Newest(Words&) {
    const Result<backstay::SnapshotId> newest = client_->NewestCommitted(kWaitMs);
    Json answer = ToJson(newest.status());
    if (newest.ok()) answer["step"] = newest.value().step;
    return answer;
  }

  // fence REASON
  Json Fence(Words& words) { return ToJson(client_->Fence(words.Rest())); }

  // fork: a data loader that outlives this process, and calls nothing of the library.
  Json Fork(Words&) {
    const pid_t child = ::fork();
    if (child != 0) return {{"ok", child > 0}, {"pid", child}};
    pollfd end{.fd = commands_fd_, .events = 0, .revents = 0};
    while (::poll(&end, 1, -1) < 0) {
    }
    ::_exit(0);
  }

  // finish: the job is done, and its state may go.
  Json Finish(Words&) {
    save_.reset();  // It keeps its slot mapped.
    return ToJson(client_->Finish(/*drop_state=*/true));
  }

  Status Compare(Shard& shard, uint64_t step) {
    std::vector<uint8_t> found(state_.size());
    Status status = shard.Read(kTensor, backstay::MemoryOf(std::span(found)));
    if (!status.ok()) return status;
    std::vector<uint8_t> wanted(state_.size());
    const Result<backstay::ShardInfo> info = shard.Info();
    if (!info.ok()) return info.status();
    FillState(step, info.value().rank, wanted);
    if (found == wanted) return {};
    return {backstay::Code::kCorrupt, "the bytes are not those of step " + std::to_string(step) +
                                          " of rank " + std::to_string(info.value().rank)};
  }

  static const std::map<std::string, Handler> handlers_;

  const int commands_fd_;
  std::string job_;
  uint32_t rank_ = 0;
  uint32_t world_size_ = 1;
  uint64_t step_ = 0;
  std::vector<uint8_t> state_;
  std::optional<Client> client_;
  std::optional<Save> save_;  // Ends before its client.
};

const std::map<std::string, Driver::Handler> Driver::handlers_ = {
    {"connect", &Driver::Connect},    {"register", &Driver::Register},
    {"resize", &Driver::Resize},      {"grow", &Driver::Grow},
    {"attempt", &Driver::NewAttempt}, {"restore", &Driver::Restore},
    {"begin", &Driver::Begin},        {"copy", &Driver::Copy},
    {"wait", &Driver::Wait},          {"save", &Driver::SaveAll},
    {"abandon", &Driver::Abandon},    {"event", &Driver::WaitEvent},
    {"open", &Driver::Open},          {"read", &Driver::Read},
    {"newest", &Driver::Newest},      {"fence", &Driver::Fence},
    {"fork", &Driver::Fork},          {"finish", &Driver::Finish},
    {"renumber", &Driver::Renumber},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: backstay_api_driver COMMANDS\n";
    return 2;
  }
  const int commands_fd = ::open(argv[1], O_RDONLY | O_CLOEXEC);
  if (commands_fd < 0) {
    std::cerr << "cannot open " << argv[1] << "\n";
    return 2;
  }
  Driver driver(commands_fd);
  std::string pending;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(commands_fd, bytes, sizeof bytes)) > 0;) {
    pending.append(bytes, static_cast<size_t>(got));
    for (size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      std::cout << driver.Do(line).dump() << std::endl;
    }
  }
  return 0;
}
