#include "base/ids.h"

#include <sstream>

namespace backstay {
namespace {

template <typename T>
std::string Print(const T& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const NodeInstance& instance) {
  return out << instance.node << " (start " << instance.incarnation << ")";
}

std::ostream& operator<<(std::ostream& out, const SnapshotId& id) {
  return out << "step " << id.step << " of generation " << id.generation;
}

std::ostream& operator<<(std::ostream& out, const ShardName& name) {
  return out << name.job << "/" << name.snapshot << "/shard " << name.shard;
}

std::string ToString(const NodeInstance& instance) { return Print(instance); }
std::string ToString(const SnapshotId& id) { return Print(id); }
std::string ToString(const ShardName& name) { return Print(name); }

}  // namespace backstay
