#include "recovery/inventory_round.h"

#include <algorithm>
#include <utility>

namespace backstay::recovery {

using replication::Member;
using replication::wire::Reply;
using replication::wire::Request;

InventoryRound::InventoryRound(const replication::LeaderSeams& seams,
                               const replication::LeaderConfig& config,
                               replication::LeaderCalls& calls, OnAnswer on_answer)
    : seams_(seams), config_(config), calls_(calls), on_answer_(std::move(on_answer)) {}

void InventoryRound::Start(const AttemptUuid& closing, const JobName& other_job) {
  running_ = true;
  ++round_;
  closing_ = closing;
  other_job_ = other_job;
  started_at_ = seams_.executor->Now();
  asked_.clear();
}

void InventoryRound::Step(const std::map<NodeId, Member>& members) {
  if (!running_) return;
  for (const auto& [id, member] : members) {
    Asked& asked = asked_[id];
    if (asked.node != member.record.instance) {
      asked = Asked();
      asked.node = member.record.instance;
      asked.retry_delay = config_.retry_min;
    }
    if (!asked.answered && !asked.in_flight && seams_.executor->Now() >= asked.next) Ask(asked);
  }
}

void InventoryRound::Ask(Asked& asked) {
  asked.in_flight = true;
  Request request;
  request.mutable_inventory()->set_closing_uuid(closing_.value);
  const NodeInstance node = asked.node;
  const auto on_reply = [this, node, round = round_](const Result<Reply>& reply) {
    const auto it = asked_.find(node.node);
    if (round != round_ || it == asked_.end() || it->second.node != node) return;
    Asked& now_asked = it->second;
    now_asked.in_flight = false;
    if (!reply.ok()) {
      now_asked.next = seams_.executor->Now() + now_asked.retry_delay;
      now_asked.retry_delay = std::min(2 * now_asked.retry_delay, config_.retry_max);
      return;
    }
    now_asked.answered = true;
    now_asked.shards.assign(reply->inventory().shards().begin(), reply->inventory().shards().end());
    on_answer_(node, reply->inventory());
  };
  if (other_job_.empty()) {
    calls_.Send(node, std::move(request), lifetime_.Wrap(on_reply));
  } else {
    calls_.Ask(other_job_, node, std::move(request), lifetime_.Wrap(on_reply));
  }
}

size_t InventoryRound::UnansweredCount(const std::map<NodeId, Member>& members) const {
  return static_cast<size_t>(std::ranges::count_if(members, [&](const auto& entry) {
    const auto it = asked_.find(entry.first);
    return it == asked_.end() || !it->second.answered ||
           it->second.node != entry.second.record.instance;
  }));
}

InventoryView InventoryRound::View(const std::map<NodeId, Member>& members) const {
  InventoryView view;
  for (const auto& [id, member] : members) {
    const NodeInstance& node = member.record.instance;
    const auto it = asked_.find(id);
    if (it != asked_.end() && it->second.node == node && it->second.answered) {
      view.answered[node] = it->second.shards;
    } else {
      view.unanswered.insert(node);
    }
  }
  return view;
}

}  // namespace backstay::recovery
