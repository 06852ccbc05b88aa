#pragma once

#include <cstdint>
#include <functional>
#include <map>
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

// Brings one replica in from its primary (or, repairing, from another holder): takes what each
// offer adds, pulls it, and acknowledges once every chunk matches the sealed manifest.
//
// Level-triggered: Step() compares what is there with what should be and pulls the difference.
//
// Thread:  the control executor.
// Memory:  its shard is kReceiving in the table from before the first pull until it is sealed or
//          discarded. Each pull holds a pin, so that a slot is never reused under a transport that
//          can still write into it.
// Failure: a dead or silent source, or bytes that stay wrong, end it in kFailed: its owner discards
//          the shard. Pulls in flight are bounded by kPullsInFlightMax of kPullBytesMax each.
class ReplicaReceiver {
 public:
  static constexpr uint64_t kPullBytesMax = 8 * kMiB;
  static constexpr size_t kPullsInFlightMax = 4;
  static constexpr Duration kPullTimeout = std::chrono::seconds(30);
  static constexpr Duration kRetryDelay = std::chrono::milliseconds(20);
  static constexpr uint32_t kFailuresMax = 5;    // Of pulls in a row.
  static constexpr uint32_t kMismatchesMax = 3;  // Against the manifest, in all.
  // A primary repeats its offers until they are acknowledged, at most
  // ShardReplicator::kRetryMax + kOfferTimeout apart; one that is silent for longer has given up.
  static constexpr Duration kSourceSilenceMax = std::chrono::seconds(15);

  enum class State {
    kReceiving,
    kHeld,    // Sealed; acknowledged.
    kFailed,  // See trouble().
  };

  // The shard is kReceiving in the table. `on_ended` runs (posted) when the state has become kHeld
  // or kFailed.
  ReplicaReceiver(ShardName name, NodeInstance source, bool repair, Executor& executor,
                  PeerLink& peers, store::ShardTable& table, transport::Puller& puller,
                  std::function<void()> on_ended);
  ~ReplicaReceiver();
  ReplicaReceiver(const ReplicaReceiver&) = delete;
  ReplicaReceiver& operator=(const ReplicaReceiver&) = delete;

  State state() const { return state_; }
  const Status& trouble() const { return trouble_; }
  const NodeInstance& source() const { return source_; }
  bool repair() const { return repair_; }
  Instant last_offer() const { return last_offer_; }
  // Some chunk did not match the manifest though the grant was valid: the source should look.
  bool source_suspect() const { return mismatch_count_ > 0; }

  // What an offer adds; it has been checked to be of this shard.
  Status OnOffer(const wire::Offer& offer);
  void FillReply(wire::OfferReply* reply) const;

 private:
  struct Run {
    uint64_t first = 0;
    uint64_t count = 0;
  };
  struct Pull {
    Run run;
    bool by_manifest = false;  // Else by what was offered before the seal.
    transport::GrantId grant = 0;
    std::vector<Hash128> expected;
  };

  Status TakeChecksums(const wire::Offer& offer, uint64_t chunk_count);
  void Step();
  std::vector<Run> Wanted(const store::Shard& shard) const;
  void StartPull(const store::Shard& shard, const Run& run);
  void OnPulled(const Pull& pull, const transport::PullResult& result);
  void OnPullFailed(transport::GrantId grant, const Status& status);
  void StepLater(Duration delay);
  void Hold(const store::Shard& shard);
  void Fail(Status status);

  const ShardName name_;
  const NodeInstance source_;
  const bool repair_;
  Executor& executor_;
  PeerLink& peers_;
  store::ShardTable& table_;
  transport::Puller& puller_;
  const std::function<void()> on_ended_;

  State state_ = State::kReceiving;
  Status trouble_;
  std::optional<transport::Grant> grant_;          // Nothing: the next offer has to bring one.
  std::optional<transport::GrantId> ended_grant_;  // Of no use, though the source may not know it.
  Instant last_offer_;
  std::map<uint64_t, Hash128> offered_;  // Chunks as offered, not pulled yet; before the manifest.
  std::set<uint64_t> in_flight_;         // Chunks of pulls under way.
  std::set<transport::PullId> pulls_;
  uint32_t failure_count_ = 0;
  uint32_t mismatch_count_ = 0;
  TimerId timer_ = kNoTimer;
  Lifetime lifetime_;
};

}  // namespace backstay::replication
