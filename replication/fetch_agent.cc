#include "replication/fetch_agent.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace backstay::replication {

FetchAgent::FetchAgent(Executor& executor, PeerLink& peers, store::SlotPool& pool,
                       store::ShardTable& table, transport::Puller& puller, VerifyShard verify,
                       DiscardReceiver discard_receiver)
    : executor_(executor),
      peers_(peers),
      pool_(pool),
      table_(table),
      puller_(puller),
      verify_(std::move(verify)),
      discard_receiver_(std::move(discard_receiver)) {}

FetchAgent::~FetchAgent() {
  for (auto& [name, active] : active_) {
    if (active.scratch.value != 0) pool_.Release(active.scratch);
  }
}

void FetchAgent::Open(OpenRequest request, Completion<FetchReply> done) {
  if (readers_.size() >= kOpenMax) {
    executor_.Post([done, name = request.name] {
      done(NoSpace("too many shards are open on this node to open " + ToString(name)));
    });
    return;
  }
  const FetchHandle handle(++last_handle_);
  const store::Shard* shard = table_.Find(request.name);
  if (shard != nullptr && shard->sealed() &&
      (!request.digest || *request.digest == shard->digest)) {
    const auto active = active_.find(request.name);
    if (active == active_.end() && request.for_restore) {
      looked_at_.erase(request.name);
      StartStats(request.name, {peers_.self().node});
    }
    return OpenLocal(handle, *shard, /*local=*/true, done);
  }
  if (!active_.contains(request.name)) {
    if (shard != nullptr && shard->state == store::ShardState::kFilling) {
      executor_.Post([done, name = request.name] {
        done(Unavailable(ToString(name) + " is being saved here and is not sealed yet"));
      });
      return;
    }
    discard_receiver_(request.name);
    StartFetch(request);
  }
  Active& active = active_.at(request.name);
  active.for_restore = active.for_restore || request.for_restore;
  if (request.whole) active.fetcher->WantAll();
  if (active.fetcher->state() == ShardFetcher::State::kOpening) {
    active.waiting.push_back({handle, std::move(done)});
    return;
  }
  if (active.fetcher->state() == ShardFetcher::State::kFailed) {
    executor_.Post([done, why = active.fetcher->trouble()] { done(why); });
    return;
  }
  shard = table_.Find(request.name);
  if (shard == nullptr) {  // Sealed, and let go of, before the fetch's end was looked at.
    executor_.Post([done, name = request.name] {
      done(Unavailable(ToString(name) + " was let go of meanwhile; open it again"));
    });
    return;
  }
  OpenLocal(handle, *shard, /*local=*/false, done);
}

void FetchAgent::OpenLocal(FetchHandle handle, const store::Shard& shard, bool local,
                           const Completion<FetchReply>& done) {
  readers_[handle] = {shard.name, table_.Pin(shard.name)};
  FetchReply reply;
  reply.fetch = handle;
  reply.memory = shard.memory;
  reply.size_bytes = shard.size_bytes;
  reply.manifest = shard.manifest_bytes;
  reply.digest = shard.digest.ToByteString();
  reply.local = local;
  executor_.Post([done, reply = std::move(reply)] { done(reply); });
}

void FetchAgent::StartStats(const ShardName& name, std::vector<NodeId> sources) {
  stats_[name] = {0, std::move(sources), executor_.Now(), executor_.Now(), Status::Ok()};
  while (stats_.size() > kStatsMax) {
    stats_.erase(stats_.begin()->first == name ? std::next(stats_.begin()) : stats_.begin());
  }
}

void FetchAgent::StartFetch(const OpenRequest& request) {
  const ShardName name = request.name;
  std::vector<NodeInstance> sources;
  for (const NodeInstance& source : request.sources) {
    if (source.node != peers_.self().node) sources.push_back(source);
  }
  StartStats(name, {});
  Active& active = active_[name];
  active.number = ++last_fetch_;
  active.fetcher = std::make_unique<ShardFetcher>(
      name, request.digest, std::move(sources), executor_, peers_, table_, puller_,
      [this, name, own = request.own](uint64_t size_bytes, uint32_t chunk_bytes,
                                      Completion<store::ReservationId> done) {
        ReserveSlot(name, own, size_bytes, chunk_bytes, std::move(done));
      },
      ShardFetcher::Observer{[this, name] { OnOpened(name); }, [this, name] { OnEnded(name); }});
}

