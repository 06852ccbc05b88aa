#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "client/local.pb.h"

// A service in this process, as simple as can be, that speaks local.proto with the generated code
// and checks what it is told with the service's own manifest rules. No header of base/ here: tests
// include backstay.hpp, whose Status has the same name.
namespace backstay::tests {

using ClientBody = client::wire::ClientFrame::BodyCase;

// Thread: any. Its own thread serves one client process, connection after connection.
class FakeService {
 public:
  static constexpr uint32_t kChunkBytes = 4096;

  FakeService();
  ~FakeService();
  const std::string& socket_path() const { return socket_path_; }

  // Stops serving: the socket closes, as after SIGKILL. Start() serves again, with the same memory
  // (`keep_state`) or none.
  void Stop();
  void Start(bool keep_state);

  // What the service does on the next message of a kind, instead of answering.
  enum class Trick { kNone, kDie, kIgnore, kGarbage, kOversized, kRefuse, kNoDescriptors, kHangUp };
  void Play(ClientBody on, Trick trick);
  // The saves that fill slots have failed here; the client has not heard of it.
  void TakeSlotsBack();
  // Fetched shards come with these chunks damaged, until they are reported; `reopen`: the repaired
  // ones are in another slot. `forever`: reporting does not help.
  void DamageChunks(std::set<uint32_t> chunks, bool reopen, bool forever = false);
  void HoldChunks(bool hold);  // Fetched chunks do not become ready while held.
  void SetProtocolVersion(uint32_t version);
  void SetNextAttempts(int count);  // FinishRestore answers with another attempt this often.
  void SendEvent(const client::wire::Event& event);
  void AutoProtect(bool on);  // A sealed shard is protected and committed at once. Default: on.

  // Waits until `count` messages of a kind have arrived on all connections together.
  bool WaitFor(ClientBody kind, size_t count);
  std::vector<client::wire::ClientFrame> Received(ClientBody kind) const;
  // The bytes of a sealed shard; empty if there is none.
  std::string SealedBytes(uint64_t step) const;
  size_t open_shards() const;
  size_t filling_slots() const;

 private:
  struct Slot;
  struct Shard;
  struct OpenShard;
  struct Answer {
    client::wire::ServiceFrame frame;
    std::vector<int> descriptors;
  };

  void Serve();
  bool ServeFrame(int fd, const client::wire::ClientFrame& frame);
  Answer Handle(const client::wire::ClientFrame& frame);
  void HandleBegin(const client::wire::ClientFrame& frame, Answer* answer);
  Slot* FillingSlot(uint64_t slot_id, uint64_t epoch);
  void HandleStartCopy(const client::wire::StartCopy& start, Answer* answer);
  void HandleSeal(const client::wire::Seal& seal, Answer* answer);
  void HandleFetch(const client::wire::Fetch& fetch, Answer* answer);
  void HandleFetchChunks(const client::wire::FetchChunks& fetch);
  void HandleBadChunks(const client::wire::ReportBadChunks& report, Answer* answer);
  void HandleFinishRestore(const client::wire::FinishRestore& finish, Answer* answer);
  void HandleIndex(Answer* answer);
  void FillDecision(client::wire::Decision* decision);
  void PublishChunk(OpenShard& open, uint32_t chunk);
  void Open(const Shard& shard, bool whole, OpenShard* open);
  bool Send(int fd, const client::wire::ServiceFrame& frame, const std::vector<int>& descriptors);

  std::string directory_;
  std::string socket_path_;
  int listener_ = -1;
  int stop_fd_ = -1;
  std::thread thread_;

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int connection_ = -1;
  std::map<ClientBody, Trick> tricks_;
  std::vector<client::wire::ClientFrame> received_;
  std::map<uint64_t, std::unique_ptr<Slot>> slots_;
  std::map<uint64_t, std::unique_ptr<Shard>> shards_;  // By step.
  std::map<uint64_t, std::unique_ptr<OpenShard>> open_;
  std::set<uint32_t> damaged_;
  bool reopen_ = false;
  bool damaged_forever_ = false;
  bool hold_chunks_ = false;
  bool auto_protect_ = true;
  uint32_t protocol_version_ = 0;
  int next_attempts_ = 0;
  uint64_t registered_bytes_ = 0;
  uint64_t next_id_ = 1;
  uint64_t generation_ = 1;
  std::string registered_shard_;
};

}  // namespace backstay::tests
