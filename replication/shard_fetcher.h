#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/hash.h"
#include "base/ids.h"
#include "replication/peer_link.h"
#include "store/shard_table.h"
#include "transport/transport.h"

namespace backstay::replication {

// Brings a sealed shard, or some chunks of it, from all of its holders at once into a slot of this
// node. Every source takes the next run of chunks when it is free, so a fast one does more; one
// that dies, stalls or sends wrong bytes is replaced by the others for the chunks that remain.
//
// Thread:  the control executor.
// Memory:  the shard is kReceiving in the table from Opened on; pulls hold pins. A range of the
//          slot has one writer: a run goes to another source only after its pull has ended.
// Failure: a chunk for which no source is left (all are bad, gone, or say that they have not got
//          it) is published as failed, and the fetch ends kCorrupt. While a living source cannot be
//          reached it goes on trying: the deadline is the reader's, who closes the fetch.
class ShardFetcher {
 public:
  static constexpr uint64_t kRunBytesMax = 8 * kMiB;
  static constexpr size_t kPullsPerSourceMax = 2;  // One on the wire, one verified.
  static constexpr size_t kSourcesMax = 16;
  static constexpr Duration kOpenTimeout = std::chrono::seconds(3);
  static constexpr Duration kPullTimeout = std::chrono::seconds(30);
  // A source that could not be reached is asked again, for as long as it is a living member; one
  // that is none is given up after so many times.
  static constexpr Duration kReopenDelay = std::chrono::milliseconds(250);
  static constexpr uint32_t kOpensOfDeadMax = 4;
  // Damage on the way and damage at the source look alike: the source reads its memory again, and
  // if that is good the chunk is asked for again, so often.
  static constexpr uint32_t kMismatchesMax = 3;
  static constexpr uint32_t kVerifiesMax = 16;
  // A run that takes this long while another source is idle goes to that one.
  static constexpr Duration kSlowPull = std::chrono::seconds(1);
  static constexpr Duration kCheckInterval = std::chrono::milliseconds(100);

  enum class State {
    kOpening,  // No source has answered with the manifest.
    kReading,  // The shard is in the table, chunks come in as they are wanted.
    kSealed,   // All of it is there.
    kFailed,   // See trouble().
  };

  struct Observer {
    std::function<void()> on_opened;  // kReading for the first time.
    std::function<void()> on_ended;   // kSealed or kFailed.
  };
  // Makes the slot to receive into, once the size is known; the reservation must fit.
  using ReserveSlot = std::function<void(uint64_t size_bytes, uint32_t chunk_bytes,
                                         Completion<store::ReservationId> done)>;

  // `digest` nothing: whatever the first source has. Observers are posted.
  ShardFetcher(ShardName name, std::optional<Hash128> digest, std::vector<NodeInstance> sources,
               Executor& executor, PeerLink& peers, store::ShardTable& table,
               transport::Puller& puller, ReserveSlot reserve, Observer observer);
  ~ShardFetcher();
  ShardFetcher(const ShardFetcher&) = delete;
  ShardFetcher& operator=(const ShardFetcher&) = delete;

  State state() const { return state_; }
  const Status& trouble() const { return trouble_; }
  const std::optional<Hash128>& digest() const { return digest_; }
  uint64_t bytes_read() const { return bytes_read_; }
  // Nodes that bytes came from.
  std::vector<NodeId> ContributingNodes() const;

  // Wants these chunks, too; out of range is ignored. Whole: the shard is sealed in the end.
  void Want(uint64_t first_chunk, uint64_t chunk_count);
  void WantAll();
  // The fetch ends kFailed, with this as its trouble.
  void Fail(Status why);

 private:
  enum class SourceState {
    kClosed,   // To be asked (again) at `next_open`.
    kOpening,  // Asked.
    kOpen,     // Has the digest and gave a grant.
    kLost,     // Has not got it, is damaged, or is gone.
  };
  enum class VerifyState { kIdle, kAsked, kDue };
  struct Source {
    NodeInstance node;
    SourceState state = SourceState::kClosed;
    std::optional<transport::Grant> grant;
    Instant next_open;
    uint32_t open_count = 0;
    size_t pull_count = 0;
    // How often each chunk came wrong from here. While it is in `doubted`, it is not asked for
    // here: until the source has read its memory again, or for good.
    std::map<uint64_t, uint32_t> mismatches;
    std::set<uint64_t> doubted;
    uint32_t verify_count = 0;  // Has read its memory again, and found it good.
    VerifyState verify = VerifyState::kIdle;
    Instant next_verify;
    uint64_t bytes = 0;
    Status trouble;
  };
  struct Pull {
    size_t source = 0;
    uint64_t first = 0;
    uint64_t count = 0;
    Instant started;
  };

  void Step();
  void Open(size_t index);
  void OnOpened(size_t index, Result<wire::Reply> reply);
  void OnManifest(const wire::OpenShardReply& opened);
  void CloseSource(Source& source, const Status& why);
  void LoseSource(Source& source, const Status& why);
  void StartPulls();
  // The next run that this source may bring; nothing: there is none.
  std::optional<Pull> NextRun(size_t index) const;
  void StartPull(const Pull& pull);
  void OnPulled(transport::PullId id, const transport::PullResult& result);
  void AskToVerify(size_t index);
  void OnVerified(size_t index, const Result<wire::Reply>& reply);
  void CancelSlow();
  void FailHopeless();
  bool MayStillBring(const Source& source, uint64_t chunk) const;
  void ReleaseSources();

  const ShardName name_;
  std::optional<Hash128> digest_;
  Executor& executor_;
  PeerLink& peers_;
  store::ShardTable& table_;
  transport::Puller& puller_;
  const ReserveSlot reserve_;
  const Observer observer_;

  State state_ = State::kOpening;
  Status trouble_;
  std::vector<Source> sources_;
  std::string manifest_;  // Between the first answer and the slot.
  bool whole_ = false;
  std::vector<std::pair<uint64_t, uint64_t>> wanted_before_open_;
  std::set<uint64_t> wanted_;     // Not there, not under way.
  std::set<uint64_t> in_flight_;  // Chunks of pulls_.
  std::map<transport::PullId, Pull> pulls_;
  uint64_t bytes_read_ = 0;
  TimerId timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