void FetchAgent::ReserveSlot(const ShardName& name, store::ReservationId own, uint64_t size_bytes,
                             uint32_t chunk_bytes, Completion<store::ReservationId> done) {
  const std::optional<store::ReservationRequest> reserved = pool_.Find(own);
  if (reserved && reserved->slot_bytes >= size_bytes && reserved->chunk_bytes == chunk_bytes &&
      pool_.HasFreeSlot(own, std::nullopt)) {
    executor_.Post([done, own] { done(own); });
    return;
  }
  pool_.Reserve({.purpose = store::Purpose::kFetch,
                 .job = name.job,
                 .shard = name.shard,
                 .slot_bytes = size_bytes,
                 .slot_count = 1,
                 .chunk_bytes = chunk_bytes},
                lifetime_.Wrap([this, name, number = active_.at(name).number,
                                done](Result<store::ReservationId> id) {
                  const auto active = active_.find(name);
                  if (!id.ok()) return done(id.status());
                  if (active == active_.end() || active->second.number != number) {
                    return pool_.Release(*id);  // For a fetch that has ended.
                  }
                  active->second.scratch = *id;
                  done(*id);
                }));
}

void FetchAgent::OnOpened(const ShardName& name) {
  Active& active = active_.at(name);
  // The slot is taken: it stays with its shard, the promise is not needed any more.
  if (active.scratch.value != 0) pool_.Release(std::exchange(active.scratch, {}));
  std::vector<WaitingOpen> waiting = std::move(active.waiting);
  active.waiting.clear();
  const store::Shard* shard = table_.Find(name);
  for (WaitingOpen& open : waiting) {
    if (shard == nullptr) {
      executor_.Post([done = open.done, name] {
        done(Unavailable(ToString(name) + " was let go of meanwhile"));
      });
    } else {
      OpenLocal(open.handle, *shard, /*local=*/false, open.done);
    }
  }
}

void FetchAgent::NoteStats(const ShardFetcher& fetcher, Stats* stats) const {
  stats->bytes_remote = fetcher.bytes_read();
  stats->sources = fetcher.ContributingNodes();
  stats->ended = executor_.Now();
  stats->outcome = fetcher.trouble();
}

void FetchAgent::OnEnded(ShardName name) {
  const auto found = active_.find(name);
  if (found == active_.end()) return;
  Active& active = found->second;
  NoteStats(*active.fetcher, &stats_[name]);
  for (const WaitingOpen& open : active.waiting) {
    executor_.Post([done = open.done, why = active.fetcher->trouble()] { done(why); });
  }
  active.waiting.clear();
  if (active.fetcher->state() == ShardFetcher::State::kSealed) {
    if (!active.for_restore) looked_at_.insert(name);
    active_.erase(found);
    if (!HasReaders(name)) Forget(name);
  } else if (!HasReaders(name)) {
    EndFetch(name);
  }
  // A failed fetch with readers stays until they have closed it: its control page tells them.
}

Status FetchAgent::FetchChunks(FetchHandle handle, uint32_t first_chunk, uint32_t chunk_count) {
  const auto reader = readers_.find(handle);
  if (reader == readers_.end()) return NotFound("no such open shard");
  const auto active = active_.find(reader->second.name);
  if (active == active_.end()) return Status::Ok();  // All of it is here.
  if (active->second.fetcher->state() == ShardFetcher::State::kFailed) {
    return active->second.fetcher->trouble();
  }
  active->second.fetcher->Want(first_chunk, chunk_count);
  return Status::Ok();
}

