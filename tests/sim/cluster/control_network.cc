#include "tests/sim/cluster/control_network.h"

#include <algorithm>
#include <string>

namespace backstay::sim {

namespace wire = replication::wire;

// One node's end of the network. Its death drops the completions of its calls.
class SimMessenger : public replication::Messenger {
 public:
  SimMessenger(ControlNetwork* network, NodeId self) : network_(network), self_(std::move(self)) {}

  void Send(const NodeId& to, wire::Request request, Deadline deadline,
            Completion<wire::Reply> done) override {
    const uint64_t call = ++last_call_;
    calls_[call].done = std::move(done);
    if (deadline != kNoDeadline) {
      calls_[call].timer = network_->executor_->RunAt(deadline, lifetime_.Wrap([this, call, to] {
        Finish(call, DeadlineExceeded("message to " + to.value + ": no answer"));
      }));
    }
    const auto bytes = std::make_shared<const std::string>(request.SerializeAsString());
    Transmit(call, to, bytes);
    if (network_->Draw(network_->faults_.duplicates_per_million)) {
      network_->counters_.duplicated += 1;
      Transmit(call, to, bytes);
    }
  }

 private:
  struct PendingCall {
    Completion<wire::Reply> done;
    TimerId timer = kNoTimer;
  };

  void Transmit(uint64_t call, const NodeId& to, const std::shared_ptr<const std::string>& bytes) {
    // Whatever comes back finds this messenger by `answer`, which does nothing once it is gone.
    auto answer =
        lifetime_.Wrap([this, call](const Result<std::string>& reply) { OnReply(call, reply); });
    ControlNetwork* const network = network_;
    network->Carry(self_, to, [network, from = self_, to, bytes, answer] {
      const auto router = network->routers_.find(to);
      if (router == network->routers_.end() || router->second == nullptr) {
        network->Carry(to, from, [answer, to]() mutable {
          answer(
              Result<std::string>(Unavailable("message to " + to.value + ": connection refused")));
        });
        return;
      }
      wire::Request request;
      const bool parsed = request.ParseFromString(*bytes);
      BACKSTAY_CHECK(parsed, "a message of ours cannot be read");
      network->counters_.delivered += 1;
      router->second->OnRequest(request, [network, from, to, answer](Result<wire::Reply> reply) {
        auto back = std::make_shared<Result<std::string>>(
            reply.ok() ? Result<std::string>(reply->SerializeAsString())
                       : Result<std::string>(reply.status()));
        network->Carry(to, from, [answer, back]() mutable { answer(*back); });
      });
    });
  }

  void OnReply(uint64_t call, const Result<std::string>& bytes) {
    if (!bytes.ok()) return Finish(call, bytes.status());
    wire::Reply reply;
    const bool parsed = reply.ParseFromString(*bytes);
    BACKSTAY_CHECK(parsed, "a reply of ours cannot be read");
    if (reply.status().code() != 0) {
      return Finish(call, Status(StatusCodeFromNumber(static_cast<int>(reply.status().code())),
                                 reply.status().message()));
    }
    Finish(call, std::move(reply));
  }

  void Finish(uint64_t call, Result<wire::Reply> result) {
    const auto found = calls_.find(call);
    if (found == calls_.end()) return;  // Answered by a duplicate, or its deadline has passed.
    network_->executor_->CancelTimer(found->second.timer);
    const Completion<wire::Reply> done = std::move(found->second.done);
    calls_.erase(found);
    done(std::move(result));
  }

  ControlNetwork* const network_;
  const NodeId self_;
  uint64_t last_call_ = 0;
  std::map<uint64_t, PendingCall> calls_;
  Lifetime lifetime_;
};

void ControlNetwork::Attach(const NodeId& node, replication::PeerRouter* router) {
  routers_[node] = router;
}

std::unique_ptr<replication::Messenger> ControlNetwork::MakeMessenger(const NodeId& node) {
  return std::make_unique<SimMessenger>(this, node);
}

void ControlNetwork::SetPartitioned(const NodeId& a, const NodeId& b, bool partitioned) {
  if (partitioned) {
    partitions_.insert(std::minmax(a, b));
  } else {
    partitions_.erase(std::minmax(a, b));
  }
}

Duration ControlNetwork::DrawDelay() {
  const auto span = static_cast<uint64_t>((faults_.delay_max - faults_.delay_min).count()) + 1;
  return faults_.delay_min + Duration(static_cast<int64_t>(random_->Next() % span));
}

void ControlNetwork::Carry(const NodeId& from, const NodeId& to, std::function<void()> deliver) {
  if (from != to && Cut(from, to)) {
    counters_.cut += 1;
    return;
  }
  if (from != to && Draw(faults_.drops_per_million)) {
    counters_.dropped += 1;
    return;
  }
  executor_->RunAfter(DrawDelay(), lifetime_.Wrap(std::move(deliver)));
}

}  // namespace backstay::sim
