#include "replication/holder_agent.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.h"
#include "replication/trainer_port.h"
#include "replication/wire_convert.h"

namespace backstay::replication {

HolderAgent::HolderAgent(JobName job, uint32_t chunk_bytes, Executor& executor, PeerLink& peers,
                         store::SlotPool& pool, store::ShardTable& table,
                         store::ShardVerifier& verifier, ShardExporter& exporter,
                         transport::Puller& puller)
    : job_(std::move(job)),
      chunk_bytes_(chunk_bytes),
      executor_(executor),
      peers_(peers),
      pool_(pool),
      table_(table),
      verifier_(verifier),
      exporter_(exporter),
      puller_(puller) {
  sweep_timer_ = executor_.RunAfter(kSweepInterval, lifetime_.Wrap([this] { Sweep(); }));
}

HolderAgent::~HolderAgent() {
  executor_.CancelTimer(sweep_timer_);
  for (auto& [shard, reservation] : reservations_) {
    if (reservation.id.value != 0) pool_.Release(reservation.id);
  }
  for (auto& [name, room] : repair_rooms_) {
    if (room.id.value != 0) pool_.Release(room.id);
  }
}

// ---- Memory -------------------------------------------------------------------------------------

// Messages overtake each other: a "give back" that comes after the next "reserve" must not undo it.
bool HolderAgent::TakeOrder(const ShardId& shard, std::pair<uint64_t, uint64_t> order) {
  if (reserve_orders_.size() > 2 * kReservationsMax) {
    std::erase_if(reserve_orders_,
                  [this](const auto& entry) { return !reservations_.contains(entry.first); });
  }
  std::pair<uint64_t, uint64_t>& newest = reserve_orders_[shard];
  if (order < newest) return false;
  newest = order;
  return true;
}

void HolderAgent::OnReserve(const wire::Header& header, const wire::Reserve& reserve,
                            ReplyFunction reply) {
  const ShardId shard(reserve.shard_id());
  if (shard.empty() || shard.value.size() > kNameBytesMax || reserve.versions() > kVersionsMax) {
    return reply(InvalidArgument("malformed reservation of job " + job_.value));
  }
  if (!TakeOrder(shard, {header.term(), reserve.number()})) {
    return reply(
        Unavailable("a later word on the memory of shard " + shard.value + " was here before"));
  }
  auto found = reservations_.find(shard);
  if (reserve.versions() == 0) {
    // Its shards stay until the kept set lets go of them.
    if (found != reservations_.end()) {
      if (found->second.id.value != 0) pool_.Release(found->second.id);
      reservations_.erase(found);
    }
    return reply(wire::Reply());
  }
  const uint32_t slot_count = reserve.versions() + 1;
  if (found != reservations_.end()) {
    HeldReservation& held = found->second;
    held.revision = std::max<Revision>(held.revision, reserve.record_revision());
    if (held.id.value == 0 || held.resizing) {
      return reply(Unavailable("memory for shard " + shard.value + " is being made ready on " +
                               peers_.self().node.value));
    }
    if (held.size_bytes == reserve.size_bytes() && held.slot_count == slot_count) {
      return reply(wire::Reply());
    }
    held.resizing = true;
    pool_.Resize(
        held.id, reserve.size_bytes(), slot_count,
        lifetime_.Wrap([this, shard, made_for = held.made_for, size_bytes = reserve.size_bytes(),
                        slot_count, reply](const Status& status) {
          const auto resized = reservations_.find(shard);
          if (resized == reservations_.end() || resized->second.made_for != made_for) {
            return reply(Unavailable("the reservation was given back meanwhile"));
          }
          resized->second.resizing = false;
          if (!status.ok()) return reply(status);
          resized->second.size_bytes = size_bytes;
          resized->second.slot_count = slot_count;
          reply(wire::Reply());
        }));
    return;
  }
  if (reservations_.size() >= kReservationsMax) {
    return reply(NoSpace(peers_.self().node.value + " holds replicas of " +
                         std::to_string(kReservationsMax) + " shards of job " + job_.value +
                         " already"));
  }
  HeldReservation& held = reservations_[shard];
  held.size_bytes = reserve.size_bytes();
  held.slot_count = slot_count;
  held.revision = reserve.record_revision();
  held.made_for = ++last_made_;
  pool_.Reserve({.purpose = store::Purpose::kHeld,
                 .job = job_,
                 .shard = shard,
                 .slot_bytes = reserve.size_bytes(),
                 .slot_count = slot_count,
                 .chunk_bytes = chunk_bytes_},
                lifetime_.Wrap([this, shard, made_for = held.made_for,
                                reply](Result<store::ReservationId> id) {
                  const auto made = reservations_.find(shard);
                  const bool wanted =
                      made != reservations_.end() && made->second.made_for == made_for;
                  if (!id.ok()) {
                    if (wanted) reservations_.erase(made);
                    return reply(id.status());
                  }
                  if (!wanted) {
                    // Given back meanwhile, and perhaps asked for again in another size.
                    pool_.Release(*id);
                    return reply(Unavailable("the reservation was given back meanwhile"));
                  }
                  made->second.id = *id;
                  reply(wire::Reply());
                }));
}

// ---- Receiving ----------------------------------------------------------------------------------

void HolderAgent::OnOffer(const wire::Header& header, const wire::Offer& offer, const JobView& view,
                          ReplyFunction reply) {
  const Result<ShardName> name = FromWire(offer.shard(), job_);
  if (!name.ok()) return reply(name.status());
  if (name->job != job_) return reply(InvalidArgument("offer of another job's shard"));
  if (Status status = CheckOffer(header, offer, *name, view); !status.ok()) return reply(status);

  wire::Reply answer;
  const store::Shard* shard = table_.Find(*name);
  if (shard != nullptr && shard->state == store::ShardState::kQuarantined) {
    // A good copy is on its way: the bad one makes room, unless somebody still looks at it.
    if (Status status = table_.Drop(*name); !status.ok()) return reply(status);
    shard = nullptr;
  }
  if (shard != nullptr && shard->sealed()) {
    const std::string digest = shard->digest.ToByteString();
    if (!offer.digest().empty() && offer.digest() != digest) {
      return reply(InvalidArgument(ToString(*name) + " is held with another content"));
    }
    answer.mutable_offer()->set_state(wire::REPLICA_HELD);
    answer.mutable_offer()->set_digest(digest);
    return reply(std::move(answer));
  }
  auto found = receivers_.find(*name);
  if (found != receivers_.end() && found->second->source() != FromWire(header.from())) {
    // The primary speaks for its shard; of two repairing holders the first goes on.
    if (offer.repair() && peers_.IsAlive(found->second->source())) {
      return reply(Unavailable(ToString(*name) + " is being received from " +
                               found->second->source().node.value));
    }
    Discard(*name);
    found = receivers_.end();
  }
  if (found == receivers_.end()) {
    if (Status status = StartReceiving(header, offer, *name, view); !status.ok()) {
      return reply(status);
    }
    found = receivers_.find(*name);
  }
  if (Status status = found->second->OnOffer(offer); !status.ok()) {
    Discard(*name);
    return reply(status);
  }
  found->second->FillReply(answer.mutable_offer());
  reply(std::move(answer));
}

Status HolderAgent::CheckOffer(const wire::Header& header, const wire::Offer& offer,
                               const ShardName& name, const JobView& view) const {
  if (header.from().node_id() != offer.grant().owner().node_id()) {
    return InvalidArgument("offer of " + ToString(name) + " with another node's grant");
  }
  if (offer.used_bytes() > store::kShardBytesMax || !IsChunkSize(offer.chunk_bytes()) ||
      CeilDiv(offer.used_bytes(), offer.chunk_bytes()) > kShardChunksMax) {
    return InvalidArgument("offer of " + ToString(name) + " beyond the limits of a shard");
  }
  if (view.ended) return Stale("job " + job_.value + " has ended");
  if (offer.repair()) return Status::Ok();
  if (name.snapshot.generation != Generation(header.generation())) {
    return Stale("offer of " + ToString(name) + " in generation " +
                 std::to_string(header.generation()));
  }
  if (view.generation < name.snapshot.generation) {
    return Unavailable("generation " + std::to_string(header.generation()) + " of job " +
                       job_.value + " has not been announced to " + peers_.self().node.value +
                       " yet");
  }
  if (view.generation == name.snapshot.generation) {
    if (view.closing()) {
      return Stale("generation " + std::to_string(view.generation.value) + " of job " + job_.value +
                   " is closing");
    }
    for (const SnapshotId& base : view.pinned) {
      // Nothing commits before the generation's base has, and its replica needs the slot: also for
      // another try, until it is complete.
      const store::Shard* replica = table_.Find({job_, base, name.shard});
      if (view.kept.contains(base) || (replica != nullptr && replica->sealed())) continue;
      return Unavailable("the uncommitted base of generation " +
                         std::to_string(view.generation.value) + " comes first: " + ToString(base));
    }
    if (JudgeShard(view, name) == KeepVerdict::kDrop) {
      return Stale(ToString(name) + " cannot be committed any more; " + view.DescribeKept());
    }
  }
  return Status::Ok();
}

Status HolderAgent::StartReceiving(const wire::Header& header, const wire::Offer& offer,
                                   const ShardName& name, const JobView& view) {
  if (receivers_.size() >= kReceiversMax) {
    return NoSpace("more than " + std::to_string(kReceiversMax) + " replicas are being received");
  }
  store::ShardTable::ReceiveRequest request{.name = name,
                                            .role = store::ShardRole::kHeld,
                                            .size_bytes = offer.used_bytes(),
                                            .chunk_bytes = offer.chunk_bytes(),
                                            .reservation = {},
                                            .unix_ms = executor_.clock().UnixMillis()};
  Result<const store::Shard*> shard =
      Unavailable("no memory is reserved on " + peers_.self().node.value +
                  " for replicas of shard " + name.shard.value);
  const auto reservation = reservations_.find(name.shard);
  if (reservation != reservations_.end() && reservation->second.id.value != 0) {
    request.reservation = reservation->second.id;
    shard = table_.BeginReceive(request);
    if (!shard.ok() && shard.status().code() == StatusCode::kUnavailable &&
        DisplaceFor(name, view)) {
      shard = table_.BeginReceive(request);
    }
  }
  if (!shard.ok() && offer.repair()) shard = BeginInRepairReserve(request);
  if (!shard.ok()) return shard.status();
  receivers_[name] = std::make_unique<ReplicaReceiver>(
      name, FromWire(header.from()), offer.repair(), executor_, peers_, table_, puller_,
      lifetime_.Wrap([this, name] { OnReceiverEnded(name); }));
  return Status::Ok();
}

Result<const store::Shard*> HolderAgent::BeginInRepairReserve(
    store::ShardTable::ReceiveRequest request) {
  const ShardName name = request.name;
  if (repair_rooms_.size() >= kReceiversMax && !repair_rooms_.contains(name)) {
    return Unavailable("memory for " + std::to_string(kReceiversMax) +
                       " repairs is being made ready");
  }
  const auto [found, is_new] = repair_rooms_.try_emplace(name);
  RepairRoom& room = found->second;
  room.last_offer = executor_.Now();
  if (!room.refusal.ok()) {
    const Status refusal = room.refusal;
    repair_rooms_.erase(found);  // The next offer asks again.
    return refusal;
  }
  if (room.id.value != 0) {
    request.reservation = room.id;
    Result<const store::Shard*> shard = table_.BeginReceive(request);
    // A slot that was taken stays with its shard: the promise is not needed any more.
    pool_.Release(room.id);
    repair_rooms_.erase(found);
    return shard;
  }
  if (is_new) {
    pool_.Reserve({.purpose = store::Purpose::kRepair,
                   .job = job_,
                   .shard = name.shard,
                   .slot_bytes = request.size_bytes,
                   .slot_count = 1,
                   .chunk_bytes = chunk_bytes_},
                  lifetime_.Wrap([this, name](Result<store::ReservationId> id) {
                    const auto made = repair_rooms_.find(name);
                    const bool wanted = made != repair_rooms_.end() && made->second.id.value == 0;
                    if (!id.ok()) {
                      if (wanted) made->second.refusal = id.status();
                    } else if (wanted) {
                      made->second.id = *id;
                    } else {
                      pool_.Release(*id);
                    }
                  }));
  }
  return Unavailable("memory for the repair of " + ToString(name) + " is being made ready on " +
                     peers_.self().node.value);
}

// Only what nobody was told is held: a replica that was acknowledged in this generation may be
// counted for a commit at this moment. What may make room: what an older generation left, and a
// transfer under way of a newer step. The older step of a generation commits first; it must never
// wait for the newer one.
bool HolderAgent::DisplaceFor(const ShardName& name, const JobView& view) {
  for (const store::Shard* shard : table_.ShardsOf(job_)) {
    if (shard->name.shard != name.shard || shard->name == name) continue;
    if (shard->role != store::ShardRole::kHeld) continue;
    const ShardName victim = shard->name;
    const bool yields =
        victim.snapshot.generation < name.snapshot.generation || victim.snapshot > name.snapshot;
    const auto receiver = receivers_.find(victim);
    if (yields && receiver != receivers_.end() && !receiver->second->repair()) {
      Discard(victim);
      return true;
    }
    if (victim != name && IsDisplaceable(view, *shard) && !exporter_.IsBeingRestored(victim)) {
      exporter_.RevokeAll(victim);
      if (table_.Drop(victim).ok()) return true;
    }
  }
  return false;
}

void HolderAgent::OnReceiverEnded(ShardName name) {
  const auto found = receivers_.find(name);
  if (found == receivers_.end()) return;
  const ReplicaReceiver& receiver = *found->second;
  switch (receiver.state()) {
    case ReplicaReceiver::State::kReceiving:
      break;
    case ReplicaReceiver::State::kHeld:
      receivers_.erase(found);
      break;
    case ReplicaReceiver::State::kFailed: {
      Log(LogLevel::kWarning, "a replica could not be received",
          {{"shard", ToString(name)},
           {"from", ToString(receiver.source())},
           {"why", receiver.trouble().ToString()}});
      if (receiver.source_suspect()) {
        wire::Request request;
        *request.mutable_verify_shard()->mutable_shard() = ToWire(name);
        if (const store::Shard* shard = table_.Find(name);
            shard != nullptr && shard->manifest != nullptr) {
          request.mutable_verify_shard()->set_digest(shard->digest.ToByteString());
        }
        // The source finds out by itself, and its own report says it; the answer adds nothing.
        peers_.Send(job_, receiver.source(), std::move(request),
                    executor_.Now() + ReplicaReceiver::kPullTimeout, [](Result<wire::Reply>) {});
      }
      Discard(name);
      break;
    }
  }
}

void HolderAgent::Discard(const ShardName& name) {
  if (receivers_.erase(name) == 0) return;
  const store::Shard* shard = table_.Find(name);
  if (shard != nullptr && !shard->sealed()) {
    if (Status status = table_.Abandon(name); !status.ok()) {
      Log(LogLevel::kError, "a replica that was given up could not be freed",
          {{"shard", ToString(name)}, {"why", status.ToString()}});
    }
  }
}

void HolderAgent::OnRelease(const wire::Header& header, const wire::Release& release,
                            ReplyFunction reply) {
  const Result<ShardName> name = FromWire(release.shard(), job_);
  if (!name.ok()) return reply(name.status());
  const auto found = receivers_.find(*name);
  if (found != receivers_.end() && found->second->source() == FromWire(header.from())) {
    Discard(*name);
  }
  exporter_.RevokeRestores(*name, FromWire(header.from()));
  reply(wire::Reply());
}

void HolderAgent::OnView(const JobView& view) {
  std::vector<ShardName> ended;
  for (const auto& [name, receiver] : receivers_) {
    const bool closed = view.closing() && name.snapshot.generation == view.generation;
    const bool old = name.snapshot.generation < view.generation && !receiver->repair();
    if (old || (closed && !receiver->repair()) || JudgeShard(view, name) == KeepVerdict::kDrop) {
      ended.push_back(name);
    }
  }
  for (const ShardName& name : ended) Discard(name);
  if (view.ended) ReleaseEnded(view.revision);
}

// What a later job of this name has reserved meanwhile stays.
void HolderAgent::ReleaseEnded(Revision revision) {
  for (auto entry = reservations_.begin(); entry != reservations_.end();) {
    if (entry->second.revision > revision) {
      ++entry;
      continue;
    }
    if (entry->second.id.value != 0) pool_.Release(entry->second.id);
    entry = reservations_.erase(entry);
  }
}

void HolderAgent::Sweep() {
  std::vector<ShardName> orphans;
  for (const auto& [name, receiver] : receivers_) {
    const bool silent =
        executor_.Now() - receiver->last_offer() > ReplicaReceiver::kSourceSilenceMax;
    if (silent || !peers_.IsAlive(receiver->source())) orphans.push_back(name);
  }
  for (const ShardName& name : orphans) Discard(name);
  for (auto entry = repair_rooms_.begin(); entry != repair_rooms_.end();) {
    const RepairRoom& room = entry->second;
    // What is being made is waited for: it may take long, and ends.
    const bool ready = room.id.value != 0 || !room.refusal.ok();
    if (!ready || executor_.Now() - room.last_offer <= kRepairRoomKept) {
      ++entry;
      continue;
    }
    if (room.id.value != 0) pool_.Release(room.id);
    entry = repair_rooms_.erase(entry);
  }
  for (const NodeInstance& reader : exporter_.Readers()) {
    if (!peers_.IsAlive(reader)) exporter_.RevokeReader(reader);
  }
  sweep_timer_ = executor_.RunAfter(kSweepInterval, lifetime_.Wrap([this] { Sweep(); }));
}

// ---- Serving ------------------------------------------------------------------------------------

void HolderAgent::OnOpenShard(const wire::Header& header, const wire::OpenShard& open,
                              ReplyFunction reply) {
  const Result<ShardName> name = FromWire(open.shard(), job_);
  if (!name.ok()) return reply(name.status());
  const Result<const store::Shard*> shard = table_.FindSealed(*name);
  if (!shard.ok()) return reply(shard.status());
  const std::string digest = (*shard)->digest.ToByteString();
  if (!open.digest().empty() && open.digest() != digest) {
    return reply(NotFound(ToString(*name) + " is here with another content"));
  }
  wire::Reply answer;
  wire::OpenShardReply& opened = *answer.mutable_open_shard();
  opened.set_manifest((*shard)->manifest_bytes);
  opened.set_digest(digest);
  if (!open.manifest_only()) {
    Result<transport::Grant> grant =
        exporter_.Export(*name, ShardExporter::Reader::kRestore, FromWire(header.from()));
    if (!grant.ok()) return reply(grant.status());
    *opened.mutable_grant() = ToWire(*grant);
  }
  reply(std::move(answer));
}

void HolderAgent::OnVerifyShard(const wire::VerifyShard& verify, ReplyFunction reply) {
  const Result<ShardName> name = FromWire(verify.shard(), job_);
  if (!name.ok()) return reply(name.status());
  const Result<const store::Shard*> shard = table_.FindSealed(*name);
  if (!shard.ok()) return reply(shard.status());
  if (!verify.digest().empty() && verify.digest() != (*shard)->digest.ToByteString()) {
    return reply(NotFound(ToString(*name) + " is here with another content"));
  }
  VerifyOwn(*name, [reply](Result<store::VerifyReport> report) {
    if (!report.ok()) return reply(report.status());
    wire::Reply answer;
    answer.mutable_verify_shard()->set_chunks(report->chunk_count);
    for (const uint64_t chunk : report->bad_chunks) {
      answer.mutable_verify_shard()->add_bad_chunks(static_cast<uint32_t>(chunk));
    }
    reply(std::move(answer));
  });
}

void HolderAgent::VerifyOwn(const ShardName& name, Completion<store::VerifyReport> done) {
  if (verify_count_ >= kVerifiesMax) {
    executor_.Post([done, name] {
      done(Unavailable("other shards are being verified; ask again for " + ToString(name)));
    });
    return;
  }
  ++verify_count_;
  verifier_.Verify(name, lifetime_.Wrap([this, name, done](Result<store::VerifyReport> report) {
    --verify_count_;
    if (report.ok() && !report->bad_chunks.empty()) {
      const store::Shard* shard = table_.Find(name);
      if (shard != nullptr && shard->sealed()) {
        Log(LogLevel::kError, "a shard in memory is damaged; it is set aside",
            {{"shard", ToString(name)},
             {"bad_chunks", std::to_string(report->bad_chunks.size())},
             {"first_bad_chunk", std::to_string(report->bad_chunks.front())}});
        table_.Quarantine(
            name, std::to_string(report->bad_chunks.size()) + " chunks do not match the manifest");
        exporter_.RevokeAll(name);
        if (on_quarantine_) on_quarantine_(name);
      }
    }
    done(std::move(report));
  }));
}

}  // namespace backstay::replication