void FetchAgent::ReportBad(FetchHandle handle, Completion<bool> done) {
  const auto reader = readers_.find(handle);
  if (reader == readers_.end()) {
    executor_.Post([done] { done(NotFound("no such open shard")); });
    return;
  }
  const ShardName name = reader->second.name;
  const store::Shard* shard = table_.Find(name);
  if (shard == nullptr || !shard->sealed()) {
    // Verified on arrival and wrong now: this node's memory. Begin anew in another slot.
    reader->second.pin.Reset();
    if (active_.contains(name)) EndFetch(name);
    executor_.Post([done] { done(true); });
    return;
  }
  verify_(name, lifetime_.Wrap([this, handle, done](const Result<store::VerifyReport>& report) {
    if (!report.ok()) return done(report.status());
    const auto open = readers_.find(handle);
    if (report->bad_chunks.empty()) return done(false);
    if (open != readers_.end()) open->second.pin.Reset();
    done(true);
  }));
}

Status FetchAgent::Close(FetchHandle handle) {
  const auto reader = readers_.find(handle);
  if (reader == readers_.end()) return NotFound("no such open shard");
  const ShardName name = reader->second.name;
  readers_.erase(reader);
  if (HasReaders(name)) return Status::Ok();
  const auto active = active_.find(name);
  if (active == active_.end()) {
    Forget(name);
  } else if (active->second.waiting.empty()) {
    EndFetch(name);
  }
  return Status::Ok();
}

void FetchAgent::EndJob(const JobName& job) {
  for (auto& [name, active] : active_) {
    if (name.job == job) active.fetcher->Fail(Stale("job " + job.value + " has ended"));
  }
}

bool FetchAgent::HasReaders(const ShardName& name) const {
  return std::any_of(readers_.begin(), readers_.end(),
                     [&](const auto& entry) { return entry.second.name == name; });
}

// Of a fetch that is not sealed: what is there of it goes.
void FetchAgent::EndFetch(const ShardName& name) {
  const auto active = active_.find(name);
  if (active->second.scratch.value != 0) pool_.Release(active->second.scratch);
  std::vector<WaitingOpen> waiting = std::move(active->second.waiting);
  // Its readers may have closed it before its end was looked at.
  if (const auto stats = stats_.find(name); stats != stats_.end()) {
    NoteStats(*active->second.fetcher, &stats->second);
  }
  active_.erase(active);
  const store::Shard* shard = table_.Find(name);
  // Under the same name a replica may be on its way here: that is not the fetch's.
  if (shard != nullptr && shard->state == store::ShardState::kReceiving &&
      shard->role == store::ShardRole::kFetched) {
    if (Status status = table_.Abandon(name); !status.ok()) {
      Log(LogLevel::kError, "a fetch that was given up could not be freed",
          {{"shard", ToString(name)}, {"why", status.ToString()}});
    }
  }
  for (const WaitingOpen& open : waiting) {
    executor_.Post([done = open.done, name] {
      done(Unavailable("the fetch of " + ToString(name) + " was given up; open it again"));
    });
  }
}

void FetchAgent::Forget(const ShardName& name) {
  if (looked_at_.erase(name) == 0) return;
  const store::Shard* shard = table_.Find(name);
  if (shard == nullptr || shard->role != store::ShardRole::kFetched) return;
  // If it is pinned by somebody else, the kept set decides about it later.
  if (Status status = table_.Drop(name); !status.ok()) {
    Log(LogLevel::kDebug, "a shard that was read stays for now", {{"shard", ToString(name)}});
  }
}

std::optional<FetchAgent::Stats> FetchAgent::StatsOf(const ShardName& name) const {
  const auto found = stats_.find(name);
  if (found == stats_.end()) return std::nullopt;
  const auto active = active_.find(name);
  if (active == active_.end()) return found->second;
  // A reader learns from the control page that its bytes are there, before the fetch has ended.
  Stats stats = found->second;
  NoteStats(*active->second.fetcher, &stats);
  return stats;
}

}  // namespace backstay::replication
