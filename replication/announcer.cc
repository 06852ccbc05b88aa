#include "replication/announcer.h"

#include <algorithm>
#include <utility>

namespace backstay::replication {

Announcer::Announcer(const LeaderSeams& seams, const LeaderConfig& config, LeaderCalls& calls,
                     MakeState make_state, OnAnswer on_answer)
    : seams_(seams),
      config_(config),
      calls_(calls),
      make_state_(std::move(make_state)),
      on_answer_(std::move(on_answer)) {}

void Announcer::SetNodes(const std::map<NodeId, Member>& members) {
  std::erase_if(listeners_, [&](const auto& entry) {
    const auto member = members.find(entry.first);
    return member == members.end() || member->second.record.instance != entry.second.node;
  });
  for (const auto& [id, member] : members) {
    Listener& listener = listeners_[id];
    if (listener.node == member.record.instance) continue;
    listener.node = member.record.instance;
    listener.retry_delay = config_.retry_min;
    look_needed_ = true;
  }
}

void Announcer::Step() {
  const Instant now = seams_.executor->Now();
  if (!look_needed_ && now < next_look_) return;
  look_needed_ = false;
  next_look_ = now + kLookInterval;
  for (auto& [id, listener] : listeners_) {
    const bool is_idle = listener.in_flight == 0;
    const bool may_overtake = listener.in_flight < kInFlightMax &&
                              listener.told_version < version_ &&
                              now - listener.told_at >= kOvertakeAfter;
    if (!is_idle && !may_overtake) continue;
    // News is sent at once to whoever answered last time; else the retry decides.
    const bool news = listener.answered_version < version_ && listener.failures == 0;
    if (news || (is_idle && now >= listener.next)) Tell(listener);
  }
}

void Announcer::Tell(Listener& listener) {
  ++listener.in_flight;
  listener.told_version = version_;
  listener.told_at = seams_.executor->Now();
  const NodeInstance node = listener.node;
  const uint64_t version = version_;
  wire::Request request;
  *request.mutable_job_state() = make_state_(node.node);
  calls_.Send(node, std::move(request),
              lifetime_.Wrap([this, node, version](const Result<wire::Reply>& reply) {
                OnReply(node, version, reply);
              }));
}

void Announcer::OnReply(const NodeInstance& node, uint64_t version,
                        const Result<wire::Reply>& reply) {
  const auto it = listeners_.find(node.node);
  if (it == listeners_.end() || it->second.node != node) return;
  Listener& listener = it->second;
  --listener.in_flight;
  const Instant now = seams_.executor->Now();
  if (!reply.ok()) {
    if (version < listener.answered_version) return;  // A later one was answered.
    ++listener.failures;
    listener.next = now + listener.retry_delay;
    listener.retry_delay = std::min(2 * listener.retry_delay, config_.retry_max);
    return;
  }
  listener.failures = 0;
  listener.retry_delay = config_.retry_min;
  listener.next = now + config_.announce_interval;
  listener.answered_version = std::max(listener.answered_version, version);
  if (listener.answered_version < version_) look_needed_ = true;
  on_answer_(node, reply->job_state());
}

bool Announcer::IsAnswering(const NodeId& node) const {
  constexpr uint32_t kFailuresMin = 2;  // One may be a lost message.
  const auto it = listeners_.find(node);
  return it != listeners_.end() && it->second.failures < kFailuresMin;
}

}  // namespace backstay::replication
