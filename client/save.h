#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/status.h"
#include "client/contents.h"
#include "client/copy_engine.h"
#include "client/wire.h"

namespace backstay::client {

class Client;

// One save of one step: building, copying, sealing, then what the service says of it. A stage is
// only reached through all before it; a save that failed stays failed.
//
// Thread:  building (Add*, StartCopy) on one thread at a time; the rest from any. On* on the I/O
//          thread.
// Memory:  borrows tensors' data from StartCopy() until Wait(kCopied) returned anything but
//          kDeadline, or the save was abandoned. Owns copies of blobs.
class Save : public std::enable_shared_from_this<Save> {
 public:
  enum class Stage { kBuilding, kCopying, kSealing, kSealed, kProtected, kCommitted };
  struct Stats {
    local::SnapshotRef snapshot;
    uint64_t used_bytes = 0;
    uint64_t copy_ns = 0;
    uint64_t begin_ns = 0;
    uint64_t waited_ns = 0;
    Hash128 digest;
  };

  // One use of a slot.
  struct SlotUse {
    uint64_t connection = 0;  // Connection::epoch() when it was handed over.
    uint64_t slot_id = 0;
    uint64_t epoch = 0;  // Grows with each use; a service that starts again counts anew.
    std::shared_ptr<const MappedSlot> slot;
  };

  Save(std::shared_ptr<Client> client, local::SnapshotRef snapshot, SlotUse use, bool sound_later,
       uint64_t begin_ns);

  Status AddTensor(TensorSpec spec, const void* data, std::span<const int64_t> strides);
  Status AddBlob(std::string name, std::string_view bytes);
  Status AddTag(std::string name, std::string value);
  Status StartCopy(uint32_t thread_count);

  // Waits for kSealed, kProtected or kCommitted; WaitCopied() for the copy of `group`.
  Status Wait(Stage stage, TimePoint deadline);
  Status WaitCopied(uint32_t group, TimePoint deadline);
  Status StepIsSound();
  Status Abandon();
  // The handle goes: abandons what is not copied yet.
  void Release();
  Stats GetStats() const;

  const local::SnapshotRef& snapshot() const { return snapshot_; }
  const SlotUse& slot_use() const { return use_; }
  // The service has given the slot to a later save: when this returns, no thread copies into it
  // for this one, nor will.
  void OnSlotTaken();

  // What the service says.
  void OnReached(Stage stage);
  void OnFailed(const Status& why);
  // The generation is over: fails what is not sealed.
  void OnFenced(const Status& why);
  // True: it was open. A service that comes back without it is to tell the others.
  bool OnServiceLost(const Status& why);
  // The service is back: asks it what became of this save.
  void OnServiceBack();

 private:
  void SealWhenCopied();
  void OnSealReply(Result<Reply> reply);
  void OnQueryReply(Result<Reply> reply);
  Status Building() const;
  std::string Name() const;

  const std::shared_ptr<Client> client_;
  const local::SnapshotRef snapshot_;
  const SlotUse use_;
  const bool sound_later_;

  // Of the building thread.
  Contents contents_;
  std::vector<CopyPiece> pieces_;
  std::deque<std::string> blobs_;  // Stable addresses: pieces borrow them.

  mutable std::mutex mutex_;  // Protects what follows; never held while a message is sent.
  std::condition_variable changed_;
  Stage stage_ = Stage::kBuilding;
  Status failed_;              // Not ok: nothing more will come.
  Status away_;                // Not ok: the service is away, its word may still come.
  bool slot_is_gone_ = false;  // Another save has it, or the service that had it went away.
  std::shared_ptr<CopyJob> job_;
  TimePoint copy_started_;
  Stats stats_;
};

}  // namespace backstay::client
