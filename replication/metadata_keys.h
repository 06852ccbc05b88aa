#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"
#include "replication/metadata_store.h"

namespace backstay::replication {

// The keys of the metadata store (docs/formats/metadata.md); nobody else puts one together.
//
//   node_starts/<node>   start count of a node; outlives it, so that no incarnation comes twice
//   nodes/<node>         who and where a live node is; under its lease
//   jobs/<job>/leader    the job's leader; under its node's lease; created at the leader's term
//   jobs/<job>/record    all that must not fork of a job
//
// Names are arbitrary bytes and are escaped, so that no name reaches into another one's keys.

inline constexpr std::string_view kNodesPrefix = "nodes/";
inline constexpr std::string_view kNodeStartsPrefix = "node_starts/";
inline constexpr std::string_view kJobsPrefix = "jobs/";

// Percent-encodes every byte but letters, digits, '-', '_' and '.'. Reversible; never holds a '/'.
std::string EscapeName(std::string_view name);
// kCorrupt for anything that EscapeName() does not return.
Result<std::string> UnescapeName(std::string_view escaped);

// kInvalidArgument when `name` is empty, longer than kNameBytesMax or holds a NUL. `what` is for
// the message: "job", "node".
Status CheckName(std::string_view what, std::string_view name);

std::string NodeKey(const NodeId& node);
std::string NodeStartsKey(const NodeId& node);
std::string LeaderKey(const JobName& job);
std::string JobRecordKey(const JobName& job);

// The node of a NodeKey(); kCorrupt for another key.
Result<NodeId> ParseNodeKey(std::string_view key);
// The job of a JobRecordKey(); kNotFound for another key of a job, kCorrupt for anything else.
Result<JobName> ParseJobRecordKey(std::string_view key);

// The pair whose key is exactly `key`, or null: prefixes of ranges also match longer keys.
const KeyValue* FindPair(const RangeResult& range, std::string_view key);

}  // namespace backstay::replication
