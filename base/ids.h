#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace backstay {

// A number that cannot be mistaken for another kind of number.
template <typename Tag>
struct StrongNumber {
  uint64_t value = 0;

  constexpr StrongNumber() = default;
  constexpr explicit StrongNumber(uint64_t number) : value(number) {}

  StrongNumber Next() const { return StrongNumber(value + 1); }

  friend constexpr auto operator<=>(const StrongNumber&, const StrongNumber&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StrongNumber& id) {
    return out << id.value;
  }
};

// A name that cannot be mistaken for another kind of name.
template <typename Tag>
struct StrongName {
  std::string value;

  StrongName() = default;
  explicit StrongName(std::string name) : value(std::move(name)) {}

  bool empty() const { return value.empty(); }

  friend auto operator<=>(const StrongName&, const StrongName&) = default;
  friend std::ostream& operator<<(std::ostream& out, const StrongName& id) {
    return out << id.value;
  }
};

using StoreId =
    StrongName<struct StoreIdTag>;  // One metadata store, chosen at random when it is made.
using NodeId = StrongName<struct NodeIdTag>;
using JobName = StrongName<struct JobNameTag>;
using ShardId = StrongName<struct ShardIdTag>;  // Logical name of a part of the state; by default
                                                // the rank's number.
using AttemptUuid =
    StrongName<struct AttemptUuidTag>;  // Shared by all ranks of one reconfiguration.

using Incarnation =
    StrongNumber<struct IncarnationTag>;  // Start count of a node, from 1; 0 is "none".
using Generation =
    StrongNumber<struct GenerationTag>;  // Of a job's communicator, from 1; 0 is "none yet".
using Term =
    StrongNumber<struct TermTag>;  // Store revision of a leader's election; 0 is "not a leader".
using Attempt = StrongNumber<struct AttemptTag>;  // Of a generation's restore decision, from 1.
using Step = StrongNumber<struct StepTag>;        // Optimizer step.
using Rank = StrongNumber<struct RankTag>;        // Index in the communicator, from 0.

// One start of one node: what a promise or a held replica is bound to.
struct NodeInstance {
  NodeId node;
  Incarnation incarnation;

  friend auto operator<=>(const NodeInstance&, const NodeInstance&) = default;
};

// A snapshot's name: the (generation, step) whose save made it. The generation here is only a name;
// it never fences.
struct SnapshotId {
  Generation generation;
  Step step;

  friend auto operator<=>(const SnapshotId&, const SnapshotId&) = default;
};

// A shard's name. One name means one content: its digest is part of its identity once sealed.
struct ShardName {
  JobName job;
  SnapshotId snapshot;
  ShardId shard;

  friend auto operator<=>(const ShardName&, const ShardName&) = default;
};

std::ostream& operator<<(std::ostream& out, const NodeInstance& instance);  // node-1 (start 3)
std::ostream& operator<<(std::ostream& out, const SnapshotId& id);  // step 110 of generation 2
std::ostream& operator<<(std::ostream& out,
                         const ShardName& name);  // job/step 110 of generation 2/shard 3

// The same texts as strings, for messages.
std::string ToString(const NodeInstance& instance);
std::string ToString(const SnapshotId& id);
std::string ToString(const ShardName& name);

// The longest names that are accepted anywhere, in bytes. Names may hold any bytes but NUL; they
// are never used as paths.
inline constexpr size_t kNameBytesMax = 256;

}  // namespace backstay

template <typename Tag>
struct std::hash<backstay::StrongNumber<Tag>> {
  size_t operator()(const backstay::StrongNumber<Tag>& id) const {
    return std::hash<uint64_t>()(id.value);
  }
};

template <typename Tag>
struct std::hash<backstay::StrongName<Tag>> {
  size_t operator()(const backstay::StrongName<Tag>& id) const {
    return std::hash<std::string>()(id.value);
  }
};
